"""The order of epochs as sample numbers: every sample once, and its inverse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import rounds
from tarmac.exact.dataset import Dataset
from tarmac.exact.mix import Mix
from tarmac.exact.order.mixture import substitutes
from tarmac.indexing.manifest import Manifest, Shard


def of_lengths(lengths, name="a"):
    """Return a dataset of which only the lengths of its shards are known."""
    return Dataset(
        Manifest([Shard(f"/{name}{i}.tar", n, 1, None, f"{name}{i}") for i, n in enumerate(lengths)])
    )


LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any)


@settings(max_examples=rounds(60), derandomize=True, deadline=None)
@given(
    LENGTHS, st.booleans(), st.integers(0, 3), st.sampled_from([1, 4, 64]), st.sampled_from([1, 7, 16_384])
)
def test_every_sample_once(lengths, shuffle, epoch, streams, window):
    ds = of_lengths(lengths)
    order = ds._order(3, shuffle=shuffle, streams=streams, window=window)
    numbers = order.at(epoch, np.arange(len(ds)))
    assert sorted(numbers.tolist()) == list(range(len(ds)))
    assert order.samples == len(ds)
    if not shuffle and streams == 1:
        assert numbers.tolist() == list(range(len(ds)))
    for position, index in enumerate(numbers.tolist()):
        assert order.positions_of(epoch, index) == [position]


@settings(max_examples=rounds(30), derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(LENGTHS, st.integers(0, 60)), min_size=1, max_size=3), st.booleans(), st.integers(0, 2)
)
def test_mixes_have_their_counts(items, shuffle, epoch):
    mix = Mix(
        [of_lengths(lengths, f"d{n}").take_per_epoch(count) for n, (lengths, count) in enumerate(items)]
    )
    if not len(mix):
        return
    order = mix._order("s", shuffle=shuffle)
    numbers = order.at(epoch, np.arange(len(mix)))
    ends = np.cumsum([len(ds) for ds in mix.datasets])
    owners = np.searchsorted(ends, numbers, side="right")
    assert np.bincount(owners, minlength=len(items)).tolist() == list(mix.counts)
    for index in range(int(ends[-1])):
        assert order.positions_of(epoch, index) == np.flatnonzero(numbers == index).tolist()
    for number, (ds, count) in enumerate(zip(mix.datasets, mix.counts, strict=True)):
        times = np.bincount(numbers[owners == number] - (ends[number] - len(ds)), minlength=len(ds))
        if epoch == 0 and count:
            assert times.max() - times.min() <= 1  # all before any is repeated


@pytest.mark.parametrize("mixed", [False, True])
def test_substitutes_come_from_the_window_first(mixed):
    ds = of_lengths([5, 0, 6])
    mix = Mix([ds, of_lengths([4], "b").repeat(2)]) if mixed else ds
    order = mix._order(1, streams=1, window=4)
    epoch = order.at(0, np.arange(order.samples)).tolist()
    neighbours = 0
    for position, index in enumerate(epoch):
        others = list(substitutes(order, 0, position))
        window = others[: 1 - order.samples]  # then come all other positions of the epoch
        neighbours += len(window)
        assert index not in window
        assert all((other < 11) == (index < 11) for other in window)  # so a mix keeps its proportions
        assert others[1 - order.samples :] == epoch[position + 1 :] + epoch[:position]
    assert neighbours > order.samples


def test_last_position_of_a_shard():
    order = of_lengths([5, 6])._order(1)
    epoch = order.at(2, np.arange(11))
    assert order.last_position(2, 0) == max(np.flatnonzero(epoch < 5))
    assert order.last_position(2, 1) == max(np.flatnonzero(epoch >= 5))
    assert Mix([of_lengths([5, 6])])._order(1).last_position(2, 0) is None


def test_seeds_epochs_and_datasets_differ():
    ds = of_lengths([50] * 4)
    positions = np.arange(200)
    orders = [ds._order(seed).at(epoch, positions).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(map(tuple, orders))) == 4
    mixed = Mix([ds, of_lengths([50] * 4, "b")])._order(0)
    first, second = (order.at(0, positions) for order in mixed.orders)
    assert (first != second).any()
    assert (ds._order(0).at(0, positions) == orders[0]).all()


def test_selected_samples_only():
    ds = of_lengths([10, 10])
    part = replace(ds._parts[0], lengths=np.array([3, 4]), rows=[np.arange(3), np.arange(4)])
    order = Dataset._of_parts([part])._order(0)
    assert sorted(order.at(0, np.arange(7)).tolist()) == list(range(7))


def test_an_empty_dataset():
    order = of_lengths([0])._order()
    assert order.samples == 0
    with pytest.raises(IndexError):
        order.at(0, [0])
