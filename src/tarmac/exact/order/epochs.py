"""Assign the positions of an epoch to batches and ranks.

From the saved position on, the epoch is cut into global batches of batch_size · world_size positions. Rank r
takes the positions p with p mod world_size = r. Progress is the position alone, so world size and batch size
may change whenever a state is saved and loaded.

Any world size works. If it divides the number of streams, each rank reads whole streams (`exact.py`), and so
the fewest shards; otherwise every rank reads parts of more streams.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from tarmac.errors import UsageError
from tarmac.runtime.types import Integers

Tail = Literal["drop", "pad", "short"]
"""What happens to a last batch that is not full: dropped, filled up from the start of the epoch, or short."""


def check_rank(world_size: int, rank: int) -> None:
    """Raise unless 0 <= rank < world_size."""
    if world_size < 1:
        raise UsageError(f"expected 1 or more, got {world_size}.", field="world_size")
    if not 0 <= rank < world_size:
        raise UsageError(f"expected 0 to {world_size - 1} (`world_size` - 1), got {rank}.", field="rank")


def steps_left(samples: int, position: int, global_batch: int, tail: Tail) -> int:
    """Return the number of global batches from the position to the end of the epoch."""
    _check(samples, position, global_batch, tail)
    left = max(samples - position, 0)  # a padded batch can pass the end
    return left // global_batch if tail == "drop" else -(-left // global_batch)


def batch_positions(
    samples: int, position: int, step: int, *, batch_size: int, rank: int, world_size: int, tail: Tail
) -> Integers:
    """Return the positions of the rank's batch, `step` global batches after the position.

    With "pad" they wrap around at the end of the epoch. With "short" a rank can get fewer than others, or
    none.
    """
    steps = steps_left(samples, position, batch_size * world_size, tail)
    if not 0 <= step < steps:
        raise IndexError(f"step {step} is out of range: the epoch has {steps} steps from position {position}")
    check_rank(world_size, rank)
    start = position + step * batch_size * world_size
    first, size = first_and_size(
        samples, start, batch_size=batch_size, rank=rank, world_size=world_size, tail=tail
    )
    return (first + world_size * np.arange(size, dtype=np.int64)) % samples


def first_and_size(
    samples: int, start: int, *, batch_size: int, rank: int, world_size: int, tail: Tail
) -> tuple[int, int]:
    """Return the first position of the rank in the global batch that begins at `start`, and their number.

    Any batch_size · world_size consecutive positions hold batch_size of each remainder, wherever they start.
    """
    first = start + (rank - start) % world_size
    if tail == "pad":
        return first, batch_size
    return first, min(batch_size, max(-(-(samples - first) // world_size), 0))


def _check(samples: int, position: int, global_batch: int, tail: Tail) -> None:
    if samples < 0 or position < 0 or global_batch < 1:
        raise UsageError(
            f"expected samples >= 0, position >= 0 and a batch of at least 1, got "
            f"samples={samples}, position={position}, batch={global_batch}."
        )
    if tail not in get_args(Tail):
        raise UsageError(f"expected one of {', '.join(get_args(Tail))}, got {tail!r}.", field="tail")
