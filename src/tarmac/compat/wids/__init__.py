"""The names of the wids library 0.2.111, all of them tarmac's; `tarmac.compat` puts them in its place."""

from __future__ import annotations

from tarmac.compat.wids import (
    wids,
    wids_cleanup,
    wids_decode,
    wids_dl,
    wids_index,
    wids_lru,
    wids_mmtar,
    wids_specs,
    wids_tar,
)
from tarmac.compat.wids.wids import (
    ChunkedSampler,
    DistributedChunkedSampler,
    DistributedLocalSampler,
    IndexedTarSamples,
    LRUShards,
    ShardedSampler,
    ShardListDataset,
    ShardListSampler,
)

__all__ = [
    "ChunkedSampler",
    "DistributedChunkedSampler",
    "DistributedLocalSampler",
    "IndexedTarSamples",
    "LRUShards",
    "ShardedSampler",
    "ShardListDataset",
    "ShardListSampler",
    "wids",
    "wids_cleanup",
    "wids_decode",
    "wids_dl",
    "wids_index",
    "wids_lru",
    "wids_mmtar",
    "wids_specs",
    "wids_tar",
]
