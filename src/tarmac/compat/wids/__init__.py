"""The names of the wids library 0.2.111, implemented by tarmac. `tarmac.compat.install` makes `import wids` find them.

`ShardListDataset` adapts `tarmac.Dataset` to shards without index files. New programs use `tarmac.Dataset` itself.
"""

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
