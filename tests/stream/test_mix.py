"""Mixing datasets."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from itertools import islice

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.resume import assert_resumes
from harness.workers import all_workers, as_worker
from tarmac.errors import StateMismatch, UsageError
from tarmac.runtime.worker_info import WorkerInfo
from tarmac.stream import mix as mix_module
from tarmac.stream.mix import RandomMix, RoundRobin
from tarmac.stream.shards.lists import ResampledShards, SimpleShardList

LENGTHS = st.lists(st.integers(0, 8), min_size=1, max_size=4)


def lists(lengths):
    return [[(number, item) for item in range(length)] for number, length in enumerate(lengths)]


def mixtures(lengths, longest, weights=None):
    return [
        lambda: RoundRobin(lists(lengths), longest),
        lambda: RandomMix(lists(lengths), weights, longest, seed=3),
    ]


@settings(deadline=None, derandomize=True)
@given(LENGTHS, st.booleans())
def test_items_keep_their_order_and_longest_yields_all(lengths, longest):
    for make in mixtures(lengths, longest):
        items = list(make())
        assert len(set(items)) == len(items)
        for number, length in enumerate(lengths):
            part = [item for origin, item in items if origin == number]
            assert part == list(range(len(part)))
            assert not longest or len(part) == length


@settings(deadline=None, derandomize=True)
@given(LENGTHS, st.booleans())
def test_round_robin_matches_the_webdataset_library(lengths, longest):
    assert list(RoundRobin(lists(lengths), longest)) == list(webdataset.RoundRobin(lists(lengths), longest))


@settings(deadline=None, derandomize=True)
@given(LENGTHS, st.booleans())
def test_resume_at_every_step(lengths, longest):
    for make in mixtures(lengths, longest):
        assert_resumes(make)


@settings(deadline=None, derandomize=True)
@given(LENGTHS, st.integers(0, 40))
def test_resume_uses_skip(lengths, stop):
    class Skipping:
        def __init__(self, items):
            self.items, self.start = items, 0

        def skip(self, count):
            self.start = count

        def __iter__(self):
            start, self.start = self.start, 0
            return iter(self.items[start:])

    class Never(Skipping):
        """Return a new dataset from `skip`, as Hugging Face does; this one must not be read."""

        def skip(self, count):
            return self.items[count:]

    for longest in (False, True):
        mix = RandomMix(lists(lengths), longest=longest)
        stream = iter(mix)
        head = list(islice(stream, stop))
        state = json.loads(json.dumps(mix.state_dict()))
        for kind in (Skipping, Never):
            other = RandomMix([kind(items) for items in lists(lengths)], longest=longest)
            other.load_state_dict(state)
            assert other.state_dict() == state
            assert head + list(other) == list(RandomMix(lists(lengths), longest=longest))


def test_weights():
    mix = RandomMix([["a"] * 100_000, ["b"] * 100_000, ["c"] * 100_000], [3, 1, 0])
    counts = Counter(islice(mix, 10_000))
    assert 7200 < counts["a"] < 7800
    assert counts["c"] == 0
    assert list(RandomMix([[1], [2, 3]], [1, 0], longest=True)) == [1]


def test_issue_429_mixtures_are_reproducible_and_differ_by_epoch():
    """Issues 429 and 242 of webdataset: the choices came from global random numbers."""
    state = random.getstate()
    mix = RandomMix(lists([50, 50]), seed=1)
    orders = [tuple(mix) for _ in range(3)]
    assert random.getstate() == state
    again = RandomMix(lists([50, 50]), seed=1)
    again.set_epoch(1)
    assert [tuple(again), tuple(again)] == orders[1:]
    for info in all_workers(2, 2)[1:]:
        with as_worker(info):
            orders.append(tuple(RandomMix(lists([50, 50]), seed=1)))
    orders.append(tuple(RandomMix(lists([50, 50]), seed=2)))
    assert len(set(orders)) == 7


def test_rounding_stays_in_range():
    """In the webdataset library, searchsorted could return an index behind the last dataset."""

    class Highest(random.Random):
        def random(self):
            return 1 - 2**-53

    for weights in ([0.1] * 10, [1e-300, 1e-300], [1, 0, 0], [0.7, 0.1, 0.2, 0.0], [5e-324]):
        index = mix_module._AtRandom(weights, Highest()).choose(range(len(weights)))
        assert weights[index] > 0


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=5).filter(any), st.floats(0, 1, exclude_max=True))
def test_only_datasets_with_weight_are_chosen(weights, number):
    class Fixed(random.Random):
        def random(self):
            return number

    index = mix_module._AtRandom(weights, Fixed()).choose(range(len(weights)))
    assert weights[index] > 0


@pytest.mark.parametrize(
    "probs", [[1], [1, 1, 1], [0, 0], [-1, 2], [float("nan"), 1], [float("inf"), 1], [1e308, 1e308]]
)
def test_invalid_weights(probs):
    with pytest.raises(UsageError, match="probs"):
        RandomMix([[1], [2]], probs)


@pytest.mark.parametrize("kind", [RandomMix, RoundRobin])
def test_no_datasets(kind):
    with pytest.raises(UsageError, match="datasets"):
        kind([])
    assert list(kind([[]])) == list(kind([[], []], longest=True)) == []


def test_set_epoch_reaches_the_datasets():
    def mix(kind):
        return kind([SimpleShardList("http://x/{0..9}.tar", seed=n) for n in range(2)])

    for kind in (RandomMix, RoundRobin):
        one = mix(kind)
        orders = [[s["url"] for s in one] for _ in range(3)]
        other = mix(kind)
        other.set_epoch(2)
        assert [s["url"] for s in other] == orders[2]
        assert orders[0] != orders[1]


def test_datasets_restore_their_own_state():
    """A dataset with randomly drawn shards can be resumed only by its own state."""

    class Own(ResampledShards):
        resumes_itself = True
        emitted = start = 0

        def __iter__(self):
            self.emitted, self.start = self.start, 0
            for shard in islice(super().__iter__(), self.emitted, None):
                self.emitted += 1
                yield shard["url"]

        def state_dict(self):
            return {**super().state_dict(), "emitted": self.emitted}

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.start = state["emitted"]

    def make():
        return RandomMix([Own("http://x/{0..99}.tar", nshards=40), Own("http://y/{0..99}.tar", nshards=40)])

    mix = make()
    stream = iter(mix)
    head = list(islice(stream, 20))
    assert {url[7] for url in head} == {"x", "y"}
    other = make()
    other.load_state_dict(json.loads(json.dumps(mix.state_dict())))
    assert list(other) == list(stream)


def test_a_state_of_another_mixture():
    with pytest.raises(StateMismatch, match=r"2 datasets.*1"):
        RoundRobin([[1]]).load_state_dict(RoundRobin([[1], [2]]).state_dict())


def test_a_state_of_other_weights():
    mix = RandomMix(lists([1, 9, 9]), [5, 1, 1], longest=True)
    list(islice(mix, 12))
    other = RandomMix(lists([1, 9, 9]), [0, 1, 1], longest=True)
    other.load_state_dict(mix.state_dict())
    with pytest.raises(StateMismatch, match="weights"):
        iter(other)
    nothing = RoundRobin(lists([1, 1]))
    fresh = nothing.state_dict()
    nothing.load_state_dict({**fresh, "emitted": 3, "ended": [[1, 1], [1, 0]]})
    with pytest.raises(StateMismatch):
        iter(nothing)
    nothing.load_state_dict({**fresh, "emitted": 1, "ended": [[9, 1]]})
    with pytest.raises(StateMismatch):
        iter(nothing)


def test_set_epoch_keeps_a_state_of_the_same_epoch():
    mix = RoundRobin(lists([5, 5]))
    list(islice(mix, 3))
    state = mix.state_dict()
    again = RoundRobin(lists([5, 5]))
    again.load_state_dict(state)
    again.set_epoch(0)
    assert next(iter(again)) == (1, 1)
    again.load_state_dict(state)
    again.set_epoch(1)
    assert next(iter(again)) == (0, 0)


def test_sources_are_closed():
    closed = []

    def source():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    class Dataset:
        def __iter__(self):
            return source()

    stream = iter(RoundRobin([Dataset(), Dataset()]))
    next(stream), next(stream)
    stream.close()
    assert closed == [True, True]
    mine = source()
    assert list(islice(RoundRobin([mine]), 2)) == [0, 1]
    assert next(mine) == 2
    mine.close()


def test_in_a_data_loader():
    from torch.utils.data import DataLoader

    mix = pickle.loads(pickle.dumps(RandomMix(lists([5, 5]), longest=True)))
    assert sorted(map(tuple, DataLoader(mix, batch_size=None))) == sorted(
        x for part in lists([5, 5]) for x in part
    )
    with as_worker(WorkerInfo(0, 1)):
        assert len(list(mix)) == 10
