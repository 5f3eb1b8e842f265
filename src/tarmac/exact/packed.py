"""Read several rows as one: the sequences that the rows of each shard are packed into.

Packing changes only the index. A sequence is a sample whose fields are the pieces of its documents, `tokens.0`,
`tokens.1` and so on, so everything that reads indexed samples reads sequences, and the order of an epoch, which numbers
sequences, is as exact as that of samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash

from tarmac.display import plural
from tarmac.errors import UsageError
from tarmac.exact.packing import Packing, pack_lengths
from tarmac.exact.selection import Part
from tarmac.exact.shardset import ShardSet
from tarmac.exact.types import Rows
from tarmac.indexing.entries import key_column, member_column
from tarmac.indexing.sidecar import Sidecar
from tarmac.progress import track

MAX_FIELDS = 1 << 15
"""The number of different fields that an index can have."""


@dataclass(frozen=True)
class PackOptions:
    """How rows are packed: those of the first column decide, the others have as many elements."""

    columns: tuple[tuple[str, int], ...]
    """The columns to pack, and the bytes of an element of each."""
    size: int
    across_documents: bool = False


class PackedShards(ShardSet):
    """The sequences of some rows of the shards of a part."""

    def __init__(self, part: Part, pack: PackOptions, *, progress: bool | None = None) -> None:
        self._inner, self._numbers, self._rows = part.shards, part.numbers.tolist(), list(part.rows)
        self._pack = pack
        manifest, shards = part.shards.manifest, []
        counted = zip(self._numbers, self._rows, part.shards.sidecars(self._numbers), strict=True)
        for number, rows, sidecar in track(counted, len(self._numbers), "packing", progress=progress):
            shard, digest = manifest.shards[number], xxhash.xxh3_128(repr(pack).encode())
            digest.update(sidecar.facts.fingerprint.encode())
            if rows is not None:
                digest.update(rows.tobytes())
            sequences = len(_packing(sidecar, rows, pack))
            shards.append(replace(shard, samples=sequences, fingerprint=digest.hexdigest()))
        # The fields of sequences are pieces of columns.
        super().__init__(replace(manifest, shards=shards), replace(part.shards.options, fields=None))

    def _checked_sidecar(self, number: int) -> Sidecar:
        return packed_sidecar(self._inner.sidecar(self._numbers[number]), self._rows[number], self._pack)

    def close(self) -> None:
        super().close()
        self._inner.close()

    def after_fork(self) -> None:
        super().after_fork()
        self._inner.after_fork()

    def __getstate__(self) -> dict[str, Any]:
        names = ("_inner", "_numbers", "_rows", "_pack")
        return super().__getstate__() | {name: getattr(self, name) for name in names}


def _packing(sidecar: Sidecar, rows: Rows | None, pack: PackOptions) -> Packing:
    (name, width), layout = pack.columns[0], sidecar.facts.layout or []
    if name not in layout:
        return pack_lengths(np.zeros(0, np.int64), pack.size)
    sizes = sidecar.sizes.reshape(-1, len(layout))[:, layout.index(name)]
    lengths = (sizes if rows is None else sizes[rows]) // width
    return pack_lengths(lengths, pack.size, across_documents=pack.across_documents)


def packed_sidecar(sidecar: Sidecar, rows: Rows | None, pack: PackOptions) -> Sidecar:
    """Return the index of the sequences that some rows of a shard are packed into."""
    import pyarrow as pa

    packing, layout = _packing(sidecar, rows, pack), sidecar.facts.layout or []
    documents = packing.documents if rows is None else rows[packing.documents].astype(np.int64)
    ranks = np.arange(len(documents)) - np.repeat(packing.bounds[:-1], np.diff(packing.bounds))
    most, count = int(ranks.max(initial=-1)) + 1, len(pack.columns)
    if most * count > MAX_FIELDS:
        raise UsageError(
            f"sequences of up to {plural(most, 'document')} are too many; expected at most {MAX_FIELDS // count}.",
            field="pack",
        )
    offsets, sizes = [], []
    for name, width in pack.columns:
        column = sidecar.offsets.reshape(-1, max(len(layout), 1))[:, layout.index(name) if layout else 0]
        offsets.append(column[documents] + packing.starts * width)
        sizes.append(packing.lengths * width)
    members = member_column(
        (packing.bounds * count).astype(np.int32),
        (ranks[:, None] * count + np.arange(count)).astype(np.int16).reshape(-1),
        [f"{name}.{rank}" for rank in range(most) for name, _ in pack.columns],
        np.stack(offsets, axis=1).reshape(-1),
        np.stack(sizes, axis=1).reshape(-1),
        np.zeros(len(documents) * count, np.uint64),
    )
    keys = key_column(sidecar.keys(documents[packing.bounds[:-1]]))
    facts = replace(sidecar.facts, samples=len(packing), layout=None, columns={}, digests=False)
    return Sidecar(pa.RecordBatch.from_arrays([keys, members], ["key", "members"]), facts)
