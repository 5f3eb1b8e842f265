"""WebLoader: torch's DataLoader as the first stage of a pipeline, which resumes with its workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tarmac.errors import StateMismatch
from tarmac.extras import import_extra
from tarmac.runtime.worker_info import assume_worker, current_worker_info
from tarmac.steps.handlers import Drops
from tarmac.steps.stage import Epoch, PipelineStage, as_stage
from tarmac.stream.batch import warn_no_batches
from tarmac.stream.epochs import EpochAware
from tarmac.stream.fluent import FluidInterface
from tarmac.stream.pipeline import COMPARED_AFTER, DataPipeline
from tarmac.stream.sample_cache import Cached
from tarmac.stream.shared_memory import to_shared_memory


class WebLoader(DataPipeline, FluidInterface):
    """A torch DataLoader with the fluent interface; it takes the arguments of DataLoader.

    >>> loader = WebLoader(dataset, batch_size=None, num_workers=4).unbatched().shuffle(1000).batched(64)

    `state_dict` holds the position of every worker; a new loader with the same number of workers continues there.
    """

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(self._source_class()(*args, **kw))

    @staticmethod
    def _source_class() -> type[LoaderSource]:
        return LoaderSource

    def __iter__(self) -> Iterator[Any]:
        source = self.pipeline[0] if self.pipeline else None
        epoch = source.new_epoch() if isinstance(source, LoaderSource) else None
        if epoch is not None:
            self.set_epoch(epoch)
        return super().__iter__()

    def drops(self) -> dict[str, Drops]:
        """Return what handlers have dropped in workers that have finished an epoch, and in this process, by stage."""
        report = super().drops()
        source = self.pipeline[0] if self.pipeline else None
        for worker, dropped in sorted(getattr(source, "dropped", {}).items()):
            report.update({f"worker {worker}: {stage}": drops for stage, drops in dropped.items()})
        return report


@dataclass
class Tagged:
    """An item from a worker, with the number of the worker and its state after the item.

    The last one of a worker's epoch has no item, only what the worker has dropped.
    """

    worker: int
    state: dict[str, Any]
    item: Any = None
    last: bool = False
    drops: dict[str, Drops] | None = None
    read_any: bool = False
    """Whether the worker has read anything."""

    def pin_memory(self) -> Tagged:
        from torch.utils.data._utils.pin_memory import pin_memory

        return replace(self, item=pin_memory(self.item))


class _InWorker:
    """The dataset in a worker, which continues as a worker of the saved run.

    `epoch` is the one that the workers begin with. Persistent workers iterate once for each further epoch.
    """

    def __init__(self, dataset: Any, states: list[dict[str, Any] | None], first: int, epoch: Epoch) -> None:
        self.dataset, self.states, self.first, self.epoch = dataset, states, first, epoch

    def __iter__(self) -> Iterator[Tagged]:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        role = 0 if info is None else (info.id + self.first) % info.num_workers
        if info is not None:
            assume_worker(role)
        state, epoch = self.states[role] if self.states else None, self.epoch
        self.states, self.first, self.epoch = [], 0, _next_epoch(epoch)
        as_stage(self.dataset).begin_epoch(epoch)
        if state is not None:
            self.dataset.load_state_dict(state)
        return self._items(role)

    def _items(self, role: int) -> Iterator[Tagged]:
        for item in self.dataset:
            yield Tagged(role, self.dataset.state_dict(), item)
        drops = self.dataset.drops() if isinstance(self.dataset, DataPipeline) else {}
        read_any = as_stage(self.dataset).read_any
        yield Tagged(role, self.dataset.state_dict(), last=True, drops=drops, read_any=read_any)


def _stages(dataset: Any) -> Iterator[Any]:
    """Yield the stages of a pipeline, and of the pipelines that it mixes or begins with."""
    for stage in (*getattr(dataset, "pipeline", ()), *getattr(dataset, "datasets", ())):
        yield stage
        yield from _stages(stage)


def _next_epoch(epoch: Epoch) -> Epoch:
    agreed = None if epoch.agreed is None else epoch.agreed + 1
    return replace(epoch, number=epoch.number + 1, agreed=agreed)


class _Collate:
    """Collate the items inside the tags."""

    def __init__(self, collate: Any, min_size: int, workers: int) -> None:
        self.collate, self.min_size, self.workers = collate, min_size, workers

    def __call__(self, tagged: Tagged | list[Tagged]) -> list[Tagged]:
        """Return a batch and, if a worker's epoch ends with it, the last tag of the epoch."""
        if isinstance(tagged, Tagged):
            return [tagged if tagged.last else replace(tagged, item=self._collate(tagged.item))]
        whole = [one for one in tagged if not one.last]
        ends = [one for one in tagged if one.last]
        if len(whole) < self.min_size:  # drop_last: the last tag made an incomplete batch look full
            return ends
        return [replace(whole[-1], item=self._collate([one.item for one in whole])), *ends]

    def _collate(self, items: Any) -> Any:
        batch = self.collate(items)
        if self.workers:
            to_shared_memory(batch)
        return batch


class LoaderSource(PipelineStage):
    """A DataLoader that knows the position of each of its workers.

    It restores the positions of a dataset that can restore its own, a pipeline or a mixture. Any other dataset is
    read again from its beginning.
    """

    def __init__(self, dataset: Any, *args: Any, **kw: Any) -> None:
        import_extra("torch", "torch", "WebLoader")
        from torch.utils.data import DataLoader

        self.resumes_itself: bool = as_stage(dataset).resumes_itself
        self.dataset: Any = dataset
        self.args: tuple[Any, ...] = args
        self.kw: dict[str, Any] = kw
        # Created early so that invalid arguments raise here, and for len().
        self.loader: Any = DataLoader(dataset, *args, **kw)
        self._epoch = Epoch(0, None)
        self._resume: dict[str, Any] | None = None
        self._states: list[dict[str, Any] | None] = [None] * self._workers
        self._last = -1
        self._tagged: Any = None
        self._expected: Epoch | None = None
        self._epochs_seen = 0
        self.read_any: bool = False
        self.dropped: dict[int, dict[str, Drops]] = {}

    @property
    def _workers(self) -> int:
        return max(int(self.loader.num_workers), 1)

    @property
    def not_resumable(self) -> str | None:  # type: ignore[override]
        """Why there is no state."""
        if self.loader.persistent_workers and any(isinstance(s, Cached) for s in _stages(self.dataset)):
            return "the samples that persistent workers cache in memory are lost with the workers"
        if self.resumes_itself or not hasattr(self.dataset, "__getitem__"):
            return as_stage(self.dataset).not_resumable
        from torch.utils.data import SequentialSampler

        if isinstance(self.loader.sampler, SequentialSampler):
            return None
        return "the order comes from a sampler of torch, whose state is unknown"

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch of the dataset, in all future workers."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def forget_state(self) -> None:
        """Discard a loaded state: the next epoch starts at its beginning."""
        self._resume = None

    def begin_epoch(self, epoch: Epoch) -> None:
        self._epoch = epoch
        if not self.resumes_itself:
            self.set_epoch(epoch.number)

    def new_epoch(self) -> int | None:
        """Return the epoch that `set_epoch` gave the dataset since the last call; it also applies to the loader."""
        if (
            not isinstance(self.dataset, EpochAware)
            or self.dataset.epoch_counter.epochs_set == self._epochs_seen
        ):
            return None
        self._epochs_seen = self.dataset.epoch_counter.epochs_set
        return self.dataset.epoch_counter.user_epoch

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        resume, self._resume = self._resume, None
        if not self.resumes_itself:
            return iter(self.loader)
        if isinstance(self.dataset, DataPipeline):
            self.dataset.check_ranks()
        self.read_any = False
        self._states = list(resume["workers"]) if resume else [None] * self._workers
        self._last = resume["last"] if resume else -1
        epoch = self._epoch
        if not (epoch.explicit or current_worker_info().world_size == 1):
            epoch = Epoch(epoch.number, None)  # other ranks may be in another epoch
        if resume or not self.loader.persistent_workers or self._tagged is None or epoch != self._expected:
            self._tagged = self._tagged_loader(epoch)
        self._expected = _next_epoch(epoch)
        return self._items(self._tagged, self._states)

    def _items(self, loader: Any, states: list[dict[str, Any] | None]) -> Iterator[Any]:
        epoch, yielded = (self._epoch.agreed or 0) if self._epoch.explicit else 0, False
        for number, parts in enumerate(loader):
            if number == COMPARED_AFTER and isinstance(self.dataset, DataPipeline):
                self.dataset.check_epoch(epoch)
            for tagged in parts:
                states[tagged.worker] = tagged.state
                if states is self._states:  # not those of an interrupted epoch
                    self._last = tagged.worker
                if tagged.last:
                    self.dropped[tagged.worker] = tagged.drops or {}
                    self.read_any = self.read_any or tagged.read_any
                else:
                    yield tagged.item
                    yielded = True
        if not yielded and self.read_any and self.loader.drop_last:
            warn_no_batches(f"the samples do not fill a batch of {self.loader.batch_size}")
        if isinstance(self.dataset, DataPipeline):
            self.dataset.complete_epoch()

    def _tagged_loader(self, epoch: Epoch) -> Any:
        from torch.utils.data import DataLoader, IterableDataset

        IterableDataset.register(_InWorker)
        min_size = self.loader.batch_size if self.loader.batch_size and self.loader.drop_last else 1
        collate = _Collate(self.loader.collate_fn, min_size, self.loader.num_workers)
        options = {**self.kw, "collate_fn": collate}
        first = (self._last + 1) % self._workers
        return DataLoader(_InWorker(self.dataset, list(self._states), first, epoch), *self.args, **options)

    def seeds(self) -> Any:
        return as_stage(self.dataset).seeds()

    def load_seeds(self, seeds: Any) -> None:
        self.dataset.load_seeds(seeds)
        self._tagged = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each worker, and which one yielded the last item."""
        return self._resume or {"workers": list(self._states), "last": self._last}

    def load_state_dict(self, state: Any, /) -> None:
        """Continue at a saved position in the next iteration."""
        states, last = (state.get("workers"), state.get("last")) if isinstance(state, dict) else (None, None)
        if not isinstance(states, list) or not isinstance(last, int):
            raise StateMismatch("the state is damaged: 'workers' or 'last' is missing.")
        if len(states) != self._workers or not -1 <= last < self._workers:
            raise StateMismatch(f"the state has {len(states)} workers, this loader has {self._workers}.")
        self._resume = {"workers": states, "last": last}
