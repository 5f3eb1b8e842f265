"""The exact order for torch's DataLoader and what is built on it: Lightning, the Hugging Face Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tarmac.loader.walk import EpochWalk, seeds_of
from tarmac.order.epochs import Tail
from tarmac.pipeline.dataset import Dataset, SeededIndex
from tarmac.pipeline.mix import Mix

__all__ = ["BatchSampler"]


class BatchSampler(EpochWalk):
    """Hand out the numbers of the samples of each batch of this rank.

    >>> sampler = BatchSampler(dataset, batch_size=64, seed=1)
    >>> loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=4)

    Its state is that of a Loader. It counts batches as they are handed out, which a DataLoader with workers
    does ahead of time: save `state_after(batches)` with the number of batches trained on in this epoch, or
    use torchdata's StatefulDataLoader, which keeps account of that.
    """

    def __init__(
        self,
        dataset: Dataset | Mix,
        batch_size: int,
        *,
        seed: int | str = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world: int | None = None,
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
            world=world,
            tail=tail,
            streams=streams,
            window=window,
        )
        self._begun = self._state

    def __iter__(self) -> Iterator[list[SeededIndex]]:
        self._begin()
        self._begun = self._state
        for request in self._requests():
            positions = request.positions
            indices = self.order.at(request.epoch, positions).tolist()
            seeds = seeds_of(self._state.seed, request.epoch, positions)
            self._advance()
            yield [SeededIndex(index, seed) for index, seed in zip(indices, seeds, strict=True)]
        self._next_epoch()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go where a state was saved; one that belongs to other data or another order is refused."""
        super().load_state_dict(state)
        self._begun = self._state

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after so many batches of this iteration, however many were handed out ahead."""
        position = self._begun.position + batches * self.batch_size * self.world
        step = None if self._begun.step is None else self._begun.step + batches
        return replace(self._begun, position=min(position, self._begun.samples), step=step).as_dict()
