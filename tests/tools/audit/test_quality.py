"""The one number for a shuffle: its ends are fixed, its middle is in order, its expectation is exact."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import tarmac
from harness.shards import plain
from tarmac.tools.audit.quality import (
    _random_unevenness,
    _unevenness,
    ideal_order,
    shuffle_quality,
    stream_order,
)


def quality(order, batch):
    return shuffle_quality(np.asarray(order).__getitem__, len(order), batch)


@pytest.mark.parametrize("batch", [1, 8, 64, 1000])
def test_from_in_order_to_ideal(batch):
    line = np.arange(20_000)
    assert quality(line, batch) == pytest.approx(0, abs=1e-9)
    assert quality(line[::-1], batch) == pytest.approx(0, abs=1e-9)
    assert quality(ideal_order(20_000, 0, 0), batch) > 0.99


def test_batches_from_few_places_are_in_between():
    """A batch from k places of the dataset, drawn evenly, has a correlation of about 1/k."""
    rng = np.random.default_rng(0)
    for places in (2, 4, 10):
        parts = rng.permutation(20_000 // 50).reshape(-1, places)
        order = (parts[:, :, None] * 50 + np.arange(50)).transpose(0, 2, 1).ravel()
        assert quality(order, places * 50) == pytest.approx(1 - 1 / places, abs=0.05)


def test_a_larger_buffer_is_better():
    lengths = np.full(100, 200)
    found = [
        quality(stream_order(lengths, batch_size=50, world_size=1, buffer=buffer, seed=1, epoch=0), 50)
        for buffer in (1, 100, 1000, 20_000)
    ]
    assert found == sorted(found)
    assert found[0] < 0.01
    assert found[-1] > 0.9
    assert 0.2 < found[2] < 0.95


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_the_expectation_of_random_batches_is_exact(size):
    rows = np.array(list(combinations(range(6), size)))
    assert _unevenness(rows, 6) == pytest.approx(_random_unevenness(size, 6))


def test_the_statistic_is_the_integral():
    places = np.array([[3, 4, 17]])
    x = (np.arange(200_000) + 0.5) / 200_000
    share = (places[0][:, None] + 0.5 <= x * 20).mean(axis=0)
    assert _unevenness(places, 20) == pytest.approx(3 * np.square(share - x).mean(), rel=1e-4)


def test_what_cannot_be_shuffled_badly_is_ideal():
    assert quality([], 4) == 1
    assert quality([0], 4) == 1
    assert quality([0, 1, 2], 4) == 1


def test_large_epochs_are_looked_at_in_part():
    asked = []

    def at(positions):
        asked.append(len(positions))
        return positions

    assert shuffle_quality(at, 10**9, 512) == pytest.approx(0, abs=1e-9)
    assert asked == [1 << 20]


def test_a_stream_is_what_webdataset_does(tmp_path):
    lengths = np.array([40, 1, 30, 25, 60])
    starts = np.cumsum(lengths) - lengths
    for shard, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        files = [(f"{number}.x", b"") for number in range(start, start + length)]
        (tmp_path / f"{shard}.tar").write_bytes(plain(files))
    dataset = tarmac.WebDataset(str(tmp_path / "{0..4}.tar"), shardshuffle=True, seed=7)
    stream = dataset.shuffle(120, seed=7)
    for epoch in range(2):
        order = stream_order(lengths, batch_size=8, world_size=1, buffer=120, seed=7, epoch=epoch)
        assert [int(sample["__key__"]) for sample in stream] == order.tolist()


@pytest.mark.parametrize("world", [1, 3, 8])
def test_ranks_of_a_stream_take_turns(world_size):
    lengths = np.array([40, 1, 30, 0, 25, 60])
    order = stream_order(lengths, batch_size=4, world_size=world_size, buffer=10, seed=0, epoch=3)
    assert sorted(order.tolist()) == list(range(156))
    if world_size == 3:
        shard = np.searchsorted(np.cumsum(lengths), order[:12], side="right").reshape(3, 4)
        owners = [set(row) for row in shard.tolist()]
        assert not owners[0] & owners[1]
        assert not owners[1] & owners[2]


def test_ideal_orders_differ_by_seed_and_epoch():
    orders = [ideal_order(50, seed, epoch).tolist() for seed in (0, "a") for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert ideal_order(50, 0, 1).tolist() == orders[1]
