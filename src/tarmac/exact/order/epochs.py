"""Which positions of an epoch make up which batch of which rank.

The epoch is cut into global batches of batch_size · world positions each, from the saved position on, and
rank r takes the positions whose remainder modulo the number of ranks is r. The position alone says how far an
epoch has come, so the number of ranks and the batch size may change whenever it is saved.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = ["batch_positions", "check_world", "first_and_size", "steps_left", "Tail"]

Tail = Literal["drop", "pad", "short"]
"""What becomes of a last batch that is not full: left out, filled up from the epoch's start, or short."""


def check_world(streams: int, world_size: int, rank: int) -> None:
    """Raise unless `world` ranks can share the streams evenly, and this is one of them."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}: ranks are numbered from 0, and there is at least one")
    if streams < 1 or streams % world_size:
        divisors = [number for number in range(1, streams + 1) if streams % number == 0]
        raise ValueError(
            f"{streams} streams cannot be shared evenly by {world_size} ranks, only by "
            f"{', '.join(map(str, divisors))}. Choose one of these, or streams= as a multiple of {world_size} "
            "(the same for the whole training: another number of streams is another order)."
        )


def steps_left(samples: int, position: int, global_batch: int, tail: Tail) -> int:
    """Return how many global batches there are from the position to the end of the epoch."""
    _check(samples, position, global_batch, tail)
    left = max(samples - position, 0)  # a padded batch may have ended beyond the end
    return left // global_batch if tail == "drop" else -(-left // global_batch)


def batch_positions(
    samples: int, position: int, step: int, *, batch_size: int, rank: int, world_size: int, tail: Tail
) -> NDArray[np.int64]:
    """Return the positions of the rank's batch that comes `step` global batches after the position.

    With "pad" they go on at the beginning of the epoch; with "short" those beyond the end are left out, so a
    rank may get fewer than others, or none.
    """
    steps = steps_left(samples, position, batch_size * world_size, tail)
    if not 0 <= step < steps:
        raise IndexError(f"step {step} is outside of the epoch: from position {position} on it has {steps}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}: ranks are numbered from 0")
    start = position + step * batch_size * world_size
    first, size = first_and_size(
        samples, start, batch_size=batch_size, rank=rank, world_size=world_size, tail=tail
    )
    return (first + world_size * np.arange(size, dtype=np.int64)) % samples


def first_and_size(
    samples: int, start: int, *, batch_size: int, rank: int, world_size: int, tail: Tail
) -> tuple[int, int]:
    """Return the first position of the rank in the global batch that begins at `start`, and how many it has.

    Any batch_size · world positions in a row hold batch_size of each remainder, wherever they start.
    """
    first = start + (rank - start) % world_size
    if tail == "pad":
        return first, batch_size
    return first, min(batch_size, max(-(-(samples - first) // world_size), 0))


def _check(samples: int, position: int, global_batch: int, tail: Tail) -> None:
    if samples < 0 or position < 0 or global_batch < 1:
        raise ValueError(
            f"an epoch has 0 samples or more, positions count from 0 and a batch holds at least 1: found "
            f"samples={samples}, position={position}, batch={global_batch}"
        )
    if tail not in get_args(Tail):
        raise ValueError(f"tail= is one of {', '.join(get_args(Tail))}, not {tail!r}")
