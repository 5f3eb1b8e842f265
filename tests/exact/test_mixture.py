"""Mixtures: exact counts, evenly spread, and all samples of a dataset before any is repeated."""

from __future__ import annotations

import math
import pickle
from bisect import bisect_right
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import UsageError
from tarmac.exact.order.exact import ExactOrder
from tarmac.exact.order.mixture import MixedOrder, Quotas, counts_of

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=7)


@st.composite
def mixtures(draw):
    counts = draw(COUNTS)
    streams = draw(st.integers(1, 9))
    orders = [
        ExactOrder(
            [*draw(st.lists(st.integers(0, 8), max_size=5)), 1],
            seed=number,
            streams=draw(st.integers(1, 9)),
            window=draw(st.integers(1, 20)),
            shuffle=draw(st.booleans()),
        )
        for number in range(len(counts))
    ]
    shuffle = draw(st.booleans())
    return MixedOrder(
        orders, counts, seed=5, streams=streams, block=draw(st.integers(1, 12)), shuffle=shuffle
    )


def datasets_of(mixture, numbers):
    return np.searchsorted(mixture._bases, numbers, side="right") - 1


def whole(mixture, epoch=0):
    """Return all samples of an epoch as triples of dataset, shard and row."""
    numbers = mixture.at(epoch, np.arange(mixture.samples)).tolist()
    samples = []
    for number, dataset in zip(numbers, datasets_of(mixture, numbers).tolist(), strict=True):
        inside, ends = number - int(mixture._bases[dataset]), mixture.orders[dataset]._ends.tolist()
        shard = bisect_right(ends, inside)
        samples.append((dataset, shard, inside - (ends[shard - 1] if shard else 0)))
    return samples


@settings(deadline=None, derandomize=True, max_examples=60)
@given(mixtures(), st.integers(0, 4))
def test_counts_are_exact_and_datasets_continue(mixture, epoch):
    samples = mixture.at(epoch, np.arange(mixture.samples))
    owners = datasets_of(mixture, samples)
    for dataset, (order, count) in enumerate(zip(mixture.orders, mixture.counts, strict=True)):
        numbers = np.arange(epoch * count, (epoch + 1) * count)
        expected = Counter()
        for round_ in np.unique(numbers // order.samples).tolist():
            positions = numbers[numbers // order.samples == round_] % order.samples
            expected.update((mixture._bases[dataset] + order.at(round_, positions)).tolist())
        assert Counter(samples[owners == dataset].tolist()) == expected


@settings(deadline=None, derandomize=True, max_examples=25)
@given(mixtures(), st.integers(0, 3))
def test_positions_of_is_the_inverse(mixture, epoch):
    samples = mixture.at(epoch, np.arange(mixture.samples))
    for number in range(sum(order.samples for order in mixture.orders)):
        assert mixture.positions_of(epoch, number) == np.flatnonzero(samples == number).tolist()


@settings(deadline=None, derandomize=True, max_examples=40)
@given(mixtures(), st.lists(st.integers(0, 10**6), min_size=1, max_size=10), st.integers(0, 3))
def test_positions_can_be_requested_in_any_grouping(mixture, positions, epoch):
    if not mixture.samples:
        return
    positions = [position % mixture.samples for position in positions]
    samples = mixture.at(epoch, np.arange(mixture.samples))
    copy = pickle.loads(pickle.dumps(mixture))
    alone = [int(copy.at(epoch, [position])[0]) for position in positions]
    assert copy.at(epoch, positions).tolist() == alone == [samples[position] for position in positions]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(mixtures(), st.integers(0, 10**6), st.integers(0, 3))
def test_neighbours_come_from_the_dataset(mixture, position, epoch):
    if not mixture.samples:
        return
    position %= mixture.samples
    (number,) = mixture.at(epoch, [position]).tolist()
    (dataset,) = datasets_of(mixture, [number]).tolist()
    neighbours = np.array(list(mixture.neighbours(epoch, position)), np.int64)
    assert (datasets_of(mixture, neighbours) == dataset).all()
    base = int(mixture._bases[dataset])
    order, first = mixture.orders[dataset], epoch * mixture.counts[dataset]
    rounds = range(first // order.samples, (first + mixture.counts[dataset]) // order.samples + 1)
    # The same sample can come in several rounds of the epoch; one of them is at this position.
    assert (neighbours - base).tolist() in [
        list(order.neighbours(round_, *order.positions_of(round_, number - base))) for round_ in rounds
    ]


@settings(deadline=None, derandomize=True, max_examples=80)
@given(COUNTS, st.integers(1, 9))
def test_quotas_are_monotonic_and_close_to_the_share(counts, streams):
    quotas = Quotas(counts, streams)
    depth = math.ceil(math.log2(len(counts)))
    for stream, slots in enumerate(quotas.slots.tolist()):
        held = [[quotas.held(number, stream, x) for number in range(len(counts))] for x in range(slots + 1)]
        own = np.array([[mine for _, mine in row] for row in held]).reshape(slots + 1, len(counts))
        assert (own.sum(axis=1) == np.arange(slots + 1)).all()
        assert [[earlier for earlier, _ in row] for row in held] == (np.cumsum(own, axis=1) - own).tolist()
        steps = np.diff(own, axis=0)
        assert set(steps.ravel().tolist()) <= {0, 1}
        numbers = np.diff(quotas.before[:, stream])
        assert own[-1].tolist() == numbers.tolist()
        share = np.arange(slots + 1)[:, None] * numbers / max(slots, 1)
        assert abs(own - share).max() <= depth


@pytest.mark.parametrize("weights", [[0.6, 0.25, 0.1, 0.04, 0.0099, 0.0001], [1] * 10, [5, 1], range(1, 31)])
def test_datasets_are_spread_evenly(weights):
    samples = 64 * 256 * 12
    counts = counts_of(weights, samples)
    mixture = MixedOrder([ExactOrder([1000])] * len(counts), counts)
    dataset = datasets_of(mixture, mixture.at(1, np.arange(samples)))
    shares = np.array(counts) / samples
    for run, allowed in ((64 * 256, np.full(len(counts), 25)), (10_000, 4.5 * np.sqrt(10_000 * shares) + 1)):
        for begin in range(0, samples - run + 1, run):
            counted = np.bincount(dataset[begin : begin + run], minlength=len(counts))
            assert (abs(counted - run * shares) <= allowed).all()


def test_a_rare_dataset_alternates_between_streams():
    mixture = MixedOrder([ExactOrder([10**6]), ExactOrder([10])], [64 * 256 * 20 - 128, 128])
    dataset = datasets_of(mixture, mixture.at(0, np.arange(mixture.samples)))
    per_row = dataset.reshape(20, -1).sum(axis=1)
    assert 5 <= per_row.min() <= per_row.max() <= 8  # 6.4 expected


def test_slots_are_random():
    mixture = MixedOrder([ExactOrder([1000])] * 2, [64_000, 64_000])
    epochs = [datasets_of(mixture, mixture.at(epoch, np.arange(128_000))) for epoch in (0, 1)]
    other = MixedOrder(mixture.orders, mixture.counts, seed=1)
    other = datasets_of(other, other.at(0, np.arange(128_000)))
    for one, two in ((epochs[0], epochs[1]), (epochs[0], other), (epochs[0][:-1], epochs[0][1:])):
        assert abs((one == two).mean() - 0.5) < 0.01
    assert abs((epochs[0][:-64] == epochs[0][64:]).mean() - 0.5) < 0.01  # neighbours in a stream
    block = 64 * 256
    assert abs((epochs[0][:-block] == epochs[0][block:]).mean() - 0.5) < 0.01  # and in the next block


def test_all_samples_come_before_any_is_repeated():
    order = ExactOrder([10] * 10)
    mixture = MixedOrder([order, ExactOrder([50])], [30, 70])
    seen = Counter()
    for epoch in range(10):
        seen.update(sample for sample in whole(mixture, epoch) if sample[0] == 0)
        rounds, more = divmod((epoch + 1) * 30, 100)
        assert Counter(seen.values())[rounds + 1] == more
        assert len(seen) == (100 if rounds else more)
    assert set(seen.values()) == {3}


def test_a_small_dataset_is_repeated_evenly():
    mixture = MixedOrder([ExactOrder([20]), ExactOrder([1000])], [100, 10], streams=1, block=1000)
    rows = [row for dataset, _, row in whole(mixture) if dataset == 0]
    assert Counter(rows) == dict.fromkeys(range(20), 5)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_owns_whole_streams_of_each_dataset(ranks):
    orders = [ExactOrder([length], streams=8, window=64) for length in (700, 3100, 900)]
    mixture = MixedOrder(orders, [5000, 1300, 2600], streams=8)
    for epoch in (0, 3):
        positions = np.arange(mixture.samples)
        groups = list(mixture._groups(epoch, *mixture._numbers(epoch, positions)))
        assert len(groups) > 10  # datasets and rounds
        for _, _, inner, at in groups:
            owners = {(stream, position % ranks) for stream, position in zip(inner % 8, at, strict=True)}
            assert len(owners) == len({stream for stream, _ in owners})


def test_without_shuffle_datasets_follow_one_another():
    orders = [
        ExactOrder([3, 2], shuffle=False),
        ExactOrder([4], shuffle=False),
        ExactOrder([2], shuffle=False),
    ]
    mixture = MixedOrder(orders, [3, 0, 5], shuffle=False)
    assert whole(mixture, 0) == [(0, 0, 0), (0, 0, 1), (0, 0, 2), *((2, 0, row) for row in (0, 1, 0, 1, 0))]
    assert whole(mixture, 1) == [(0, 1, 0), (0, 1, 1), (0, 0, 0), *((2, 0, row) for row in (1, 0, 1, 0, 1))]


def shown(samples):
    return " ".join("/".join(map(str, sample)) for sample in samples)


def test_saved_states_depend_on_this_order():
    mixture = MixedOrder([ExactOrder([9, 4]), ExactOrder([30], seed=1)], [10, 6], seed=3, streams=2, block=4)
    assert shown(whole(mixture, 2)[:8]) == "0/0/4 0/0/7 1/0/26 0/1/3 0/1/1 1/0/23 1/0/2 0/0/2"
    assert shown(whole(mixture, 2)[8:]) == "0/0/2 0/0/0 0/0/6 1/0/12 1/0/29 0/0/7 0/0/3 1/0/16"


def test_a_billion_samples():
    orders = [ExactOrder(np.full(10_000, 50_000), seed=seed) for seed in range(3)]
    mixture = MixedOrder(orders, [900_000_000, 99_999_999, 1])
    positions = np.array([0, 1, 999_999_999, 123_456_789])
    for position, number in zip(positions.tolist(), mixture.at(10**12, positions).tolist(), strict=True):
        assert position in mixture.positions_of(10**12, number)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=10).filter(any), st.integers(0, 10**12))
def test_counts_from_weights(weights, samples):
    counts = counts_of(weights, samples)
    assert sum(counts) == samples
    total = math.fsum(weight / max(weights) for weight in weights)
    for weight, count in zip(weights, counts, strict=True):
        assert abs(count - weight / max(weights) / total * samples) < 1 + samples * 1e-13


def test_remainders_go_to_the_largest_and_then_to_the_first():
    assert counts_of([1, 1, 1], 10) == [4, 3, 3]
    assert counts_of([0.5, 0.3, 0.2], 7) == [4, 2, 1]  # 3.5, 2.1 and 1.4
    assert counts_of([1, 0, 1], 3) == [2, 0, 1]


@pytest.mark.parametrize("weights", [[], [0, 0], [-1, 2], [math.nan], [math.inf, 1]])
def test_invalid_weights(weights):
    with pytest.raises(UsageError, match="`weights`"):
        counts_of(weights, 10)


def test_a_negative_number_of_samples():
    with pytest.raises(UsageError, match="`samples`"):
        counts_of([1], -1)


@pytest.mark.parametrize(
    ("lengths", "counts", "options", "words"),
    [
        ([5], [2**31], {"streams": 1}, "2147483648"),
        ([5], [1], {"streams": 0}, "`streams`"),
        ([5], [1], {"block": 0}, "`block`"),
    ],
)
def test_invalid_mixtures(lengths, counts, options, words):
    with pytest.raises(ValueError, match=words):
        MixedOrder([ExactOrder([length]) for length in lengths], counts, **options)


def test_invalid_positions():
    mixture = MixedOrder([ExactOrder([5]), ExactOrder([])], [5, 0])
    assert mixture.positions_of(0, 4) != mixture.positions_of(0, 3)
    for number in (-1, 5):
        with pytest.raises(IndexError, match=rf"sample {number} .*\b5 "):
            mixture.positions_of(0, number)
    with pytest.raises(IndexError, match="position 5 "):
        mixture.at(0, [5])
    with pytest.raises(ValueError, match="epoch"):
        mixture.at(-1, [0])
