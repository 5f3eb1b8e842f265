"""One table of the samples of several open, uniform shards, to look up random batches quickly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tarmac.exact.indexed import LARGE, IndexedShard, cut_out
from tarmac.exact.types import Rows
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample


class Table:
    """The offsets of key and fields of every selected sample, shard after shard."""

    def __init__(
        self, names: Sequence[str], shards: Sequence[IndexedShard], rows: Sequence[Rows | None]
    ) -> None:
        self._names = names
        self._shards = shards  # keeps them open
        self._urls = [shard.url for shard in shards]
        self._texts = [shard.sidecar.text or "" for shard in shards]
        self._contents = [shard.content for shard in shards]
        pieces = [
            np.concatenate([shard.sidecar.text_bounds(selected), shard.bounds(selected)], axis=1)
            for shard, selected in zip(shards, map(_index, rows), strict=True)
        ]
        self._ends = np.cumsum([len(piece) for piece in pieces])
        self._bounds = np.concatenate(pieces)

    @classmethod
    def of(cls, shards: Sequence[IndexedShard], rows: Sequence[Rows | None]) -> Table | None:
        """Build a table, or return None unless all samples have the same fields, all small and in memory."""
        names = shards[0].names if shards else None
        uniform = all(shard.names == names and shard.sidecar.text is not None for shard in shards)
        small = all(shard.sidecar.sizes.max(initial=0) < LARGE for shard in shards)
        return cls(names, shards, rows) if names and uniform and small else None

    def samples(self, numbers: Integers) -> list[Sample]:
        """Return the samples with these numbers, in this order."""
        shards = np.searchsorted(self._ends, numbers, side="right").tolist()
        starts, stops, *bounds = self._bounds.take(numbers, axis=0).T.tolist()
        texts = self._texts
        keys = [texts[shard][start:stop] for shard, start, stop in zip(shards, starts, stops, strict=True)]
        urls, contents = map(self._urls.__getitem__, shards), map(self._contents.__getitem__, shards)
        return list(cut_out(self._names, keys, urls, contents, bounds))


def _index(rows: Rows | None) -> Integers | slice:
    return slice(None) if rows is None else rows.astype(np.int64)
