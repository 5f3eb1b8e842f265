"""Samplers: the sequences of wids 0.2.111, recorded from a run of it, and correct lengths."""

from __future__ import annotations

import pickle

import pytest
import torch

from tarmac.compat.wids.samplers import (
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


class Data(list):
    lengths = [4, 3, 5]


DATA = Data(range(12))


def epochs(sampler, count=3):
    return [list(sampler) for _ in range(count)]


def test_shards_in_the_order_of_wids():
    assert ShardedSampler is ShardListSampler
    assert epochs(ShardListSampler(DATA)) == [
        [2, 0, 1, 3, 4, 6, 5, 7, 11, 8, 9, 10],
        [3, 0, 2, 1, 10, 7, 9, 8, 11, 4, 5, 6],
        [6, 4, 5, 0, 2, 1, 3, 8, 9, 10, 7, 11],
    ]
    assert epochs(ShardListSampler(DATA, seed=7, shufflefirst=True)) == [
        [8, 9, 11, 7, 10, 1, 0, 3, 2, 5, 4, 6],
        [0, 1, 3, 2, 7, 10, 8, 11, 9, 4, 5, 6],
        [1, 3, 0, 2, 4, 6, 5, 8, 9, 10, 11, 7],
    ]
    assert list(ShardListSampler(None, lengths=[2, 6], seed=1)) == [1, 0, 5, 3, 7, 4, 2, 6]
    assert len(ShardListSampler(DATA)) == 12


def test_chunks_in_the_order_of_wids():
    assert epochs(ChunkedSampler(DATA, chunksize=5)) == [
        [2, 1, 0, 4, 3, 5, 7, 6, 8, 9, 10, 11],
        [4, 3, 2, 0, 1, 11, 10, 6, 7, 5, 8, 9],
        [9, 7, 6, 5, 8, 1, 0, 2, 3, 4, 11, 10],
    ]
    assert epochs(ChunkedSampler(DATA, chunksize=4, seed=3, shufflefirst=True)) == [
        [4, 5, 7, 6, 9, 11, 10, 8, 2, 0, 1, 3],
        [6, 5, 4, 7, 2, 3, 0, 1, 8, 10, 9, 11],
        [3, 2, 0, 1, 5, 4, 7, 6, 8, 10, 11, 9],
    ]
    assert list(ChunkedSampler(DATA, num_samples=6, chunksize=4, seed=2)) == [1, 2, 3, 0, 4, 5]
    assert list(ChunkedSampler(DATA, num_samples=(3, 11), chunksize=3, seed=2)) == [4, 5, 3, 8, 7, 6, 10, 9]
    assert epochs(ChunkedSampler(DATA, chunksize=5, shuffle=False)) == [list(range(12))] * 3


def test_the_number_of_the_epoch():
    sampler = ChunkedSampler(DATA, chunksize=5)
    sampler.set_epoch(9)
    assert list(sampler) == [10, 11, 9, 7, 6, 5, 8, 1, 4, 0, 2, 3]
    assert sampler.epoch == 10
    next(iter(sampler))
    assert sampler.epoch == 10  # not exhausted
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


def test_ranks_in_the_order_of_wids():
    result = [DistributedChunkedSampler(DATA, num_replicas=5, rank=r, seed=4, chunksize=2) for r in range(5)]
    assert [epochs(sampler, 2) for sampler in result] == [
        [[1, 0, 2], [2, 1, 0]],
        [[4, 3, 5], [5, 4, 3]],
        [[7, 6, 8], [8, 7, 6]],
        [[10, 9, 11], [11, 10, 9]],
        [[], []],
    ]


def test_lengths_are_the_numbers_of_indices():
    """In wids the last rank had the length of the others, and num_samples had no effect."""
    ranks = [DistributedChunkedSampler(DATA, num_replicas=5, rank=rank) for rank in range(5)]
    assert [len(sampler) for sampler in ranks] == [len(list(sampler)) for sampler in ranks] == [3, 3, 3, 3, 0]
    some = DistributedChunkedSampler(Data(range(5000)), num_replicas=2, rank=0, num_samples=100)
    assert len(some) == len(list(some)) == 50
    assert len(ChunkedSampler(DATA, num_samples=7)) == 7
    assert len(ChunkedSampler(DATA, num_samples=0)) == len(list(ChunkedSampler(DATA, num_samples=0))) == 0
    assert len(ChunkedSampler(DATA, dslength_per_replica=99)) == 99


def test_drop_last_makes_ranks_equal():
    ranks = [DistributedChunkedSampler(DATA, num_replicas=5, rank=rank, drop_last=True) for rank in range(5)]
    assert [len(list(sampler)) for sampler in ranks] == [2] * 5
    assert sorted(index for sampler in ranks for index in sampler) == list(range(10))


def test_an_explicit_rank_0_is_used(monkeypatch):
    """In wids it was replaced by the rank of the process."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert sorted(DistributedChunkedSampler(DATA, rank=0)) == [0, 1, 2, 3]
    assert sorted(DistributedChunkedSampler(DATA)) == [8, 9, 10, 11]
    assert sorted(DistributedLocalSampler(DATA, rank=0)) != sorted(DistributedLocalSampler(DATA))


def test_without_ranks_there_is_one_rank(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert sorted(DistributedChunkedSampler(DATA)) == list(range(12))
    with pytest.raises(ValueError, match="rank"):
        DistributedChunkedSampler(DATA, rank=3, num_replicas=3)


@pytest.mark.parametrize("options", [{"num_samples": 13}, {"num_samples": (5, 3)}, {"chunksize": 0}])
def test_invalid_arguments(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ChunkedSampler(DATA, **options)


@pytest.mark.parametrize("drop_last", [False, True])
def test_local_parts_of_the_order_of_torch(drop_last):
    def ranks(kind, **options):
        result = [
            kind(DATA, num_replicas=5, rank=rank, seed=3, drop_last=drop_last, **options) for rank in range(5)
        ]
        for sampler in result:
            sampler.set_epoch(2)
        return result

    ours, theirs = ranks(DistributedLocalSampler), ranks(torch.utils.data.DistributedSampler)
    per_rank = [list(sampler) for sampler in theirs]
    order = [one for turn in zip(*per_rank, strict=True) for one in turn]
    assert [index for sampler in ours for index in sampler] == order
    assert [len(sampler) for sampler in ours] == [len(sampler) for sampler in theirs]
    assert list(ranks(DistributedLocalSampler, shuffle=False)[1])[:2] == ([2, 3] if drop_last else [3, 4])


def test_ranges():
    assert lengths_to_ranges([2, 0, 3]) == [(0, 2), (2, 2), (2, 5)]
    assert intersect_range((0, 5), (3, 9)) == (3, 5)
    assert intersect_range((0, 3), (3, 9)) is None
    assert intersect_ranges([(0, 2), (2, 5)], (1, 3)) == [(1, 2), (2, 3)]
    assert list(iterate_ranges([(0, 2), (5, 7)], None, indexshuffle=False, shardshuffle=False)) == [
        0,
        1,
        5,
        6,
    ]
