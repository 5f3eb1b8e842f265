"""`webdataset.shardlists`: lists of shards, and how they are split among readers."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from tarmac import environment
from tarmac.compat.webdataset import utils as utils
from tarmac.compat.webdataset.filters import Uncurried as Uncurried
from tarmac.compat.webdataset.filters import pipelinefilter as pipelinefilter
from tarmac.compat.webdataset.utils import is_iterable as is_iterable
from tarmac.compat.webdataset.utils import obsolete as obsolete
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


@dataclass
class MSSource:
    """One dataset of a `MultiShardSample`."""

    name: str = ""
    perepoch: int = -1
    resample: bool = False
    urls: list[str] = field(default_factory=list)


def envlookup(m: re.Match[str]) -> str:
    """Return the environment variable WDS_X for a match whose first group is X."""
    return urls.substituted(f"${{{m[1]}}}")


def envsubst(s: str) -> str:
    """Replace `${X}` with the environment variable WDS_X."""
    return urls.substituted(s)


def expand(s: str) -> str:
    """Expand `~` and environment variables."""
    return os.path.expanduser(environment.expandvars(s))


def check_pid_is_running(pid: int) -> bool:
    """Return whether a process of this number can be signalled."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def without_last_extension(fname: str) -> str:
    """Return a name up to its last dot."""
    stem, dot, _ = fname.rpartition(".")
    return stem if dot else fname


def get_pid_from_filename(fname: str) -> int | None:
    """Return the number of the process that has claimed a shard, from a name such as `x.tar._123_`."""
    match = re.fullmatch(r".*\._(\d+)_", fname, re.DOTALL)
    return None if match is None else int(match[1])
