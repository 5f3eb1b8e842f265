"""`webdataset.shardlists`: lists of shards, and how they are split among readers."""

from __future__ import annotations

import os

from tarmac import environment
from tarmac.compat.webdataset.filters import Uncurried
from tarmac.storage import urls
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

resampled_: Uncurried = Uncurried(Resample)


def envsubst(s: str) -> str:
    """Replace `${X}` with the environment variable WDS_X."""
    return urls.substituted(s)


def expand(s: str) -> str:
    """Expand `~` and environment variables."""
    return os.path.expanduser(environment.expandvars(s))
