"""The exact order for torch's DataLoader, and for Lightning and the Hugging Face Trainer on top of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tarmac.exact.dataset import SeededIndex
from tarmac.exact.loader.cursor import EpochCursor, Iteration, seeds_of


class BatchSampler(EpochCursor):
    """Yield the sample numbers of each batch of this rank.

    >>> sampler = BatchSampler(dataset, batch_size=64, seed=1)
    >>> loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=4)

    It iterates like a `Loader` and has the same state. It counts batches as it yields them, and a DataLoader
    with workers requests them ahead of time. So save `state_after(n)`, with the number of batches trained on
    in this epoch, or use torchdata's StatefulDataLoader, which keeps that count. A DataLoader that is
    abandoned may have finished the epoch of the sampler: call `set_epoch(n)`.
    """

    _last: Iteration | None = None

    def __iter__(self) -> Iterator[list[SeededIndex]]:
        with self._iteration() as iteration:
            self._last = iteration
            for request in self._requests(iteration):
                positions = request.positions
                indices = self._order.at(request.epoch, positions).tolist()
                seeds = seeds_of(iteration.start.seed, request.epoch, positions)
                self._advance(iteration)
                yield [SeededIndex(index, seed) for index, seed in zip(indices, seeds, strict=True)]
            self._complete(iteration)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; raise if it belongs to other data or another order."""
        super().load_state_dict(state)
        self._last = None

    def state_after(self, batches: int) -> dict[str, Any]:
        """Return the state after `batches` batches of this iteration, however many were yielded."""
        return self._after(self._last or Iteration(self._start, self._find_worker()), batches).as_dict()
