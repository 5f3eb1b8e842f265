"""Assign the positions of an epoch to batches and ranks.

From the saved position on, the epoch is cut into global batches of batch_size · world_size positions. Rank r
takes the positions p with p mod world_size = r. Progress is the position alone, so world size and batch size
may change whenever a state is saved and loaded.

Any world size works. If it divides the number of streams, each rank reads whole streams (`exact.py`), and so
the fewest shards; otherwise every rank reads parts of more streams.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

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


class Request(NamedTuple):
    """A batch: every `stride`-th position of an epoch from `first` on, wrapping around at the end.

    A few integers whatever the batch size, so that sending it to a worker never blocks. `located` says where the
    samples are that were fetched before; see `loader/located.py`.
    """

    epoch: int
    first: int
    size: int
    stride: int
    samples: int
    located: Any = None

    @property
    def positions(self) -> Integers:
        """The positions, in order."""
        return (self.first + self.stride * np.arange(self.size)) % self.samples


def request_at(
    epoch: int, samples: int, start: int, *, batch_size: int, rank: int, world_size: int, tail: Tail
) -> Request:
    """Return the rank's part of the global batch that begins at `start`.

    Any batch_size · world_size consecutive positions hold batch_size of each remainder, wherever they start.
    With "pad" they wrap around at the end of the epoch. With "short" a rank can get fewer than others, or
    none.
    """
    first = start + (rank - start) % world_size
    left = max(-(-(samples - first) // world_size), 0)
    return Request(epoch, first, batch_size if tail == "pad" else min(batch_size, left), world_size, samples)


def _check(samples: int, position: int, global_batch: int, tail: Tail) -> None:
    if samples < 0 or position < 0 or global_batch < 1:
        raise UsageError(
            f"expected samples >= 0, position >= 0 and a batch of at least 1, got "
            f"samples={samples}, position={position}, batch={global_batch}."
        )
    if tail not in get_args(Tail):
        raise UsageError(f"expected one of {', '.join(get_args(Tail))}, got {tail!r}.", field="tail")
