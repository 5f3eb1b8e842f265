"""Every sample of every shard is assigned to exactly one worker of one rank."""

from __future__ import annotations

import functools
import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.workers import all_workers, as_worker, samples_of
from tarmac.errors import UsageError
from tarmac.runtime.worker_info import WorkerInfo
from tarmac.stream.shards.split import single_node_only, split_all, split_by_node, split_by_worker

FEW = st.integers(1, 6)


def shards(count):
    return [{"url": f"{number}.tar"} for number in range(count)]


def everywhere(split, world_size, workers, count):
    """Return the shards of each worker."""
    parts = []
    for info in all_workers(world_size, workers):
        with as_worker(info):
            parts.append(list(split(iter(shards(count)))))
    return parts


def twice(src):
    return split_by_worker(split_by_node(src, inside=True), inside=True)


divided = functools.partial(split_all, inside=True)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 9), FEW, FEW, st.integers(0, 30), st.sampled_from([twice, divided]))
def test_each_sample_exactly_once(count, world_size, workers, per_shard, split):
    parts = everywhere(split, world_size, workers, count)
    read = [sample for part in parts for shard in part for sample in samples_of(shard, per_shard)]
    assert sorted(read) == sorted((f"{n}.tar", i) for n in range(count) for i in range(per_shard))
    if count:
        assert all(parts)


def twice_whole(src):
    return split_by_worker(split_by_node(src))


@settings(deadline=None, derandomize=True)
@given(
    st.integers(0, 9), FEW, FEW, st.sampled_from([twice_whole, functools.partial(split_all, inside=False)])
)
def test_whole_shards_by_default(count, world_size, workers, split):
    parts = everywhere(split, world_size, workers, count)
    assert sorted(shard["url"] for part in parts for shard in part) == [s["url"] for s in shards(count)]


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 9), FEW, FEW)
def test_split_all_is_balanced(count, world_size, workers):
    parts = everywhere(split_all, world_size, workers, count)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(("count", "workers"), [(1, 2), (1, 8), (3, 4), (5, 8)])
def test_issue_72_more_workers_than_shards(count, workers):
    """Issues 65, 68, 72, 188 of webdataset: workers without shards raised, or the run hung."""
    assert all(everywhere(functools.partial(split_by_worker, inside=True), 1, workers, count))
    assert all(everywhere(functools.partial(split_by_node, inside=True), workers, 1, count))


def test_shards_are_assigned_in_turn():
    assert [[s["url"] for s in part] for part in everywhere(split_by_worker, 1, 2, 5)] == [
        ["0.tar", "2.tar", "4.tar"],
        ["1.tar", "3.tar"],
    ]


def test_endless_sources():
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield {"url": f"{number}.tar"}

    with as_worker(WorkerInfo(1, 3, 1, 2)):
        stream = split_by_worker(split_by_node(endless()))
        assert [next(stream)["url"] for _ in range(2)] == ["4.tar", "10.tar"]
    assert max(read) <= 10
    read.clear()
    stream = split_all(endless(), WorkerInfo(0, 5))
    next(stream)
    assert read == list(range(5))


def test_samples_are_not_divided():
    samples = [{"__key__": "a", "url": "http://x"}]
    assert list(split_all(samples, WorkerInfo(0, 2))) == samples
    assert list(split_all(samples, WorkerInfo(1, 2))) == []
    assert list(split_all(["a.tar"], WorkerInfo(1, 2))) == []


def test_one_reader_reads_standard_input():
    assert list(split_all([{"url": "-"}], WorkerInfo(0, 2))) == [{"url": "-"}]
    assert list(split_all([{"url": "-"}], WorkerInfo(1, 2))) == []


def test_claimed_shards_are_not_split():
    """A shard that is claimed and skipped would be deleted without having been read."""
    claimed = [{"url": f"{n}.tar._1_", "claimed": True} for n in range(5)]

    def one_by_one():
        for number, shard in enumerate(claimed):
            assert len(taken) == number, "claimed ahead of time"
            yield shard

    taken: list[dict] = []
    for shard in split_all(one_by_one(), WorkerInfo(1, 3)):
        taken.append(shard)
    assert taken == claimed


def test_other_values_of_a_shard_are_kept():
    [shard] = divided([{"url": "a.tar", "extra": 1}], WorkerInfo(1, 2))
    assert shard == {"url": "a.tar", "extra": 1, "part": (1, 2)}


def test_single_node_only():
    assert list(single_node_only(shards(2))) == shards(2)
    with as_worker(WorkerInfo(0, 2)):
        stream = single_node_only(shards(2))
        with pytest.raises(UsageError, match="nodesplitter"):
            next(stream)


def test_splitters_are_picklable():
    for split in (
        split_by_node,
        split_by_worker,
        split_all,
        functools.partial(split_by_worker, inside=False),
    ):
        assert list(pickle.loads(pickle.dumps(split))(shards(2))) == shards(2)
