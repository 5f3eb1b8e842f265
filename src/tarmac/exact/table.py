"""Samples of several shards that are open and alike, in one table: a batch from all over is found at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tarmac.exact.indexed import LARGE, IndexedShard, cut_out
from tarmac.samples.grouping import Sample

__all__ = ["Table"]


class Table:
    """Where key and fields of each sample are, of some rows of each shard or of all, shard after shard."""

    def __init__(
        self, names: Sequence[str], shards: Sequence[IndexedShard], rows: Sequence[NDArray[np.int32] | None]
    ) -> None:
        self._names = names
        self._shards = shards  # which would be closed if nobody had them
        self._urls = [shard.url for shard in shards]
        self._texts = [shard.sidecar.text or "" for shard in shards]
        self._contents = [shard.content for shard in shards]
        pieces = [
            np.concatenate([shard.sidecar.text_bounds(chosen), shard.bounds(chosen)], axis=1)
            for shard, chosen in zip(shards, map(_index, rows), strict=True)
        ]
        self._ends = np.cumsum([len(piece) for piece in pieces])
        self._bounds = np.concatenate(pieces)

    @classmethod
    def of(cls, shards: Sequence[IndexedShard], rows: Sequence[NDArray[np.int32] | None]) -> Table | None:
        """Make a table, if all samples have the same fields, all of them small and at hand."""
        names = shards[0].names if shards else None
        alike = all(shard.names == names and shard.sidecar.text is not None for shard in shards)
        small = all(shard.sidecar.sizes.max(initial=0) < LARGE for shard in shards)
        return cls(names, shards, rows) if names and alike and small else None

    def samples(self, numbers: NDArray[np.int64]) -> list[Sample]:
        """The samples with these numbers, in this order."""
        places = np.searchsorted(self._ends, numbers, side="right").tolist()
        starts, stops, *bounds = self._bounds.take(numbers, axis=0).T.tolist()
        texts = self._texts
        keys = [texts[place][start:stop] for place, start, stop in zip(places, starts, stops, strict=True)]
        urls, contents = map(self._urls.__getitem__, places), map(self._contents.__getitem__, places)
        return list(cut_out(self._names, keys, urls, contents, bounds))


def _index(rows: NDArray[np.int32] | None) -> NDArray[np.int64] | slice:
    return slice(None) if rows is None else rows.astype(np.int64)
