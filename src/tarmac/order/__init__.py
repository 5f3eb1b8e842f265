"""Which sample when: shard lists, splitting among ranks and workers, shuffles, mixtures."""

from __future__ import annotations

from tarmac.order.directory import DirectoryShardList
from tarmac.order.mixing import RandomMix, RoundRobin
from tarmac.order.passes import PassCounter, Passing, Source
from tarmac.order.seeds import chosen_seed, drawn_seed, make_seed
from tarmac.order.shardlists import (
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
from tarmac.order.shardspecs import MultiShardSample
from tarmac.order.shuffling import Rsample, ShardShuffle, Shuffle, buffer_shuffle, detshuffle
from tarmac.order.splitting import (
    is_claimed,
    single_node_only,
    split_all,
    split_by_node,
    split_by_worker,
)
from tarmac.order.workers import (
    Place,
    assume_worker,
    become_worker,
    current_place,
    loader_token,
    pytorch_worker_info,
    pytorch_worker_seed,
    remember_rank,
)

__all__ = [
    "assume_worker",
    "become_worker",
    "buffer_shuffle",
    "chosen_seed",
    "current_place",
    "detshuffle",
    "DirectoryShardList",
    "drawn_seed",
    "expand_source",
    "expand_urls",
    "is_claimed",
    "loader_token",
    "make_seed",
    "MultiShardSample",
    "non_empty",
    "PassCounter",
    "Passing",
    "Place",
    "pytorch_worker_info",
    "pytorch_worker_seed",
    "RandomMix",
    "remember_rank",
    "Resample",
    "resampled",
    "ResampledShardList",
    "ResampledShards",
    "RoundRobin",
    "Rsample",
    "ShardShuffle",
    "shardspec",
    "Shuffle",
    "SimpleShardList",
    "single_node_only",
    "Source",
    "split_all",
    "split_by_node",
    "split_by_worker",
]
