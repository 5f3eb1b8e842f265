"""`webdataset.shardlists`: which shards in which order."""

from __future__ import annotations

from tarmac.compat.helpers import Uncurried, envsubst, expand
from tarmac.stream.shards.directory import DirectoryShardList
from tarmac.stream.shards.lists import (
    Resample,
    ResampledShardList,
    ResampledShards,
    SimpleShardList,
    expand_source,
    expand_urls,
    non_empty,
    resampled,
    shardspec,
)
from tarmac.stream.shards.specs import MultiShardSample
from tarmac.stream.shards.split import single_node_only, split_by_node, split_by_worker

__all__ = [
    "DirectoryShardList",
    "envsubst",
    "expand",
    "expand_source",
    "expand_urls",
    "MultiShardSample",
    "non_empty",
    "Resample",
    "resampled",
    "resampled_",
    "ResampledShardList",
    "ResampledShards",
    "shardspec",
    "SimpleShardList",
    "single_node_only",
    "split_by_node",
    "split_by_worker",
    "Uncurried",
]

resampled_ = Uncurried(Resample)
