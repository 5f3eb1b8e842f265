"""A proof is worth something only if it fails for orders that are wrong."""

from __future__ import annotations

import numpy as np
import pytest

import tarmac
from harness.shards import plain
from tarmac.exact.order.epochs import batch_positions
from tarmac.indexing.manifest import Manifest, Shard
from tarmac.tools.audit import proof as order_proof
from tarmac.tools.audit.audit import OrderOptions, audit
from tarmac.tools.audit.proof import _each_once, _numbers, prove


def unread(*lengths):
    """A dataset of which only the numbers of samples are known: a proof needs no more."""
    return tarmac.Dataset(Manifest([Shard(f"{n}.tar", length) for n, length in enumerate(lengths)]))


DATASET = unread(30, 7, 51, 1, 0, 44)


@pytest.mark.parametrize("tail", ["drop", "pad", "short"])
@pytest.mark.parametrize(("batch", "world"), [(1, 1), (8, 1), (5, 4), (1, 64), (50, 2), (100, 4)])
@pytest.mark.parametrize("position", [0, 37, 133])
def test_epochs_are_whole(tail, batch, world_size, position):
    options = OrderOptions(batch, world_size, tail=tail, position=position, epoch=3, window=16)
    proof = prove(audit(DATASET, options))
    assert proof.ok
    assert proof.distinct
    assert proof.before == position
    steps, rest = divmod(133 - position, batch * world_size)
    if tail == "drop":
        assert (proof.left_out, proof.padded, set(proof.steps)) == (rest, 0, {steps})
    else:
        assert proof.left_out == 0
        assert max(proof.steps) == steps + bool(rest)
    if tail == "pad":
        assert proof.padded == (batch * world_size - rest if rest else 0)
        assert len(set(proof.steps)) == 1
    assert proof.seen == 133 - position - proof.left_out


def test_a_short_tail_may_leave_ranks_without_a_last_step():
    proof = prove(audit(unread(65), OrderOptions(4, 4, tail="short")))
    assert proof.steps == (5, 4, 4, 4)
    assert proof.ok


@pytest.mark.parametrize("at_once", [1, 7, 1 << 14])
@pytest.mark.parametrize("tail", ["drop", "pad", "short"])
def test_steps_taken_at_once_are_the_steps(monkeypatch, at_once, tail):
    """What is gone through in large pieces is, rank by rank, what `batch_positions` says step by step."""
    monkeypatch.setattr(order_proof, "_AT_ONCE", at_once)
    options = OrderOptions(5, 4, tail=tail, position=13)
    found = audit(DATASET, options)
    dealt = np.zeros((2, 4), np.int64)
    gone_through = np.sort(np.concatenate(list(_numbers(found, dealt))))
    assert gone_through.tolist() == list(range(133))
    for rank in range(4):
        batches = [
            batch_positions(133, 13, step, batch_size=5, rank=rank, world_size=4, tail=tail)
            for step in range(found.steps)
        ]
        assert dealt[:, rank].sum() == sum(map(len, batches))


@pytest.mark.parametrize(
    ("numbers", "samples", "expected"),
    [
        ([], 0, True),
        ([0], 1, True),
        (range(17), 17, True),
        ([0, 0, 2], 3, False),
        ([0, 0], 2, False),  # the carry sets the bit of the one that is missing
        ([*range(7), 7, 7], 9, False),  # the carry leaves the byte
        ([0, 1, 2, 0], 3, False),  # all of them, and one again
        ([0, 1, 2, 2], 3, False),  # as many bits set as there are samples, after one addition too many
        ([0, 1], 3, False),
        ([0, 1, 3], 3, False),
        ([0, 1, -1], 3, False),
    ],
)
@pytest.mark.parametrize("pieces", [1, 3])
def test_each_once(numbers, samples, expected, pieces):
    assert _each_once(np.array_split(np.array(numbers, np.int64), pieces), samples) is expected


class Wrong:
    """An order with one answer changed."""

    def __init__(self, order, position, number):
        self._order, self._position, self._number = order, position, number
        self.samples = order.samples

    def at(self, epoch, positions):
        found = self._order.at(epoch, positions)
        return np.where(positions == self._position, self._number, found)


@pytest.fixture
def small(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain([(f"k{n:02d}.x", b"") for n in range(50)]))
    return tarmac.Dataset(str(tmp_path / "a.tar"))


@pytest.mark.parametrize("position", [0, 20, 49])
def test_a_wrong_order_is_found(small, position):
    found = audit(small, OrderOptions(4, 2))
    (lost,) = found.order.at(0, [position])
    (twice,) = found.order.at(0, [(position + 9) % 50])
    found.order = Wrong(found.order, position, twice)
    proof = prove(found)
    assert not proof.ok
    assert not proof.distinct
    assert (proof.too_often, proof.too_seldom) == (1, 1)
    assert proof.examples == (f"k{twice:02d}", f"k{lost:02d}")


@pytest.mark.parametrize("stray", [-1, 50, 55, 1000])
def test_numbers_that_are_no_samples_are_found(small, stray):
    found = audit(small, OrderOptions(4))
    found.order = Wrong(found.order, 3, stray)
    proof = prove(found)
    assert not proof.ok
    assert (proof.too_often, proof.too_seldom) == (0, 1)


def test_unequal_ranks_are_found(monkeypatch):
    right = order_proof.first_and_size

    def short(*args, rank, **options):
        first, size = right(*args, rank=rank, **options)
        return first, size - (rank == 1)

    monkeypatch.setattr(order_proof, "first_and_size", short)
    monkeypatch.setattr(tarmac.Dataset, "keys_of", lambda dataset, numbers: [])
    proof = prove(audit(DATASET, OrderOptions(8, 4)))
    assert not proof.ok
    assert not proof.equal


@pytest.mark.parametrize("epoch", range(5))
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_mixes(epoch, tail):
    mix = tarmac.Mix([DATASET.choose(90), unread(20, 13).repeat(2.5), unread(5).choose(0), unread(9)])
    proof = prove(audit(mix, OrderOptions(4, 4, epoch=epoch, tail=tail, window=8)))
    assert proof.ok
    assert not proof.distinct
    assert proof.samples == 90 + 82 + 9


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_mix_that_takes_too_much_is_found(tmp_path, epoch):
    (tmp_path / "a.tar").write_bytes(plain([(f"a{n:02d}.x", b"") for n in range(20)]))
    (tmp_path / "b.tar").write_bytes(plain([(f"b{n:02d}.x", b"") for n in range(20)]))
    parts = [tarmac.Dataset(str(tmp_path / f"{name}.tar")) for name in "ab"]
    found = audit(tarmac.Mix([parts[0], parts[1].repeat(2)]), OrderOptions(4, epoch=epoch))
    (position,) = found.order.positions_of(epoch, 7)
    found.order = Wrong(found.order, position, 22)
    proof = prove(found)
    assert not proof.ok
    assert proof.examples == ("b02", "a07")
