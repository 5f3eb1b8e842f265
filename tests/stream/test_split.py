"""Every sample of every shard goes to exactly one worker of one rank."""

from __future__ import annotations

import functools
import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.places import at, places, samples_of
from tarmac.runtime.worker_info import WorkerInfo
from tarmac.stream.shards.split import single_node_only, split_all, split_by_node, split_by_worker

FEW = st.integers(1, 6)


def shards(count):
    return [{"url": f"{number}.tar"} for number in range(count)]


def everywhere(split, world_size, workers, count):
    """What each place gets."""
    found = []
    for place in places(world_size, workers):
        with at(place):
            found.append(list(split(iter(shards(count)))))
    return found


def twice(src):
    return split_by_worker(split_by_node(src, inside=True), inside=True)


divided = functools.partial(split_all, inside=True)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 9), FEW, FEW, st.integers(0, 30), st.sampled_from([twice, divided]))
def test_each_sample_exactly_once(count, world_size, workers, per_shard, split):
    found = everywhere(split, world_size, workers, count)
    read = [sample for part in found for shard in part for sample in samples_of(shard, per_shard)]
    assert sorted(read) == sorted((f"{n}.tar", i) for n in range(count) for i in range(per_shard))
    if count:
        assert all(found)


def twice_whole(src):
    return split_by_worker(split_by_node(src))


@settings(deadline=None, derandomize=True)
@given(
    st.integers(0, 9), FEW, FEW, st.sampled_from([twice_whole, functools.partial(split_all, inside=False)])
)
def test_whole_shards_unless_asked(count, world_size, workers, split):
    found = everywhere(split, world_size, workers, count)
    assert sorted(shard["url"] for part in found for shard in part) == [s["url"] for s in shards(count)]


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 9), FEW, FEW)
def test_in_one_step_shares_differ_by_one_shard_at_most(count, world_size, workers):
    found = everywhere(split_all, world_size, workers, count)
    assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize(("count", "workers"), [(1, 2), (1, 8), (3, 4), (5, 8)])
def test_issue_72_more_workers_than_shards(count, workers):
    """Issues 65, 68, 72, 188: workers without shards stopped with an error, or hung the run."""
    assert all(everywhere(functools.partial(split_by_worker, inside=True), 1, workers, count))
    assert all(everywhere(functools.partial(split_by_node, inside=True), workers, 1, count))


def test_enough_shards_are_dealt_out_in_turn():
    assert [[s["url"] for s in part] for part in everywhere(split_by_worker, 1, 2, 5)] == [
        ["0.tar", "2.tar", "4.tar"],
        ["1.tar", "3.tar"],
    ]


def test_sources_without_end():
    looked = []

    def endless():
        for number in itertools.count():
            looked.append(number)
            yield {"url": f"{number}.tar"}

    with at(WorkerInfo(1, 3, 1, 2)):
        stream = split_by_worker(split_by_node(endless()))
        assert [next(stream)["url"] for _ in range(2)] == ["4.tar", "10.tar"]
    assert max(looked) <= 10
    looked.clear()
    stream = split_all(endless(), WorkerInfo(0, 5))
    next(stream)
    assert looked == list(range(5))


def test_samples_are_dealt_out_but_not_divided():
    samples = [{"__key__": "a", "url": "http://x"}]
    assert list(split_all(samples, WorkerInfo(0, 2))) == samples
    assert list(split_all(samples, WorkerInfo(1, 2))) == []
    assert list(split_all(["a.tar"], WorkerInfo(1, 2))) == []


def test_standard_input_is_read_by_one():
    assert list(split_all([{"url": "-"}], WorkerInfo(0, 2))) == [{"url": "-"}]
    assert list(split_all([{"url": "-"}], WorkerInfo(1, 2))) == []


def test_claimed_shards_stay_with_who_claimed_them():
    """A shard that is claimed and then passed over would be deleted without having been read."""
    claimed = [{"url": f"{n}.tar._1_", "claimed": True} for n in range(5)]

    def one_by_one():
        for number, shard in enumerate(claimed):
            assert len(taken) == number, "claimed ahead of time"
            yield shard

    taken: list[dict] = []
    for shard in split_all(one_by_one(), WorkerInfo(1, 3)):
        taken.append(shard)
    assert taken == claimed


def test_the_rest_of_a_shard_is_kept():
    [shard] = divided([{"url": "a.tar", "extra": 1}], WorkerInfo(1, 2))
    assert shard == {"url": "a.tar", "extra": 1, "part": (1, 2)}


def test_single_node_only():
    assert list(single_node_only(shards(2))) == shards(2)
    with at(WorkerInfo(0, 2)):
        stream = single_node_only(shards(2))
        with pytest.raises(ValueError, match="explicit nodesplitter"):
            next(stream)


def test_splitters_are_picklable():
    for split in (
        split_by_node,
        split_by_worker,
        split_all,
        functools.partial(split_by_worker, inside=False),
    ):
        assert list(pickle.loads(pickle.dumps(split))(shards(2))) == shards(2)
