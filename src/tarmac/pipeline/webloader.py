"""WebLoader: torch's DataLoader as the first stage of a pipeline, resumable with its workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tarmac.errors import StateMismatch
from tarmac.order.workers import assume_worker, current_place
from tarmac.pipeline.datapipeline import DataPipeline
from tarmac.pipeline.fluid import FluidInterface
from tarmac.pipeline.handlers import Drops

__all__ = ["LoaderSource", "WebLoader"]


class WebLoader(DataPipeline, FluidInterface):
    """A torch DataLoader with the fluent interface; takes DataLoader's arguments.

    >>> loader = WebLoader(dataset, batch_size=None, num_workers=4).unbatched().shuffle(1000).batched(64)

    `state_dict` holds the place of every worker; a new loader with as many workers continues there.
    """

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(LoaderSource(*args, **kw))

    def drops(self) -> dict[str, Drops]:
        """What handlers have dropped in the workers that have finished a pass, and behind them, by stage."""
        report = super().drops()
        source = self.pipeline[0] if self.pipeline else None
        for worker, dropped in sorted(getattr(source, "dropped", {}).items()):
            report.update({f"worker {worker}: {stage}": drops for stage, drops in dropped.items()})
        return report


@dataclass
class Tagged:
    """An item on its way out of a worker, with whose it is and the state behind it.

    The last of a worker's pass carries no item, only what the worker has dropped.
    """

    worker: int
    state: dict[str, Any]
    item: Any = None
    last: bool = False
    drops: dict[str, Drops] | None = None

    def pin_memory(self) -> Tagged:
        from torch.utils.data._utils.pin_memory import pin_memory

        return replace(self, item=pin_memory(self.item))


class _InWorker:
    """The dataset as a worker sees it: it takes up the role and the place of a worker of the saved run."""

    def __init__(self, dataset: Any, states: list[dict[str, Any] | None], first: int) -> None:
        self.dataset, self.states, self.first = dataset, states, first

    def __iter__(self) -> Iterator[Tagged]:
        place = current_place()
        role = (place.worker + self.first) % place.workers
        assume_worker(role)
        try:
            state = self.states[role] if self.states else None
            # Persistent workers come here again on the next pass, which has no saved place.
            self.states, self.first = [], 0
            if state is not None:
                self.dataset.load_state_dict(state)
            for item in self.dataset:
                yield Tagged(role, self.dataset.state_dict(), item)
            yield Tagged(role, self.dataset.state_dict(), last=True, drops=self.dataset.drops())
        finally:
            assume_worker(None)


class _Collate:
    """Collate what is inside the tags."""

    def __init__(self, collate: Any, least: int) -> None:
        self.collate, self.least = collate, least

    def __call__(self, tagged: Tagged | list[Tagged]) -> list[Tagged]:
        """Return a batch and, where a worker's pass ends with it, the tag that says so."""
        if isinstance(tagged, Tagged):
            return [tagged if tagged.last else replace(tagged, item=self.collate(tagged.item))]
        whole = [one for one in tagged if not one.last]
        ends = [one for one in tagged if one.last]
        if len(whole) < self.least:  # the tag has made a batch look full that is to be left out
            return ends
        return [replace(whole[-1], item=self.collate([one.item for one in whole])), *ends]


class LoaderSource:
    """A DataLoader that knows where each of its workers is."""

    resumes_itself = True

    def __init__(self, dataset: Any, *args: Any, **kw: Any) -> None:
        from torch.utils.data import DataLoader

        self.stateful = isinstance(dataset, DataPipeline)
        self.dataset, self.args, self.kw = dataset, args, kw
        # Made once here so that wrong arguments are reported at once, and for len().
        self.loader: Any = DataLoader(dataset, *args, **kw)
        self._states: list[dict[str, Any] | None] = []
        self._last = -1
        self._tagged: Any = None
        self.dropped: dict[int, dict[str, Drops]] = {}

    def set_epoch(self, epoch: int) -> None:
        """Tell the dataset, in all workers to come, which pass this is."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if not self.stateful:
            yield from self.loader
            return
        workers = max(self.loader.num_workers, 1)
        first = (self._last + 1) % workers
        self._states = states = list(self._states) or [None] * workers
        if self._tagged is None or not self.loader.persistent_workers:
            self._tagged = self._tagged_loader(states, first)
        for parts in self._tagged:
            for tagged in parts:
                states[tagged.worker], self._last = tagged.state, tagged.worker
                if tagged.last:
                    self.dropped[tagged.worker] = tagged.drops or {}
                else:
                    yield tagged.item
        self._states, self._last = [], -1

    def _tagged_loader(self, states: list[dict[str, Any] | None], first: int) -> Any:
        from torch.utils.data import DataLoader, IterableDataset

        IterableDataset.register(_InWorker)
        least = self.loader.batch_size if self.loader.batch_size and self.loader.drop_last else 1
        options = {**self.kw, "collate_fn": _Collate(self.loader.collate_fn, least)}
        return DataLoader(_InWorker(self.dataset, list(states), first), *self.args, **options)

    def state_dict(self) -> dict[str, Any]:
        """Where each worker is, and which one handed out the last item."""
        return {"workers": list(self._states), "last": self._last}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue there at the next iteration."""
        workers = max(self.loader.num_workers, 1)
        if state["workers"] and len(state["workers"]) != workers:
            raise StateMismatch(
                f"the state is of {len(state['workers'])} workers, this loader has {workers}."
            )
        self._states, self._last, self._tagged = list(state["workers"]), state["last"], None
