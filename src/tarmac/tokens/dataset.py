"""Read combined tokens as a dataset: rows by number or key, in epochs, packed into sequences."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from tarmac.arguments import check_count
from tarmac.errors import NotFound, UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.packed import PackedShards, PackOptions
from tarmac.exact.selection import whole
from tarmac.exact.shardset import OpenOptions, ShardSet
from tarmac.storage import Cache, StorageOptions
from tarmac.storage.cache import as_cache
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tokens.arrays import TokenRows
from tarmac.tokens.info import MANIFEST, SEGMENTS, TokenInfo, packed_columns
from tarmac.tools.mappers.records import Schema
from tarmac.tools.mappers.shards import read_record_manifest

_STORED: Any = object()


class Tokens(Dataset[dict[str, Any]]):
    """The rows of combined tokens, as a sequence and for a `Loader`.

    >>> tokens = tarmac.Tokens("tokens/")
    >>> tokens[0]["tokens"], tokens["000123"], tokens.where("length >= 16")
    >>> loader = tarmac.Loader(tokens, batch_size=64)                  # padded batches with "mask"
    >>> loader = tarmac.Loader(tokens.pack(2048), batch_size=8)        # full sequences with "segment_ids"

    `source` is a directory that `tarmac combine` has written, or the manifest in it. A row is a dictionary with the
    columns of the tokens as arrays of `dtype`, and `mask`, which is false where a row was padded. Rows are padded or
    cut to `length`: by default the block size of `tokenize`, otherwise the longest row of a batch; None for no fixed
    length. Without `segments`, packed sequences have `mask` instead of `segment_ids` and `positions`. The shift of
    image tokens and the padding token are applied here. Everything else is as in `Dataset`.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        length: int | None = _STORED,
        dtype: str = "int64",
        segments: bool = True,
        cache: Cache | str | os.PathLike[str] | None = None,
        in_memory: bool = False,
        storage: StorageOptions = DEFAULT_STORAGE,
    ) -> None:
        name = os.fspath(source)
        if not name:
            raise UsageError("expected a directory, got an empty name.", field="source")
        if name.endswith(".tar"):
            what, folder = (
                "this is one shard of tokens, without those beside it.",
                os.path.dirname(name) or ".",
            )
            raise UsageError(what, field="source", url=name, hint=f"tarmac.Tokens({folder!r}).")
        if not name.partition("?")[0].endswith(".json"):
            name = f"{name.rstrip('/')}/{MANIFEST}"
        try:
            manifest, schema = read_record_manifest(name, storage)
        except NotFound as error:
            error.hint = "tarmac combine DIR, where DIR is the output of tarmac tokenize."
            raise
        info = TokenInfo.of(schema)
        fixed = (info.packed or info.block_size) if length is _STORED else length
        if fixed is not None:
            fixed = check_count("length", fixed, 1)
        step = TokenRows(
            schema.columns, info, length=fixed, dtype=dtype, packed=info.packed is not None, segments=segments
        )
        fields = frozenset(name for name in step.columns if segments or name != SEGMENTS)
        options = OpenOptions(fields, cache=as_cache(cache), in_memory=in_memory, storage=storage, rows=True)
        self._parts = (replace(whole(ShardSet(manifest, options)), steps=(step,)),)

    @property
    def info(self) -> TokenInfo:
        """The vocabularies, the shift of image tokens, the padding token and the other metadata."""
        return self._step.info

    @property
    def schema(self) -> Schema:
        """The columns and their types as they are stored."""
        return Schema(self._step.columns, self.info.to_json())

    def _facts(self) -> dict[str, str]:
        facts = super()._facts() | {"fields": ", ".join(self._step.columns)}
        if self._step.packed:
            facts["sequences of"] = f"{self._step.length} tokens"
        return facts

    @property
    def _step(self) -> TokenRows:
        step = self._parts[0].steps[0]
        assert isinstance(step, TokenRows)
        return step

    def pack(self, size: int, *, across_documents: bool = False, progress: bool | None = None) -> Tokens:
        """Pack rows into sequences of `size` tokens: best fit, deterministic, from the index alone.

        A sequence has `tokens`, `segment_ids` (1 for its first document, 0 where it was padded) and `positions` in each
        document. Documents are divided only if they are longer than a sequence; with `across_documents`, they
        are laid end to end and cut every `size` tokens. Rows are packed with rows of the same shard. Do not use it
        with remote shards without a cache: a sequence has pieces from all over a shard.
        """
        if any(part.steps != (self._step,) for part in self._parts):
            raise UsageError(
                "packing comes before other steps.", field="pack", hint="tokens.pack(2048).map(f)"
            )
        if self._step.packed:
            raise UsageError("these tokens are packed already.", field="pack")
        chosen, size = packed_columns(self._step.columns), check_count("pack", size, 1)
        widths = tuple((name, np.dtype(column.dtype).itemsize) for name, column in chosen.items())
        options = PackOptions(widths, size, across_documents)
        step = TokenRows(
            chosen,
            self.info,
            length=size,
            dtype=self._step.dtype.name,
            packed=True,
            segments=self._step.segments,
        )
        return self._of_parts(  # type: ignore[return-value]
            replace(whole(PackedShards(part, options, progress=progress)), steps=(step,))
            for part in self._parts
        )
