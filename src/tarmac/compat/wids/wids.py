"""`wids.wids`: the dataset and its samplers."""

from __future__ import annotations

from tarmac.compat.wids_helpers import group_by_key, splitname
from tarmac.order.samplers import (
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
from tarmac.pipeline.fieldfiles import interpret_transformations
from tarmac.pipeline.indexedtar import IndexedTarSamples, compute_file_md5sum, compute_num_samples
from tarmac.pipeline.shardlist import (
    CacheLocalname,
    DefaultLocalname,
    LRUShards,
    ShardListDataset,
    hash_dataset_name,
)

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
