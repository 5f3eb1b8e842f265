"""Turn rows of tokens into arrays: pad them, apply the metadata, and collate whole batches at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tarmac.errors import UsageError
from tarmac.steps.stage import Each
from tarmac.tokens.info import IMAGE, IMAGE_MODALITY, MODALITY, SEGMENTS, TOKENS, TokenInfo
from tarmac.tools.mappers.contract import Column

Array = np.ndarray[Any, Any]
MASK, SEGMENT_IDS, POSITIONS = "mask", "segment_ids", "positions"
"""Fields of loaded rows: whether a position has a token; for sequences the number of the document, from 1 on, or 0
where nothing is; and the position in the document."""


class TokenRows(Each):
    """Replaces the stored bytes of a row, or of a sequence of rows, with arrays."""

    def __init__(
        self,
        columns: Mapping[str, Column],
        info: TokenInfo,
        *,
        length: int | None,
        dtype: str,
        packed: bool = False,
        segments: bool = True,
    ) -> None:
        super().__init__()
        # The others have the lengths of the tokens.
        tokens_first = sorted(columns.items(), key=lambda item: item[0] != TOKENS)
        self.columns = {name: column for name, column in tokens_first if column.shape}
        self.info, self.length, self.packed, self.segments = info, length, packed, segments
        largest = max(info.vocab_size, info.image_token_shift + info.image_vocab_size, 1) - 1
        try:
            self.dtype = np.dtype(dtype)
        except TypeError:
            self.dtype = np.dtype(object)
        if self.dtype.kind not in "iu" or largest > np.iinfo(self.dtype).max:
            raise UsageError(
                f"expected a type of integers that holds {largest}, got {dtype!r}.", field="dtype"
            )

    def __eq__(self, other: object) -> bool:
        names = ("columns", "info", "length", "dtype", "packed", "segments")
        same = isinstance(other, TokenRows)
        return same and all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        return hash((self.length, self.packed, tuple(self.columns)))

    def apply(self, item: Any) -> dict[str, Any]:
        """Return one row; without a fixed length it is as long as its tokens."""
        batch = self.collate([item])
        return {name: values[0] for name, values in batch.items()}

    def collate(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a batch of rows, padded to the fixed length, or to that of the longest of them."""
        batch: dict[str, Any] = {name: [item[name] for item in items] for name in ("__key__", "__url__")}
        if self.packed:
            batch |= self._sequences(items)
        else:
            for name, column in self.columns.items():
                if name != SEGMENTS:
                    batch |= self._padded(name, column, [item[name] for item in items])
        self._shift(batch)
        return batch

    def _padded(self, name: str, column: Column, rows: Sequence[bytes]) -> Iterator[tuple[str, Any]]:
        values = np.frombuffer(b"".join(rows), column.dtype)
        if not column.ragged:
            yield name, values.reshape(len(rows), -1).copy()
            return
        lengths = np.fromiter(map(len, rows), np.int64, len(rows)) // values.itemsize
        mask = self._mask(lengths)
        yield name, self._filled(name, values, lengths, mask)
        if name != MODALITY:
            yield (MASK if name == TOKENS else f"{name}_{MASK}"), mask

    def _sequences(self, items: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield the fields of sequences; their documents are divided by `segments`, or are fields of their own."""
        stored = SEGMENTS in self.columns
        if stored and not self.segments:
            for name, column in self.columns.items():
                if name != SEGMENTS:
                    yield from self._padded(name, column, [item[name] for item in items])
            return
        for name, column in self.columns.items():
            if name == SEGMENTS:
                continue
            pieces = [[item[name]] if stored else _pieces(item, name) for item in items]
            values = np.frombuffer(b"".join(chain.from_iterable(pieces)), column.dtype)
            if name == TOKENS:
                sizes, counts = self._segments(items, pieces, values.itemsize)
                lengths = np.add.reduceat(sizes, np.cumsum(counts) - counts)
                mask = self._mask(lengths)
            yield name, self._filled(name, values, lengths, mask)
        if not self.segments:
            yield MASK, mask
            return
        sizes32, ends = sizes.astype(np.int32), np.cumsum(sizes, dtype=np.int32)
        ids = np.arange(1, len(sizes) + 1, dtype=np.int32) - np.repeat(np.cumsum(counts) - counts, counts)
        positions = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends - sizes32, sizes)
        yield SEGMENT_IDS, _rows(np.repeat(ids.astype(np.int32), sizes), lengths, mask, 0)
        yield POSITIONS, _rows(positions, lengths, mask, 0)

    def _segments(
        self, items: Sequence[Mapping[str, Any]], pieces: list[list[bytes]], width: int
    ) -> tuple[Array, Array]:
        """Return the length of each document, and the number of documents of each sequence."""
        if SEGMENTS not in self.columns:
            sizes = [len(piece) // width for parts in pieces for piece in parts]
            return np.array(sizes, np.int64), np.array([len(parts) for parts in pieces])
        stored = [item[SEGMENTS] for item in items]
        lengths = np.frombuffer(b"".join(stored), self.columns[SEGMENTS].dtype)
        return lengths.astype(np.int64), np.array([len(each) // lengths.itemsize for each in stored])

    def _mask(self, lengths: Array) -> Array:
        """Return for each position of each row whether it has a token."""
        size = int(lengths.max(initial=0)) if self.length is None else self.length
        if (lengths >= size).all():
            return np.ones((len(lengths), size), np.bool_)
        mask: Array = np.arange(size) < lengths[:, None]
        return mask

    def _filled(self, name: str, values: Array, lengths: Array, mask: Array) -> Array:
        if name == MODALITY:
            return _rows(values, lengths, mask, 0)
        return _rows(values.astype(self.dtype), lengths, mask, self.info.pad_token)

    def _shift(self, batch: dict[str, Any]) -> None:
        """Add the shift to image tokens. They are stored without it, so that vocabularies can be arranged later."""
        shift = self.dtype.type(self.info.image_token_shift)
        if not shift:
            return
        if MODALITY in batch:
            np.add(batch[TOKENS], shift, out=batch[TOKENS], where=batch[MODALITY] == IMAGE_MODALITY)
        elif IMAGE in batch:
            np.add(batch[IMAGE], shift, out=batch[IMAGE], where=batch[f"{IMAGE}_{MASK}"])
        elif not self.info.vocab_size:  # all are tokens of images
            present = batch[MASK] if MASK in batch else batch[SEGMENT_IDS] > 0
            np.add(batch[TOKENS], shift, out=batch[TOKENS], where=present)


def _pieces(item: Mapping[str, Any], name: str) -> list[bytes]:
    """Return the fields `NAME.0`, `NAME.1` and so on of a packed sample."""
    return [value for field, value in item.items() if field.rpartition(".")[0] == name]


def _rows(values: Array, lengths: Array, mask: Array, fill: int) -> Array:
    """Return values as rows of equal length."""
    rows, size = mask.shape
    if (lengths == size).all():
        whole = values.reshape(rows, size)
        return whole if whole.flags.writeable else whole.copy()
    if lengths.max(initial=0) > size:  # keep what fits
        begins = np.cumsum(lengths) - lengths
        values = values[np.arange(len(values)) - np.repeat(begins, lengths) < size]
    result = np.full((rows, size), fill, values.dtype)
    result[mask] = values
    return result
