"""The order of an epoch: every sample once, invertible, stable over versions, and cheap at any size."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.work import calls
from tarmac.exact.order.exact import ExactOrder

LENGTHS = st.lists(st.integers(0, 30), max_size=12)
OPTIONS = st.fixed_dictionaries(
    {
        "streams": st.integers(1, 20),
        "window": st.integers(1, 40),
        "shuffle": st.booleans(),
        "seed": st.one_of(st.integers(0, 3), st.text(max_size=3)),
    }
)


def pairs(order, numbers):
    """Return samples as pairs of shard and row."""
    ends = np.cumsum(order._lengths)
    shards = np.searchsorted(ends, numbers, side="right")
    rows = numbers - (ends - order._lengths)[shards]
    return list(zip(shards.tolist(), rows.tolist(), strict=True))


def whole(order, epoch=0):
    """Return all samples of an epoch as pairs."""
    return pairs(order, order.at(epoch, np.arange(order.samples)))


def all_samples(lengths):
    return [(shard, row) for shard, length in enumerate(lengths) for row in range(length)]


def stream_sizes(order):
    """Return the number of samples of each stream."""
    return [(order.samples - stream + order.streams - 1) // order.streams for stream in range(order.streams)]


@settings(deadline=None, derandomize=True, max_examples=200)
@given(LENGTHS, OPTIONS, st.integers(0, 10**6))
def test_every_sample_once_and_invertible(lengths, options, epoch):
    order = ExactOrder(lengths, **options)
    samples = whole(order, epoch)
    assert sorted(samples) == all_samples(lengths)
    numbers = order.at(epoch, np.arange(order.samples))
    assert order.position_of(epoch, numbers).tolist() == list(range(order.samples))


@settings(deadline=None, derandomize=True)
@given(LENGTHS, OPTIONS, st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_positions_can_be_requested_in_any_grouping(lengths, options, positions):
    order = ExactOrder(lengths, **options)
    if not order.samples:
        return
    positions = [position % order.samples for position in positions]
    samples = order.at(3, np.arange(order.samples))
    again = ExactOrder(lengths, **options)
    batch = again.at(3, np.array(positions))
    assert batch.dtype == np.int64
    alone = [int(again.at(3, position)[0]) for position in positions]
    assert batch.tolist() == alone == [samples[position] for position in positions]


@settings(deadline=None, derandomize=True)
@given(LENGTHS, OPTIONS, st.integers(0, 3), st.integers(0, 10**6))
def test_neighbours_are_the_rest_of_the_window_in_order(lengths, options, epoch, position):
    order = ExactOrder(lengths, **options)
    if not order.samples:
        return
    position %= order.samples
    window = order.window_at(epoch, position)
    assert position in window
    assert len(window) <= order.window
    assert all(order.window_at(epoch, other) == window for other in window)
    samples = order.at(epoch, np.arange(order.samples))
    index = window.index(position)
    expected = [samples[window[(index + step) % len(window)]] for step in range(1, len(window))]
    assert list(order.neighbours(epoch, position)) == expected


@settings(deadline=None, derandomize=True)
@given(LENGTHS, OPTIONS)
def test_without_shuffle_the_order_is_that_of_the_shards(lengths, options):
    order = ExactOrder(lengths, **{**options, "shuffle": False})
    assert whole(order, 5) == all_samples(lengths)


def test_many_neighbours():
    order = ExactOrder([500, 500], streams=1, window=300, seed=4)
    samples = order.at(0, np.arange(1000))
    window = order.window_at(0, 650)
    assert len(window) == 300
    others = [*range(651, window.stop), *range(window.start, 650)]
    assert list(order.neighbours(0, 650)) == [samples[position] for position in others]


@settings(deadline=None, derandomize=True)
@given(LENGTHS, st.integers(1, 20), st.integers(1, 40), st.integers(0, 5))
def test_streams_are_ranges_of_the_line_and_windows_ranges_of_streams(lengths, streams, window, epoch):
    assume(sum(lengths) > window)  # otherwise the line is permuted as a whole
    line = whole(ExactOrder(lengths, streams=1, window=1), epoch)  # one stream, nothing permuted
    order = ExactOrder(lengths, streams=streams, window=window)
    samples = whole(order, epoch)
    for stream, size in enumerate(stream_sizes(order)):
        index = 0
        while index < size:
            positions = order.window_at(epoch, index * streams + stream)
            assert positions.start == index * streams + stream
            assert sorted(samples[p] for p in positions) == sorted(line[: len(positions)])
            line = line[len(positions) :]
            index += len(positions)
        assert index == size
    assert not line


def test_window_borders_differ_between_epochs_and_streams():
    order = ExactOrder([100_000], streams=8, window=1000)
    firsts = {len(order.window_at(epoch, stream)) for epoch in range(4) for stream in range(8)}
    assert len(firsts) > 28
    assert max(firsts) <= 1000


def test_each_window_has_its_own_permutation():
    order = ExactOrder([2000], streams=2, window=100)
    rows = np.array(whole(order))[:, 1]
    windows = [order.window_at(0, position) for position in (*range(300, 1700, 200), *range(301, 1700, 200))]
    orders = {tuple(rows[window] - rows[window].min()) for window in windows if len(window) == 100}
    assert len(orders) == len(windows) == 14


def test_a_rank_reads_few_shards():
    lengths = [1000] * 64
    order = ExactOrder(lengths, streams=64, window=500)
    shards = np.array(whole(order, 1))[:, 0]
    for rank in range(8):
        assert len(set(shards[rank::8].tolist())) <= 16  # each of its 8 streams begins somewhere in a shard


def test_a_dataset_that_fits_into_one_window_is_permuted_as_a_whole():
    order = ExactOrder([5000], seed=2, streams=64, window=5000)
    streams = [{row for _, row in whole(order, epoch)[::64]} for epoch in range(2)]
    assert len(streams[0]) == len(streams[1]) == 79
    assert max(streams[0]) - min(streams[0]) > 4500  # not a range of the shard
    assert len(streams[0] & streams[1]) < 10  # and different ones each epoch


def test_the_streams_of_few_shards_are_cut_differently_each_epoch():
    order = ExactOrder([50_000], streams=8, window=1000)
    firsts = [min(order.at(epoch, np.arange(0, 8000, 8)).tolist()) for epoch in range(5)]
    assert len(set(firsts)) == 5


def test_the_shuffle_is_a_shuffle():
    order = ExactOrder([100] * 200, seed=1)
    line = order.at(0, np.arange(20_000))
    assert abs(np.corrcoef(line, np.arange(20_000))[0, 1]) < 0.03
    assert abs(np.corrcoef(line[:-1], line[1:])[0, 1]) < 0.03
    for stream in range(64):
        assert (np.diff(line[stream::64]) == 1).sum() < 8  # expected: about one


def test_epochs_and_seeds_differ():
    orders = {
        (seed, epoch): ExactOrder([10] * 1000, seed=seed).at(epoch, np.arange(10_000))
        for seed in (0, 1, "0", "a")
        for epoch in (0, 1, 2, 2**70)
    }
    assert len(orders) == 16
    for one in orders:
        for other in orders:
            if one != other:
                assert (orders[one] == orders[other]).sum() < 12, (one, other)  # expected: one
                # Samples of a shard stay together, so there are only as many independent positions as shards.
                assert abs(np.corrcoef(orders[one], orders[other])[0, 1]) < 0.13


def shown(samples):
    return " ".join("/".join(map(str, sample)) for sample in samples)


def test_saved_states_depend_on_this_order():
    order = ExactOrder([5, 0, 7, 3, 9, 1], seed=7, streams=3, window=4)
    assert shown(whole(order, 0)[:12]) == "4/3 2/1 3/2 4/2 2/0 0/0 4/1 2/2 3/1 4/5 2/3 0/4"
    assert shown(whole(order, 1)[:6]) == "3/2 4/3 2/2 3/1 4/2 2/0"
    large = ExactOrder(np.arange(1000, 3000), seed="a name")
    samples = pairs(large, large.at(12, [0, 1, 2, 1_000_000, large.samples - 1]))
    assert samples == [(490, 719), (1835, 2804), (363, 1208), (1807, 2488), (1473, 1619)]


def test_a_billion_samples_in_a_hundred_thousand_shards():
    lengths = np.full(100_000, 10_000)
    order = ExactOrder(lengths, seed=3)
    positions = np.array([0, 5, 10**9 - 1, 123_456_789])
    assert calls(lambda: order.at(0, positions)) < 10_000
    assert (order.position_of(0, order.at(0, positions)) == positions).all()
    tracemalloc.start()
    try:
        order.at(1, positions)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 40 * len(lengths)
    assert most < 100 * len(lengths)


def test_few_epochs_are_cached():
    order = ExactOrder(np.full(100_000, 10), seed=3)
    tracemalloc.start()
    try:
        for epoch in range(8):
            order.at(epoch, [0])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4.5 * 24 * 100_000


def test_pickles_are_small_and_equivalent():
    order = ExactOrder(np.full(1000, 10), seed="x", window=50)
    size = len(pickle.dumps(order))
    samples = whole(order, 2)
    assert len(pickle.dumps(order)) == size < 9000
    copy = pickle.loads(pickle.dumps(order))
    assert whole(copy, 2) == samples
    assert copy.samples == 10_000


def test_lengths_are_copied():
    lengths = np.full(10, 10)
    order = ExactOrder(lengths)
    samples = whole(order)
    lengths[:] = 1
    assert whole(order, 0) == samples
    assert sorted(whole(order, 1)) == sorted(samples)


def test_no_samples():
    for lengths in ([], [0, 0]):
        order = ExactOrder(lengths)
        assert order.samples == 0
        assert order.at(0, []).shape == (0,)
        with pytest.raises(IndexError, match="0 positions"):
            order.at(0, [0])


@pytest.mark.parametrize("shuffle", [True, False])
def test_positions_outside_of_the_epoch(shuffle):
    order = ExactOrder([3, 4], shuffle=shuffle)
    for position in (-1, 7):
        with pytest.raises(IndexError, match=rf"position {position} .*\b7 "):
            order.at(0, [0, position])
        with pytest.raises(IndexError, match=f"position {position} "):
            order.window_at(0, position)
    with pytest.raises(ValueError, match="2 dimensions"):
        order.at(0, [[0], [1]])
    with pytest.raises(TypeError, match="integers"):
        order.at(0, [0.5])


@pytest.mark.parametrize("number", [-1, 7])
def test_samples_out_of_range(number):
    with pytest.raises(IndexError, match=rf"sample {number} .*\b7 "):
        ExactOrder([3, 4]).position_of(0, [0, number])


@pytest.mark.parametrize(
    ("lengths", "options", "words"),
    [
        ([1, -1], {}, r"lengths\[1\]"),
        ([[1]], {}, "2 dimensions"),
        ([2**62, 1], {}, "2\\*\\*62"),
        ([1], {"streams": 0}, "`streams`"),
        ([1], {"streams": 2**40}, "`streams`"),
        ([1], {"window": 0}, "`window`"),
    ],
)
def test_invalid_arguments(lengths, options, words):
    with pytest.raises(ValueError, match=words):
        ExactOrder(lengths, **options)


def test_seeds_and_epochs_are_checked():
    with pytest.raises(TypeError, match="seed"):
        ExactOrder([1], seed=[1])
    with pytest.raises(ValueError, match="epoch"):
        ExactOrder([1]).at(-1, [0])
    with pytest.raises(TypeError, match="integers"):
        ExactOrder([1.5])
