"""`webdataset.shardlists`: lists of shards, and how they are split among readers."""

from __future__ import annotations

import os

from tarmac import environment
from tarmac.compat.webdataset.filters import Uncurried as Uncurried
from tarmac.storage import urls
from tarmac.stream.shards.directory import DirectoryShardList as DirectoryShardList
from tarmac.stream.shards.lists import Resample as Resample
from tarmac.stream.shards.lists import ResampledShardList as ResampledShardList
from tarmac.stream.shards.lists import ResampledShards as ResampledShards
from tarmac.stream.shards.lists import SimpleShardList as SimpleShardList
from tarmac.stream.shards.lists import expand_source as expand_source
from tarmac.stream.shards.lists import expand_urls as expand_urls
from tarmac.stream.shards.lists import non_empty as non_empty
from tarmac.stream.shards.lists import resampled as resampled
from tarmac.stream.shards.lists import shardspec as shardspec
from tarmac.stream.shards.specs import MultiShardSample as MultiShardSample
from tarmac.stream.shards.split import single_node_only as single_node_only
from tarmac.stream.shards.split import split_by_node as split_by_node
from tarmac.stream.shards.split import split_by_worker as split_by_worker

resampled_: Uncurried = Uncurried(Resample)


def envsubst(s: str) -> str:
    """Replace `${X}` with the environment variable WDS_X."""
    return urls.substituted(s)


def expand(s: str) -> str:
    """Expand `~` and environment variables."""
    return os.path.expanduser(environment.expandvars(s))
