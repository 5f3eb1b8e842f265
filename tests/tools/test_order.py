"""Permutations are the same, whatever pieces they are computed in."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarmac.tools.order import Interleaved, Listed, Mixed, Shuffled, permutation_text


def whole(order):
    return order.at(0, order.size).tolist()


def in_pieces(order, cut):
    return [n for start in range(0, order.size, cut) for n in order.at(start, min(start + cut, order.size))]


LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=6)


@given(st.integers(1, 500), st.integers(0, 3), st.integers(1, 50))
def test_a_shuffle_is_a_permutation(size, seed, cut):
    order = Shuffled(size, seed)
    assert sorted(whole(order)) == list(range(size))
    assert in_pieces(order, cut) == whole(order)


def test_another_seed_is_another_order():
    assert whole(Shuffled(100, 1)) != whole(Shuffled(100, 2))
    assert whole(Shuffled(100, 1)) == whole(Shuffled(100, 1))
    assert Shuffled(0, 1).at(0, 0).tolist() == []


@pytest.mark.parametrize("until", ["first", "all"])
def test_another_seed_is_another_mixture(until):
    one, again, other = (whole(Mixed((100, 100), (2.0, 1.0), seed, until)) for seed in (1, 1, 2))
    assert one == again != other


def interleaved_plainly(lengths, ways):
    """Interleave sample by sample."""
    starts = np.cumsum([0, *lengths])
    waiting = [list(range(starts[n], starts[n + 1])) for n in range(len(lengths)) if lengths[n]]
    result, now = [], []
    while waiting or now:
        while waiting and len(now) < ways:
            now.append(waiting.pop(0))
        result += [shard.pop(0) for shard in now]
        now = [shard for shard in now if shard]
    return result


@given(LENGTHS, st.integers(1, 4), st.integers(1, 9))
def test_interleaving(lengths, ways, cut):
    order = Interleaved(tuple(lengths), ways)
    assert whole(order) == interleaved_plainly(lengths, ways)
    assert in_pieces(order, cut) == whole(order)


@given(LENGTHS, st.data())
def test_a_mixture_keeps_all_and_the_order_of_each(lengths, data):
    weights = tuple(data.draw(st.floats(0.1, 10)) for _ in lengths)
    order = Mixed(tuple(lengths), weights, 1)
    assert sorted(whole(order)) == list(range(sum(lengths)))
    starts = np.cumsum([0, *lengths])
    for number in range(len(lengths)):
        own = [n for n in whole(order) if starts[number] <= n < starts[number + 1]]
        assert own == sorted(own)
    until_first = whole(Mixed(tuple(lengths), weights, 1, "first"))
    assert until_first == whole(order)[: len(until_first)]


def test_a_mixture_has_the_weights_everywhere():
    order = Mixed((40_000, 40_000), (3.0, 1.0), 7, "first")
    first = np.array(whole(order)) < 40_000
    assert abs(len(first) - 53_333) < 5
    for part in np.array_split(first, 20):
        assert abs(part.mean() - 0.75) < 0.01


def test_a_permutation_in_a_file(tmp_path):
    np.save(tmp_path / "o.npy", np.array([2, 0, 1]))
    order = Listed(str(tmp_path / "o.npy"))
    assert (order.size, whole(order)) == (3, [2, 0, 1])
    assert whole(pickle.loads(pickle.dumps(order))) == [2, 0, 1]
    before = permutation_text(order)
    np.save(tmp_path / "o.npy", np.array([2, 1, 0]))
    assert permutation_text(Listed(str(tmp_path / "o.npy"))) != before


@pytest.mark.parametrize(
    "order", [Shuffled(900, 1), Interleaved((400, 500), 2), Mixed((400, 500), (1.0, 2.0), 3)]
)
def test_permutations_pickle_without_their_cache(order):
    whole(order)
    again = pickle.loads(pickle.dumps(order))
    assert whole(again) == whole(order)
    assert permutation_text(again) == permutation_text(order)
    assert len(pickle.dumps(order)) < 300
