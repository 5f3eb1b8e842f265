"""`wids.wids`: the dataset and its samplers."""

from __future__ import annotations

from tarmac.compat.fieldfiles import interpret_transformations
from tarmac.compat.indexedtar import IndexedTarSamples, compute_file_md5sum, compute_num_samples
from tarmac.compat.samplers import (
    ChunkedSampler,
    DistributedChunkedSampler,
    DistributedLocalSampler,
    ShardedSampler,
    ShardListSampler,
    intersect_range,
    intersect_ranges,
    iterate_ranges,
    lengths_to_ranges,
)
from tarmac.compat.shardlist import (
    CacheLocalname,
    DefaultLocalname,
    LRUShards,
    ShardListDataset,
    hash_dataset_name,
)
from tarmac.compat.wids_helpers import group_by_key, splitname

__all__ = [
    "CacheLocalname",
    "ChunkedSampler",
    "DefaultLocalname",
    "DistributedChunkedSampler",
    "DistributedLocalSampler",
    "IndexedTarSamples",
    "LRUShards",
    "ShardListDataset",
    "ShardListSampler",
    "ShardedSampler",
    "compute_file_md5sum",
    "compute_num_samples",
    "group_by_key",
    "hash_dataset_name",
    "interpret_transformations",
    "intersect_range",
    "intersect_ranges",
    "iterate_ranges",
    "lengths_to_ranges",
    "splitname",
]
