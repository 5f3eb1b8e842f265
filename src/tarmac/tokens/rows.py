"""Turn rows of tokens into arrays: pad them, apply the metadata, and collate whole batches at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    ) -> None:
        super().__init__()
        self.columns = {name: column for name, column in columns.items() if column.shape}
        self.info, self.length, self.packed = info, length, packed
        self.dtype = np.dtype(dtype)
        largest = max(info.vocab_size, info.image_token_shift + info.image_vocab_size)
        if self.dtype.kind not in "iu" or largest - 1 > np.iinfo(self.dtype).max:
            what = f"expected a type of integers that holds {largest - 1}, got {dtype}."
            raise UsageError(what, field="dtype")

    def __eq__(self, other: object) -> bool:
        names = ("columns", "info", "length", "dtype", "packed")
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
        width = np.dtype(column.dtype).itemsize
        lengths = np.array([len(row) // width for row in rows])
        mask = self._mask(lengths)
        dtype, fill = (column.dtype, 0) if name == MODALITY else (self.dtype, self.info.pad_token)
        yield name, _filled(values, lengths, mask, dtype, fill)
        if name != MODALITY:
            yield (MASK if name == TOKENS else f"{name}_{MASK}"), mask

    def _sequences(self, items: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, column in self.columns.items():
            if name == SEGMENTS:
                continue
            width = np.dtype(column.dtype).itemsize
            pieces = [self._pieces(item, name, width) for item in items]
            values = np.frombuffer(b"".join(data for _, parts in pieces for data in parts), column.dtype)
            lengths = np.array([sum(sizes) for sizes, _ in pieces])
            mask = self._mask(lengths)
            if name != TOKENS:
                yield name, _filled(values, lengths, mask, column.dtype, 0)
                continue
            yield name, _filled(values, lengths, mask, self.dtype, self.info.pad_token)
            sizes = np.array([size for sizes, _ in pieces for size in sizes], np.int64)
            ids = np.concatenate([np.arange(1, len(sizes) + 1) for sizes, _ in pieces])
            begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
            yield SEGMENT_IDS, _filled(np.repeat(ids, sizes), lengths, mask, np.int32, 0)
            yield POSITIONS, _filled(np.arange(len(begins)) - begins, lengths, mask, np.int32, 0)

    def _pieces(self, item: Mapping[str, Any], name: str, width: int) -> tuple[list[int], list[bytes]]:
        """Return the lengths of the documents of a sequence, and their bytes."""
        if SEGMENTS in self.columns:
            return np.frombuffer(item[SEGMENTS], self.columns[SEGMENTS].dtype).tolist(), [item[name]]
        parts = [value for field, value in item.items() if field.rpartition(".")[0] == name]
        return [len(part) // width for part in parts], parts

    def _mask(self, lengths: Array) -> Array:
        size = int(lengths.max(initial=0)) if self.length is None else self.length
        mask: Array = np.arange(size) < lengths[:, None]
        return mask

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
            present = batch[SEGMENT_IDS] > 0 if self.packed else batch[MASK]
            np.add(batch[TOKENS], shift, out=batch[TOKENS], where=present)


def _filled(values: Array, lengths: Array, mask: Array, dtype: Any, fill: int) -> Array:
    """Return values as rows of equal length."""
    rows, size = mask.shape
    if len(values) == mask.size and (lengths == size).all():
        return values.reshape(rows, size).astype(dtype)
    if lengths.max(initial=0) > size:  # keep what fits
        begins = np.cumsum(lengths) - lengths
        values = values[np.arange(len(values)) - np.repeat(begins, lengths) < size]
    result = np.full((rows, size), fill, dtype)
    result[mask] = values
    return result
