"""Mix datasets: take items from them in turn, or at random with given probabilities.

A state holds the epoch, the number of items, when each dataset ended, and the states of the datasets that have one. To
restore it, the choices are replayed without reading, and each dataset restores its state or skips the items taken
from it.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any

from tarmac.errors import NotResumable, StateMismatch, UsageError
from tarmac.runtime.seeds import all_seeds, load_all_seeds, make_seed, seed_or_default
from tarmac.runtime.worker_info import WorkerInfo, current_worker_info
from tarmac.steps.stage import Epoch, as_stage
from tarmac.stream.epochs import StreamSource
from tarmac.stream.state import STATE_VERSION, check_version

_END = object()


_Choose = Callable[[Sequence[int]], int | None]
"""Given the numbers of the remaining datasets, return the index of the next one; None if none can be chosen."""


class _InTurn:
    """Choose one dataset after the other."""

    _last = -1

    def choose(self, left: Sequence[int]) -> int | None:
        if not left:
            return None
        index = bisect_right(left, self._last) % len(left)
        self._last = left[index]
        return index


class _AtRandom:
    """Choose by weights, whose sum need not be one."""

    def __init__(self, weights: Sequence[float], rng: random.Random) -> None:
        self._weights, self._rng = weights, rng
        self._sums: list[float] = []
        self._last = 0

    def choose(self, left: Sequence[int]) -> int | None:
        if len(self._sums) != len(left):  # the first choice, or a dataset has ended
            self._sums = list(accumulate(self._weights[number] for number in left))
            self._last = bisect_left(self._sums, max(self._sums, default=0))
        if not left or not self._sums[-1]:
            return None
        # Rounding may make the product equal to the sum, which is behind the last dataset that has a weight.
        return bisect_right(self._sums, self._rng.random() * self._sums[-1], hi=self._last)


class _Mix(StreamSource, ABC):
    """Base class of mixtures: epochs, ends of datasets, and states."""

    resumes_itself = True

    def __init__(self, datasets: Iterable[Iterable[Any]], longest: bool = False) -> None:
        super().__init__()
        self.datasets: list[Any] = list(datasets)
        if not self.datasets:
            raise UsageError("expected at least one dataset.", field="datasets")
        self.longest: bool = longest
        self._progress = _Progress(Epoch(0, None))
        self._resume: dict[str, Any] | None = None

    @abstractmethod
    def _choices(self, epoch: Epoch) -> _Choose:
        """Return how the datasets of an epoch are chosen."""

    @property
    def not_resumable(self) -> str | None:  # type: ignore[override]
        """Why the mixture has no state: a dataset has none."""
        return next(filter(None, (as_stage(data).not_resumable for data in self.datasets)), None)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, of this mixture and of its datasets."""
        super().set_epoch(epoch)
        if self._resume is not None and self._resume["epoch"] == epoch:
            return  # a training loop may repeat the epoch of the state
        self.forget_state()
        self._progress = _Progress(Epoch(epoch, epoch, explicit=True))

    def forget_state(self) -> None:
        """Discard a loaded state: the next epoch starts at its beginning."""
        self._resume = None

    @property
    def read_any(self) -> bool:  # type: ignore[override]
        """Whether a dataset read any sample in the last epoch, even if its stages dropped all of them."""
        return any(as_stage(data).read_any for data in self.datasets)

    def seeds(self) -> list[Any]:
        return all_seeds(self.datasets)

    def load_seeds(self, seeds: Any) -> None:
        load_all_seeds(self.datasets, seeds)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, as JSON."""
        if self.not_resumable:
            raise NotResumable(f"{type(self).__name__}: {self.not_resumable}.")
        if self._resume is not None:
            return dict(self._resume)
        progress = self._progress
        return {
            "version": STATE_VERSION,
            "epoch": progress.epoch.number,
            "agreed": progress.epoch.agreed or 0,
            "explicit": progress.epoch.explicit,
            "emitted": progress.emitted,
            "ended": [list(end) for end in progress.ended],
            "datasets": [
                data.state_dict() if as_stage(data).resumes_itself else None for data in self.datasets
            ],
            "seeds": self.seeds(),
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue at a saved position in the next epoch."""
        checked = _check_state(state, len(self.datasets))
        self.load_seeds(checked["seeds"])
        self._resume = checked

    def __iter__(self) -> Iterator[Any]:
        resume, self._resume = self._resume, None
        worker = current_worker_info().worker
        if resume is not None:
            self._epochs.resume(Epoch(resume["epoch"], resume["agreed"], explicit=resume["explicit"]), worker)
        progress = self._progress = _Progress(self._epochs.begin(worker))
        states: Sequence[Any] = [None] * len(self.datasets)
        if resume is not None:
            progress.emitted, progress.ended = resume["emitted"], [list(end) for end in resume["ended"]]
            states = resume["datasets"]
        choose = self._choices(progress.epoch)
        counts, left = _replay(choose, len(self.datasets), progress.emitted, progress.ended)
        return self._run(progress, choose, left, counts, states)

    def _run(
        self,
        progress: _Progress,
        choose: _Choose,
        left: list[int],
        counts: Sequence[int],
        states: Sequence[Any],
    ) -> Iterator[Any]:
        sources: dict[int, Iterator[Any]] = {}
        try:
            for number in left:
                dataset, taken = self.datasets[number], counts[number]
                sources[number] = _begin(dataset, progress.epoch, taken, states[number] if taken else None)
            while (self.longest or not progress.ended) and (index := choose(left)) is not None:
                item = next(sources[left[index]], _END)
                if item is _END:
                    progress.ended.append([progress.emitted, left.pop(index)])
                else:
                    progress.emitted += 1
                    yield item
        finally:
            for number, source in sources.items():
                if source is not self.datasets[number] and hasattr(source, "close"):
                    source.close()


@dataclass(slots=True)
class _Progress:
    """The position in one epoch of a mixture."""

    epoch: Epoch
    emitted: int = 0
    ended: list[list[int]] = field(default_factory=list)


def _check_state(state: object, datasets: int) -> dict[str, Any]:
    """Return the state; raise StateMismatch if it is not one of a mixture with this number of datasets."""
    names = ("epoch", "agreed", "explicit", "emitted", "ended", "datasets", "seeds")
    if not isinstance(state, Mapping) or any(name not in state for name in names):
        raise StateMismatch("expected the state of a mixture.")
    check_version(state)
    if not isinstance(state["datasets"], list) or len(state["datasets"]) != datasets:
        saved = len(state["datasets"]) if isinstance(state["datasets"], list) else "unknown"
        raise StateMismatch(f"the state has {saved} datasets, this mixture has {datasets}.")
    ended = state["ended"]
    if not isinstance(ended, list) or not all(isinstance(end, list) and len(end) == 2 for end in ended):
        raise StateMismatch("the state is damaged: 'ended' must be a list of pairs of integers.")
    numbers = [state["epoch"], state["agreed"], state["emitted"]]
    for number in [*numbers, *(value for end in ended for value in end)]:
        if not isinstance(number, int) or not 0 <= number < 2**63:
            raise StateMismatch(f"the state is damaged: expected an integer of 0 or more, got {number!r}.")
    return dict(state)


class RoundRobin(_Mix):
    """Take one item of each dataset in turn, until the first one ends; with `longest`, until all have ended."""

    def _choices(self, epoch: Epoch) -> _Choose:
        return _InTurn().choose


class RandomMix(_Mix):
    """Take each item from a random dataset, until the first one ends; with `longest`, until all have ended.

    `probs` are weights, equal by default. The choices depend on the seed (by default `WDS_SEED`, or 0), the epoch, the
    rank and the worker.
    """

    def __init__(
        self,
        datasets: Iterable[Iterable[Any]],
        probs: Iterable[float] | None = None,
        longest: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(datasets, longest)
        self.probs: list[float] = (
            [1.0] * len(self.datasets) if probs is None else [float(prob) for prob in probs]
        )
        _check_weights(self.probs, len(self.datasets))
        self.seed: int = seed_or_default(seed)

    def _choices(self, epoch: Epoch) -> _Choose:
        info = WorkerInfo() if epoch.shared else current_worker_info()
        seed = make_seed("mix", self.seed, epoch.number, info.rank, info.worker)
        return _AtRandom(self.probs, random.Random(seed)).choose


def _replay(
    choose: _Choose, count: int, skipped: int, ended: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Replay choices without reading; return the number of items taken from each dataset, and which are left."""
    counts = [0] * count
    left = list(range(count))
    ends = list(ended)
    emitted = 0
    while emitted < skipped or ends:
        ends_now = bool(ends) and ends[0][0] == emitted
        index = choose(left)
        if index is None or (left[index] != ends[0][1] if ends_now else emitted >= skipped):
            raise StateMismatch("the state belongs to a mixture with different weights or a different seed.")
        if ends_now:
            del ends[0], left[index]
        else:
            counts[left[index]] += 1
            emitted += 1
    return counts, left


def _begin(dataset: Any, epoch: Epoch, taken: int, state: Any) -> Iterator[Any]:
    """Begin an epoch of a dataset after the items already taken from it: by its state, its `skip`, or by reading."""
    as_stage(dataset).begin_epoch(epoch)
    if state is not None and as_stage(dataset).resumes_itself:
        dataset.load_state_dict(state)
        taken = 0
    elif taken and callable(getattr(dataset, "skip", None)):
        skipped = dataset.skip(taken)  # in place, or as a new dataset
        dataset, taken = dataset if skipped is None else skipped, 0
    source: Iterator[Any] = iter(dataset)
    next(islice(source, taken, taken), None)
    return source


def _check_weights(weights: Sequence[float], count: int) -> None:
    if len(weights) != count:
        raise UsageError(f"expected {count} probabilities, got {len(weights)}.", field="probs")
    if (
        not all(math.isfinite(weight) and weight >= 0 for weight in weights)
        or not 0 < sum(weights) < math.inf
    ):
        raise UsageError(
            f"expected probabilities of 0 or more that are not all 0, got {list(weights)}.", field="probs"
        )
