"""WebLoader: torch's DataLoader as the first stage of a pipeline, resumable with its workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tarmac.errors import StateMismatch
from tarmac.runtime.worker_info import assume_worker, current_worker_info
from tarmac.steps.handlers import Drops
from tarmac.stream.epochs import Epoch, EpochCounter
from tarmac.stream.fluent import FluidInterface
from tarmac.stream.pipeline import COMPARED_AFTER, DataPipeline
from tarmac.stream.shared_memory import to_shared_memory

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
    found: bool = False
    """Whether the worker has read anything."""

    def pin_memory(self) -> Tagged:
        from torch.utils.data._utils.pin_memory import pin_memory

        return replace(self, item=pin_memory(self.item))


class _InWorker:
    """The dataset as a worker sees it: it takes up the role and the place of a worker of the saved run.

    `turn` is the pass that the workers begin with. Those that live on come here once for each further pass.
    """

    def __init__(self, dataset: Any, states: list[dict[str, Any] | None], first: int, turn: Epoch) -> None:
        self.dataset, self.states, self.first, self.turn = dataset, states, first, turn

    def __iter__(self) -> Iterator[Tagged]:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        role = 0 if info is None else (info.id + self.first) % info.num_workers
        if info is not None:
            assume_worker(role)
        state, turn = self.states[role] if self.states else None, self.turn
        self.states, self.first, self.turn = [], 0, _following(turn)
        self.dataset.begin_epoch(turn)
        if state is not None:
            self.dataset.load_state_dict(state)
        return self._items(role)

    def _items(self, role: int) -> Iterator[Tagged]:
        for item in self.dataset:
            yield Tagged(role, self.dataset.state_dict(), item)
        drops = self.dataset.drops() if hasattr(self.dataset, "drops") else {}
        found = getattr(self.dataset, "found", False)
        yield Tagged(role, self.dataset.state_dict(), last=True, drops=drops, found=found)


def _stages(dataset: Any) -> Iterator[Any]:
    """The stages of a pipeline, and of the pipelines that it mixes or begins with."""
    for stage in (*getattr(dataset, "pipeline", ()), *getattr(dataset, "datasets", ())):
        yield stage
        yield from _stages(stage)


def _following(turn: Epoch) -> Epoch:
    """The pass that comes after one, if nobody says otherwise."""
    return replace(turn, number=turn.number + 1, agreed=None if turn.agreed is None else turn.agreed + 1)


class _Collate:
    """Collate what is inside the tags."""

    def __init__(self, collate: Any, least: int, workers: int) -> None:
        self.collate, self.least, self.workers = collate, least, workers

    def __call__(self, tagged: Tagged | list[Tagged]) -> list[Tagged]:
        """Return a batch and, where a worker's pass ends with it, the tag that says so."""
        if isinstance(tagged, Tagged):
            return [tagged if tagged.last else replace(tagged, item=self._collated(tagged.item))]
        whole = [one for one in tagged if not one.last]
        ends = [one for one in tagged if one.last]
        if len(whole) < self.least:  # the tag has made a batch look full that is to be left out
            return ends
        return [replace(whole[-1], item=self._collated([one.item for one in whole])), *ends]

    def _collated(self, items: Any) -> Any:
        batch = self.collate(items)
        if self.workers:
            to_shared_memory(batch)
        return batch


class LoaderSource:
    """A DataLoader that knows where each of its workers is.

    It resumes by itself over what resumes by itself, a pipeline or a mixture. Any other dataset is read again
    from its beginning.
    """

    def __init__(self, dataset: Any, *args: Any, **kw: Any) -> None:
        from torch.utils.data import DataLoader

        self.resumes_itself: bool = getattr(dataset, "resumes_itself", False)
        self.dataset, self.args, self.kw = dataset, args, kw
        # Made once here so that wrong arguments are reported at once, and for len().
        self.loader: Any = DataLoader(dataset, *args, **kw)
        self._turn = Epoch(0, None)
        self._resume: dict[str, Any] | None = None
        self._states: list[dict[str, Any] | None] = [None] * self._workers
        self._last = -1
        self._tagged: Any = None
        self._expected: Epoch | None = None
        self._heard = 0
        self.found = False
        self.dropped: dict[int, dict[str, Drops]] = {}

    @property
    def _workers(self) -> int:
        return max(int(self.loader.num_workers), 1)

    @property
    def not_resumable(self) -> str | None:
        """Say why there is no state, if there is none."""
        if self.loader.persistent_workers and any(hasattr(s, "filled_in") for s in _stages(self.dataset)):
            return "samples that persistent workers keep in memory are lost with them"
        if self.resumes_itself or not hasattr(self.dataset, "__getitem__"):
            return getattr(self.dataset, "not_resumable", None)
        from torch.utils.data import SequentialSampler

        if isinstance(self.loader.sampler, SequentialSampler):
            return None
        return "the order comes from a sampler of torch, whose state is not known"

    def set_epoch(self, epoch: int) -> None:
        """Tell the dataset, in all workers to come, which epoch this is."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def forget_state(self) -> None:
        """Forget a state that was loaded: the next pass begins at its beginning."""
        self._resume = None

    def begin_epoch(self, turn: Epoch) -> None:
        """Begin the next pass, of which the loader's workers know the number together."""
        self._turn = turn
        if not self.resumes_itself and hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(turn.number)

    def new_epoch(self) -> int | None:
        """Return the epoch that the user has set on the dataset since the last call."""
        passes: EpochCounter | None = getattr(self.dataset, "passes", None)
        if passes is None or passes.epochs_set == self._heard:
            return None
        self._heard = passes.epochs_set
        return passes.user_epoch

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        resume, self._resume = self._resume, None
        if not self.resumes_itself:
            return iter(self.loader)
        if hasattr(self.dataset, "check_ranks"):
            self.dataset.check_ranks()
        self.found = False
        self._states = list(resume["workers"]) if resume else [None] * self._workers
        self._last = resume["last"] if resume else -1
        turn = self._turn
        if not (turn.explicit or current_worker_info().world_size == 1):
            turn = Epoch(turn.number, None)  # other ranks may be in another pass
        if resume or not self.loader.persistent_workers or self._tagged is None or turn != self._expected:
            self._tagged = self._tagged_loader(turn)
        self._expected = _following(turn)
        return self._items(self._tagged, self._states)

    def _items(self, loader: Any, states: list[dict[str, Any] | None]) -> Iterator[Any]:
        epoch = (self._turn.agreed or 0) if self._turn.explicit else 0
        for number, parts in enumerate(loader):
            if number == COMPARED_AFTER and hasattr(self.dataset, "check_epoch"):
                self.dataset.check_epoch(epoch)
            for tagged in parts:
                states[tagged.worker] = tagged.state
                if states is self._states:  # not of a pass that was broken off
                    self._last = tagged.worker
                if tagged.last:
                    self.dropped[tagged.worker] = tagged.drops or {}
                    self.found = self.found or tagged.found
                else:
                    yield tagged.item

    def _tagged_loader(self, turn: Epoch) -> Any:
        from torch.utils.data import DataLoader, IterableDataset

        IterableDataset.register(_InWorker)
        least = self.loader.batch_size if self.loader.batch_size and self.loader.drop_last else 1
        options = {**self.kw, "collate_fn": _Collate(self.loader.collate_fn, least, self.loader.num_workers)}
        first = (self._last + 1) % self._workers
        return DataLoader(_InWorker(self.dataset, list(self._states), first, turn), *self.args, **options)

    def seeds(self) -> Any:
        """Return what the dataset follows from beyond the number of a pass."""
        return self.dataset.seeds() if hasattr(self.dataset, "seeds") else None

    def load_seeds(self, seeds: Any) -> None:
        """Make the dataset, in all workers to come, follow from what `seeds` returned."""
        self.dataset.load_seeds(seeds)
        self._tagged = None

    def state_dict(self) -> dict[str, Any]:
        """Where each worker is, and which one handed out the last item."""
        return self._resume or {"workers": list(self._states), "last": self._last}

    def load_state_dict(self, state: Any, /) -> None:
        """Continue there at the next iteration."""
        states, last = (state.get("workers"), state.get("last")) if isinstance(state, dict) else (None, None)
        if not isinstance(states, list) or not isinstance(last, int):
            raise StateMismatch("the state is damaged: it does not say where the workers of a loader are.")
        if len(states) != self._workers or not -1 <= last < self._workers:
            raise StateMismatch(f"the state is of {len(states)} workers, this loader has {self._workers}.")
        self._resume = {"workers": states, "last": last}
