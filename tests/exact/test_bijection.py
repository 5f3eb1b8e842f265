"""The keyed bijection: a bijection for every size and key, its inverse, and no visible pattern."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.exact.order.bijection import MAX_SIZE, mix_key, permute, unpermute

KEYS = st.integers(0, 2**64 - 1)


def test_every_index_once_and_back():
    keys = np.arange(10, dtype=np.uint64)[:, None]
    for size in [*range(1, 301), 1023, 1024, 1025, 16_384, 99_991]:
        image = permute(np.arange(size), size, keys)
        assert image.dtype == np.int64
        assert (np.sort(image) == np.arange(size)).all(), size
        assert (unpermute(image, size, keys) == np.arange(size)).all(), size


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, MAX_SIZE), st.integers(0), KEYS), min_size=1, max_size=20))
def test_each_element_can_have_its_own_size_and_key(cases):
    sizes = np.array([size for size, _, _ in cases])
    index = np.array([number % size for size, number, _ in cases])
    keys = np.array([key for _, _, key in cases], np.uint64)
    image = permute(index, sizes, keys)
    assert ((image >= 0) & (image < sizes)).all()
    assert (unpermute(image, sizes, keys) == index).all()
    assert (permute(unpermute(index, sizes, keys), sizes, keys) == index).all()
    alone = [int(permute(*case)[0]) for case in zip(index, sizes, keys, strict=True)]
    assert image.tolist() == alone


@pytest.mark.parametrize("size", [MAX_SIZE, MAX_SIZE - 1, (1 << 53) + 1, (94_906_267**2), 3])
def test_ends_of_large_sizes(size):
    index = np.array([0, 1, size // 2, size - 2, size - 1])
    image = permute(index, size, 7)
    assert len(set(image.tolist())) == len(set(index.tolist()))
    assert (unpermute(image, size, 7) == index).all()


@pytest.mark.parametrize(("index", "size"), [(5, 5), (-1, 5), (0, 0), (0, MAX_SIZE + 1), ([0, 3], [4, 3])])
def test_indices_out_of_range(index, size):
    for function in (permute, unpermute):
        with pytest.raises(ValueError, match="index"):
            function(index, size, 1)


def chi_square(counts):
    """Return the deviation of counts from uniform, in standard deviations."""
    expected = counts.mean()
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [2, 3, 5, 7, 10, 33, 100])
def test_images_are_uniform(size):
    image = permute(np.arange(size), size, np.arange(20_000)[:, None])
    for index in (0, size // 2, size - 1):
        assert abs(chi_square(np.bincount(image[:, index], minlength=size))) < 5


@pytest.mark.parametrize("size", [50, 100, 1000])
def test_images_of_neighbours_are_independent(size):
    first, second = permute([0, 1], size, np.arange(50_000)[:, None]).T
    steps = np.bincount((second - first) % size, minlength=size)[1:]
    assert abs(chi_square(steps)) < 5


def test_every_order_of_three_is_about_equally_likely():
    image = permute(np.arange(3), 3, np.arange(60_000)[:, None])
    _, counts = np.unique(image @ [9, 3, 1], return_counts=True)
    assert len(counts) == 6
    assert abs(counts / 10_000 - 1).max() < 0.05


@pytest.mark.parametrize("step", [1, 2, 1 << 32, 1 << 63, 0x9E3779B97F4A7C15])
def test_related_keys_give_unrelated_orders(step):
    size = 16_384
    one, other = permute(np.arange(size), size, np.array([[11], [11 ^ step]], np.uint64))
    assert (one == other).sum() < 10  # expected: one
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.04
    assert abs(chi_square(np.bincount((one - other) % size // 128))) < 5


def test_neighbours_do_not_stay_neighbours():
    image = permute(np.arange(16_384), 16_384, 3)
    assert (abs(np.diff(image)) == 1).sum() < 12  # expected: two
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.04
    assert abs(np.corrcoef(image, np.arange(16_384))[0, 1]) < 0.04


def test_keys_of_parts():
    numbers = np.arange(10_000)
    keys = mix_key(mix_key(5, numbers[:100, None]), numbers[:100])
    assert keys.dtype == np.uint64
    assert len(np.unique(keys)) == 10_000
    assert len(np.unique(np.concatenate([mix_key(5, numbers), mix_key(6, numbers)]))) == 20_000
    bits = keys.ravel()[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    assert abs(bits.mean(axis=0) - 0.5).max() < 0.03
    assert int(mix_key(0, 0)[0]) == 0xE220A8397B1DCDAF  # the first number of splitmix64 with the seed 0


def test_saved_states_depend_on_these_numbers():
    assert permute(np.arange(10), 10, 0).tolist() == [4, 7, 5, 3, 2, 0, 8, 9, 6, 1]
    assert permute([0, 1, 16_383], 16_384, 42).tolist() == [3504, 11996, 2960]
    assert permute([0, 10**9], 10**12, 2**64 - 1).tolist() == [104134013065, 374361256463]
