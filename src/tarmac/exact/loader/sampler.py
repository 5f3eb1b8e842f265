"""The exact order for torch's DataLoader and what is built on it: Lightning, the Hugging Face Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tarmac.exact.dataset import Dataset, SeededIndex
from tarmac.exact.loader.walk import EpochWalk, Iteration, seeds_of
from tarmac.exact.mix import Mix
from tarmac.exact.order.epochs import Tail

__all__ = ["BatchSampler"]


class BatchSampler(EpochWalk):
    """Hand out the numbers of the samples of each batch of this rank.

    >>> sampler = BatchSampler(dataset, batch_size=64, seed=1)
    >>> loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=4)

    It iterates as a Loader does, and its state is that of one. It counts batches as they are handed out,
    which a DataLoader with workers does ahead of time: save `state_after(batches)` with the number of batches
    trained on in this epoch, or use torchdata's StatefulDataLoader, which keeps account of that. Such a
    DataLoader may have finished the epoch of the sampler when it is abandoned: say `set_epoch(n)`.
    """

    def __init__(
        self,
        dataset: Dataset | Mix,
        batch_size: int,
        *,
        seed: int | str = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail = "drop",
        streams: int = 64,
        window: int = 16_384,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            seed=seed,
            shuffle=shuffle,
            rank=rank,
            world_size=world_size,
            tail=tail,
            streams=streams,
            window=window,
        )
        self._last: Iteration | None = None

    def __iter__(self) -> Iterator[list[SeededIndex]]:
        with self._iteration() as iteration:
            self._last = iteration
            for request in self._requests(iteration):
                positions = request.positions
                indices = self.order.at(request.epoch, positions).tolist()
                seeds = seeds_of(iteration.begun.seed, request.epoch, positions)
                self._advance(iteration)
                yield [SeededIndex(index, seed) for index, seed in zip(indices, seeds, strict=True)]
            self._complete(iteration)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go where a state was saved; one that belongs to other data or another order is refused."""
        super().load_state_dict(state)
        self._last = None

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after so many batches of this iteration, however many were handed out ahead."""
        last = self._last or Iteration(self._start, self._start, self._find_place())
        return self._after(last, batches, last.begun).as_dict()
