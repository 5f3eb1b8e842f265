"""Shuffles: every item once, another order in each epoch, the same in each run."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.workers import all_workers, as_worker
from tarmac.errors import UsageError
from tarmac.runtime.worker_info import WorkerInfo
from tarmac.stream.shuffle import Rsample, ShardShuffle, Shuffle, buffer_shuffle, detshuffle, sample_bytes

SIZES = st.integers(0, 30)


@settings(deadline=None, derandomize=True)
@given(SIZES, SIZES, st.integers(0, 60))
def test_every_item_once(bufsize, initial, count):
    items = list(buffer_shuffle(range(count), bufsize, initial, random.Random(0)))
    assert sorted(items) == list(range(count))


@settings(deadline=None, derandomize=True)
@given(SIZES, SIZES, st.integers(0, 60), st.integers())
def test_the_order_is_that_of_the_webdataset_library(bufsize, initial, count, seed):
    ours = buffer_shuffle(range(count), bufsize, initial, random.Random(seed))
    assert list(ours) == list(
        webdataset.filters._shuffle(iter(range(count)), bufsize, initial, random.Random(seed))
    )


def test_the_buffer_is_bounded():
    read = []
    source = (read.append(n) or n for n in itertools.count())
    stream = buffer_shuffle(source, 10, 4, random.Random(0))
    next(stream)
    assert len(read) == 4
    for _ in range(3):
        next(stream)
    assert len(read) == 10
    for _ in range(100):
        next(stream)
    assert len(read) <= 10 + 104


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 100))
def test_bytes_in_the_buffer_are_bounded(sizes, limit):
    held = 0

    def source():
        nonlocal held
        for number, size in enumerate(sizes):
            assert held <= limit + 50
            held += size
            yield {"number": number, "data": bytes(size)}

    numbers = []
    for sample in buffer_shuffle(source(), 1000, 1000, random.Random(0), max_bytes=limit):
        held -= len(sample["data"])
        numbers.append(sample["number"])
    assert sorted(numbers) == list(range(len(sizes)))


def test_bytes_of_samples():
    import numpy as np

    assert sample_bytes({"a": b"123", "b": bytearray(2), "c": memoryview(b"1"), "d": 5, "e": None}) == 6
    assert sample_bytes((np.zeros(3, np.float64), ["ab", {"x": b"1"}])) == 27
    assert sample_bytes(7) == 0


def test_claimed_shards_are_not_held_back():
    claimed = [{"url": f"{n}.tar._1_", "claimed": True} for n in range(20)]
    for stage in (Shuffle(10), detshuffle(10), ShardShuffle(10), ShardShuffle(True)):
        assert list(stage(claimed)) == claimed


# -- Shuffle --------------------------------------------------------------------------------------


def test_issue_172_each_epoch_has_another_order():
    """Issue 172 of webdataset: a shuffle with a seed repeated itself in each epoch."""
    shuffle = Shuffle(100, seed=5)
    orders = [tuple(shuffle(range(50))) for _ in range(3)]
    assert len(set(orders)) == 3
    again = Shuffle(100, seed=5)
    again.set_epoch(1)
    assert [tuple(again(iter(range(50)))) for _ in range(2)] == orders[1:]


def test_seed_epoch_rank_and_worker_all_count():
    """In the first epoch of a given seed, all readers have the order of the webdataset library."""
    orders, first = set(), set()
    for info in all_workers(3, 3):
        for seed in range(3):
            for epoch in range(3):
                with as_worker(info):
                    shuffle = Shuffle(100, seed=seed)
                    shuffle.set_epoch(epoch)
                    (orders if epoch else first).add(tuple(shuffle(range(50))))
    assert len(orders) == 3 * 3 * 3 * 2
    assert len(first) == 3
    assert not orders & first


def test_readers_differ_in_the_first_epoch_without_a_seed():
    """Ranks that all read the whole dataset read it in different orders, as with the webdataset library."""
    orders = set()
    for info in all_workers(3, 3):
        with as_worker(info):
            orders.add(tuple(Shuffle(100)(range(50))))
    assert len(orders) == 9


def test_the_seed_of_the_environment(monkeypatch):
    default, zero = list(Shuffle(100)(range(50))), list(Shuffle(100, seed=0)(range(50)))
    assert default == zero
    monkeypatch.setenv("WDS_SEED", "3")
    assert list(Shuffle(100)(range(50))) == list(Shuffle(100, seed=3)(range(50))) != default
    assert list(detshuffle(seed=3)(range(9))) == list(detshuffle(seed=3)(range(9)))


def test_a_given_generator():
    one = list(Shuffle(100, rng=random.Random(1))(range(50)))
    assert one == list(buffer_shuffle(range(50), 100, 100, random.Random(1)))
    with pytest.raises(UsageError, match="`rng`"):
        Shuffle(100, rng=random.Random(1), seed=1)


@pytest.mark.parametrize(("field", "size"), [("bufsize", -1), ("initial", -1), ("max_bytes", 0)])
def test_invalid_sizes(field, size):
    with pytest.raises(UsageError, match=f"`{field}`"):
        Shuffle(**{field: size})


def failing():
    yield from range(5)
    raise OSError("lost")


@pytest.mark.parametrize("answer", [True, False])
def test_a_handler_saves_buffered_samples(answer):
    """The webdataset library ignored the handler of a shuffle."""
    with pytest.raises(OSError, match="lost"):
        list(Shuffle(100)(failing()))
    errors = []
    items = list(Shuffle(100, handler=lambda error: errors.append(error) or answer)(failing()))
    assert sorted(items) == [0, 1, 2, 3, 4]
    assert [str(error) for error in errors] == ["lost"]


def test_a_handler_may_continue():
    class FailsOnce:
        items = iter([1, OSError("once"), 2])

        def __iter__(self):
            return self

        def __next__(self):
            item = next(self.items)
            if isinstance(item, Exception):
                raise item
            return item

    assert sorted(Shuffle(10, handler=lambda error: True)(FailsOnce())) == [1, 2]


def test_max_bytes_reaches_the_buffer():
    samples = [{"n": n, "data": bytes(10)} for n in range(50)]
    numbers = [s["n"] for s in Shuffle(1000, 1000, seed=1, max_bytes=30)(samples)]
    assert sorted(numbers) == list(range(50))
    assert all(n <= index + 4 for index, n in enumerate(numbers))


# -- detshuffle -----------------------------------------------------------------------------------


def test_detshuffle_matches_the_webdataset_library():
    theirs = webdataset.detshuffle(20, 10, seed=3).run(iter(range(50)))
    assert list(detshuffle(20, 10, seed=3).run(range(50))) == list(theirs)


def test_detshuffle_counts_epochs():
    stage = detshuffle(100, seed=1)
    assert stage.epoch == -1
    orders = [tuple(stage(range(50))) for _ in range(3)]
    assert stage.epoch == 2
    assert len(set(orders)) == 3
    stage.epoch = 0
    assert tuple(stage(range(50))) == orders[1]
    assert tuple(detshuffle(100, seed=1, epoch=1)(range(50))) == orders[2]
    stage.set_epoch(2)
    assert tuple(stage(range(50))) == orders[2]
    assert stage.epoch == 2


def test_detshuffle_is_the_same_on_all_workers():
    orders = {}
    for info in all_workers(2, 2):
        for seed in range(4):
            for epoch in range(4):
                with as_worker(info):
                    order = tuple(detshuffle(100, seed=10 * seed, epoch=epoch - 1)(range(50)))
                assert orders.setdefault((seed, epoch), order) == order
    assert len(set(orders.values())) == 16


# -- ShardShuffle ---------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 60), st.one_of(st.integers(0, 80), st.booleans(), st.none()), st.integers())
def test_shards_come_once_in_the_same_order_on_all_workers(count, size, seed):
    orders = set()
    for info in (WorkerInfo(), WorkerInfo(1, 2, 1, 2)):
        with as_worker(info):
            orders.add(tuple(ShardShuffle(size, seed)(range(count))))
    [order] = orders
    assert sorted(order) == list(range(count))
    if not size:
        assert order == tuple(range(count))


@pytest.mark.parametrize("size", [True, 100, 10])
def test_pr_299_shards_in_another_order_in_each_epoch(size):
    """PR 299 of webdataset: shardshuffle gave the same order in each epoch."""
    stage = ShardShuffle(size, seed=2)
    orders = [tuple(stage(range(100))) for _ in range(5)]
    assert len(set(orders)) == 5


def test_a_list_is_permuted_uniformly():
    """Each shard comes first about as often as any other."""
    for size in (True, 5):
        stage = ShardShuffle(size)
        firsts = [next(iter(stage(range(5)))) for _ in range(1000)]
        assert all(150 < firsts.count(n) < 250 for n in range(5))


def test_endless_shards():
    read = []
    source = (read.append(n) or n for n in itertools.count())
    stream = ShardShuffle(10)(source)
    items = [next(stream) for _ in range(1000)]
    assert len(set(items)) == 1000
    assert len(read) <= 1012


def test_lists_too_long_for_memory(monkeypatch):
    from tarmac.stream import shuffle

    monkeypatch.setattr(shuffle, "MAX_LIST", 20)
    order = list(ShardShuffle(True)(range(100)))
    assert sorted(order) == list(range(100))
    assert order != list(range(100))
    with pytest.raises(UsageError, match="`shardshuffle`"):
        ShardShuffle(-1)


def test_issue_62_shards_change_workers():
    """Issues 62, 71, 350, 492 of webdataset: each worker kept its shards, as splitting came before shuffling."""
    from tarmac.stream.shards.lists import SimpleShardList
    from tarmac.stream.shards.split import split_by_worker

    taken = set()
    for epoch in range(20):
        for info in all_workers(1, 2):
            with as_worker(info):
                stage = ShardShuffle(True)
                stage.set_epoch(epoch)
                for shard in split_by_worker(stage(SimpleShardList("http://x/{0..3}.tar"))):
                    taken.add((info.worker, shard["url"]))
    assert len(taken) == 8


# -- Rsample --------------------------------------------------------------------------------------


def test_a_random_subset():
    stage = Rsample(0.25, seed=1)
    first, second = list(stage(range(2000))), list(stage(range(2000)))
    assert 400 < len(first) < 600
    assert first != second
    assert list(Rsample(0.25, seed=1)(range(2000))) == first
    with as_worker(WorkerInfo(1, 2)):
        assert list(Rsample(0.25, seed=1)(range(2000))) != first
    assert list(Rsample(0)(range(9))) == []
    assert list(Rsample(1)(range(9))) == list(range(9))
    for invalid in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match="`p`"):
            Rsample(invalid)


def test_stages_are_picklable():
    for stage in (Shuffle(10, seed=1), detshuffle(10), ShardShuffle(10), Rsample(0.5)):
        copy = pickle.loads(pickle.dumps(stage))
        assert list(copy(range(50))) == list(stage(range(50)))
