"""The batches of all ranks are the epoch, whatever the batch size and world size, and when they change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import UsageError
from tarmac.exact.order.epochs import check_rank, request_at, steps_left

SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 17), st.integers(0, 4)), min_size=1, max_size=6)


def batch_positions(samples, position, step, *, batch_size, world_size, **options):
    start = position + step * batch_size * world_size
    return request_at(0, samples, start, batch_size=batch_size, world_size=world_size, **options).positions


def batches_of(samples, shapes, tail):
    """Yield the batches of an epoch in which batch size and world size change after some steps."""
    position = 0
    for number, (batch_size, world_size, steps) in enumerate(shapes):
        left = steps_left(samples, position, batch_size * world_size, tail)
        last = number == len(shapes) - 1
        for step in range(left if last else min(steps, left)):
            yield [
                batch_positions(
                    samples,
                    position,
                    step,
                    batch_size=batch_size,
                    rank=rank,
                    world_size=world_size,
                    tail=tail,
                )
                for rank in range(world_size)
            ]
        position += batch_size * world_size * (left if last else min(steps, left))


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 200), SHAPES)
def test_short_yields_each_position_once(samples, shapes):
    batches = list(batches_of(samples, shapes, "short"))
    assert sorted(int(p) for ranks in batches for mine in ranks for p in mine) == list(range(samples))


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 200), SHAPES)
def test_drop_yields_a_prefix_once_and_equal_batches_on_all_ranks(samples, shapes):
    batches = list(batches_of(samples, shapes, "drop"))
    positions = sorted(int(p) for ranks in batches for mine in ranks for p in mine)
    assert positions == list(range(len(positions)))
    assert samples - shapes[-1][0] * shapes[-1][1] < len(positions) <= samples
    assert all(len({len(mine) for mine in ranks}) == 1 for ranks in batches)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 200), SHAPES)
def test_pad_yields_everything_and_wraps_around(samples, shapes):
    batches = list(batches_of(samples, shapes, "pad"))
    positions = sorted(int(p) for ranks in batches for mine in ranks for p in mine)
    wrapped = len(positions) - samples
    assert 0 <= wrapped < max(batch_size * world_size for batch_size, world_size, _ in shapes)
    assert positions == sorted([*range(samples), *(number % samples for number in range(wrapped))])
    assert all(len({len(mine) for mine in ranks}) == 1 for ranks in batches)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 200), st.integers(0, 100), st.integers(1, 5), st.integers(1, 7))
def test_a_rank_owns_its_remainder_in_order(samples, position, batch_size, world_size):
    for step in range(steps_left(samples, position, batch_size * world_size, "short")):
        start = position + step * batch_size * world_size
        for rank in range(world_size):
            mine = batch_positions(
                samples, position, step, batch_size=batch_size, rank=rank, world_size=world_size, tail="short"
            )
            assert mine.dtype == np.int64
            within = range(start, min(start + batch_size * world_size, samples))
            assert mine.tolist() == [p for p in within if p % world_size == rank]


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 60), st.integers(0, 59), st.sampled_from(["pad", "short"]), st.sampled_from([1, 2, 3]))
def test_a_request_describes_its_positions(samples, start, tail, world_size):
    start %= samples
    for rank in range(world_size):
        shape = {"batch_size": 4, "rank": rank, "world_size": world_size, "tail": tail}
        request = request_at(3, samples, start, **shape)
        assert (request.epoch, request.stride, request.samples) == (3, world_size, samples)
        numbers = range(request.first, request.first + request.size * world_size, world_size)
        assert [number % samples for number in numbers] == request.positions.tolist()
        assert all(
            start <= number < start + 4 * world_size and number % world_size == rank for number in numbers
        )


def test_padding_is_assigned_to_ranks_before_it_wraps():
    batches = [
        batch_positions(3, 0, 0, batch_size=4, rank=rank, world_size=2, tail="pad").tolist()
        for rank in (0, 1)
    ]
    assert batches == [[0, 2, 1, 0], [1, 0, 2, 1]]  # 0 2 4 6 and 1 3 5 7, modulo 3


def test_steps():
    for samples, position, drop, other in [(100, 0, 6, 7), (96, 0, 6, 6), (100, 95, 0, 1), (0, 0, 0, 0)]:
        assert steps_left(samples, position, 16, "drop") == drop
        assert steps_left(samples, position, 16, "pad") == steps_left(samples, position, 16, "short") == other
    for tail in ("drop", "pad", "short"):
        assert steps_left(100, 164, 16, tail) == 0  # a padded batch, larger than the current ones, was last


@pytest.mark.parametrize(("samples", "position", "batch"), [(-1, 0, 1), (1, -1, 1), (1, 0, 0)])
def test_invalid_numbers(samples, position, batch):
    with pytest.raises(UsageError, match=f"position={position}"):
        steps_left(samples, position, batch, "drop")


def test_invalid_tail():
    with pytest.raises(UsageError, match=r"`tail`.*wrap"):
        steps_left(10, 0, 1, "wrap")


def test_ranks():
    for world_size in range(1, 200):
        check_rank(world_size, world_size - 1)
    for world_size, rank, field in ((0, 0, "world_size"), (2, 2, "rank"), (2, -1, "rank")):
        with pytest.raises(UsageError, match=f"`{field}`"):
            check_rank(world_size, rank)
