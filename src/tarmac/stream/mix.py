"""Several datasets as one: in turn, or at random with given probabilities.

A state is the number of the pass, how many items were handed out, which datasets had ended when, and the
states of the datasets that have one. From it the choices are made again without reading, and each dataset
returns to its place or skips what was taken from it.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, Protocol

from tarmac.errors import NotResumable, StateMismatch
from tarmac.runtime.seeds import all_seeds, chosen_seed, load_all_seeds, make_seed
from tarmac.runtime.worker_info import WorkerInfo, current_worker_info
from tarmac.stream.epochs import Epoch, EpochAware, StreamSource

__all__ = ["RandomMix", "RoundRobin"]

_STOPPED = object()


class _Choices(Protocol):
    """Which of the datasets that are left is next."""

    def choose(self) -> int | None:
        """Return the place of the next among those left; None if none can be chosen."""

    def drop(self, place: int) -> None:
        """Forget the dataset that was chosen last, as it has ended."""


class _InTurn:
    """One after the other."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._next = 0

    def choose(self) -> int | None:
        if not self._left:
            return None
        place = self._next % self._left
        self._next = place + 1
        return place

    def drop(self, place: int) -> None:
        self._left -= 1
        self._next = place


class _AtRandom:
    """By weights, which need not add up to one."""

    def __init__(self, weights: Sequence[float], rng: random.Random) -> None:
        self._weights = list(weights)
        self._rng = rng
        self._sum_up()

    def _sum_up(self) -> None:
        self._sums = list(accumulate(self._weights))
        possible = [place for place, weight in enumerate(self._weights) if weight > 0]
        self._last = possible[-1] if possible else None

    def choose(self) -> int | None:
        if self._last is None:
            return None
        # Rounding may carry the product up to the sum itself, which lies behind the last dataset.
        return bisect_right(self._sums, self._rng.random() * self._sums[-1], hi=self._last)

    def drop(self, place: int) -> None:
        del self._weights[place]
        self._sum_up()


class _Mix(StreamSource, ABC):
    """What all mixtures share: passes, ends of datasets, and states."""

    resumes_itself = True  # as the first stage of a pipeline

    def __init__(self, datasets: Iterable[Iterable[Any]], longest: bool) -> None:
        super().__init__()
        self.datasets: list[Any] = list(datasets)
        if not self.datasets:
            raise ValueError("a mixture needs at least one dataset")
        self.longest = longest
        self._progress = _Progress(Epoch(0, None))
        self._resume: dict[str, Any] | None = None

    @abstractmethod
    def _choices(self, turn: Epoch) -> _Choices:
        """Begin the choices of a pass."""

    @property
    def not_resumable(self) -> str | None:
        """Say why there is no state: a dataset has none."""
        return next(filter(None, (getattr(data, "not_resumable", None) for data in self.datasets)), None)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, to this mixture and, when it begins, to its datasets."""
        super().set_epoch(epoch)
        if self._resume is not None and self._resume["epoch"] == epoch:
            return  # a training loop says again what the state has said
        self.forget_state()
        self._progress = _Progress(Epoch(epoch, epoch, explicit=True))

    def forget_state(self) -> None:
        """Forget a state that was loaded: the next pass begins at its beginning."""
        self._resume = None

    @property
    def found(self) -> bool:
        """Whether a dataset read anything in the last pass, be it that stages dropped all of it."""
        return any(getattr(data, "found", False) for data in self.datasets)

    def begin_epoch(self, turn: Epoch) -> None:
        """Begin the next pass as the pipeline around this mixture says."""
        self._epochs.dictate(turn)

    def seeds(self) -> list[Any]:
        """Return what the datasets follow from beyond the number of a pass."""
        return all_seeds(self.datasets)

    def load_seeds(self, seeds: Any) -> None:
        """Make the datasets follow from what `seeds` returned."""
        load_all_seeds(self.datasets, seeds)

    def state_dict(self) -> dict[str, Any]:
        """Tell how far the pass has come, as JSON."""
        if self.not_resumable:
            raise NotResumable(f"{type(self).__name__}: {self.not_resumable}.")
        if self._resume is not None:
            return dict(self._resume)
        progress = self._progress
        return {
            "epoch": progress.turn.number,
            "agreed": progress.turn.agreed or 0,
            "explicit": progress.turn.explicit,
            "emitted": progress.emitted,
            "ended": [list(end) for end in progress.ended],
            "datasets": [data.state_dict() if _resumes(data) else None for data in self.datasets],
            "seeds": self.seeds(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass go on where `state_dict` was taken."""
        checked = _checked(state, len(self.datasets))
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
        choices = self._choices(progress.turn)
        counts, left = _replay(choices, len(self.datasets), progress.emitted, progress.ended)
        return self._run(progress, choices, left, counts, states)

    def _run(
        self,
        progress: _Progress,
        choices: _Choices,
        left: list[int],
        counts: Sequence[int],
        states: Sequence[Any],
    ) -> Iterator[Any]:
        sources: dict[int, Iterator[Any]] = {}
        try:
            for number in left:
                dataset, taken = self.datasets[number], counts[number]
                sources[number] = _begun(dataset, progress.turn, taken, states[number] if taken else None)
            while (self.longest or not progress.ended) and (place := choices.choose()) is not None:
                item = next(sources[left[place]], _STOPPED)
                if item is _STOPPED:
                    progress.ended.append([progress.emitted, left.pop(place)])
                    choices.drop(place)
                else:
                    progress.emitted += 1
                    yield item
        finally:
            for number, source in sources.items():
                if source is not self.datasets[number] and hasattr(source, "close"):
                    source.close()


@dataclass(slots=True)
class _Progress:
    """Where one pass over a mixture is."""

    turn: Epoch
    emitted: int = 0
    ended: list[list[int]] = field(default_factory=list)


def _checked(state: object, datasets: int) -> dict[str, Any]:
    """Return a state if it is one of a mixture of so many datasets."""
    names = ("epoch", "agreed", "explicit", "emitted", "ended", "datasets", "seeds")
    if not isinstance(state, Mapping) or any(name not in state for name in names):
        raise StateMismatch("this is not the state of a mixture.")
    if not isinstance(state["datasets"], list) or len(state["datasets"]) != datasets:
        found = len(state["datasets"]) if isinstance(state["datasets"], list) else "unknown"
        raise StateMismatch(f"the state is of a mixture of {found} datasets, not {datasets}.")
    ended = state["ended"]
    if not isinstance(ended, list) or not all(isinstance(end, list) and len(end) == 2 for end in ended):
        raise StateMismatch("the state is damaged: 'ended' must be a list of pairs of numbers.")
    numbers = [state["epoch"], state["agreed"], state["emitted"]]
    for number in [*numbers, *(value for end in ended for value in end)]:
        if not isinstance(number, int) or not 0 <= number < 2**63:
            raise StateMismatch(f"the state is damaged: a whole number was expected, found {number!r}.")
    return dict(state)


class RoundRobin(_Mix):
    """Take one item of each dataset in turn: until the first ends, or with `longest` until all have."""

    def __init__(self, datasets: Iterable[Iterable[Any]], longest: bool = False) -> None:
        super().__init__(datasets, longest)

    def _choices(self, turn: Epoch) -> _Choices:
        return _InTurn(len(self.datasets))


class RandomMix(_Mix):
    """Take each item from a dataset chosen at random: until the first ends, or with `longest` until all have.

    `probs` are weights, equal by default. The choices follow from the seed (`WDS_SEED` or 0 without one), the
    number of the pass, the rank and the worker.
    """

    def __init__(
        self,
        datasets: Iterable[Iterable[Any]],
        probs: Iterable[float] | None = None,
        longest: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(datasets, longest)
        self.probs = [1.0] * len(self.datasets) if probs is None else [float(prob) for prob in probs]
        _check_weights(self.probs, len(self.datasets))
        self.seed = chosen_seed(seed)

    def _choices(self, turn: Epoch) -> _Choices:
        place = WorkerInfo() if turn.shared else current_worker_info()
        seed = make_seed("mix", self.seed, turn.number, place.rank, place.worker)
        return _AtRandom(self.probs, random.Random(seed))


def _replay(
    choices: _Choices, count: int, skipped: int, ended: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Make choices again without reading; return how many items each dataset gave, and which are left."""
    counts = [0] * count
    left = list(range(count))
    ends = [(at, number) for at, number in ended]
    emitted = 0
    while emitted < skipped or ends:
        ends_now = bool(ends) and ends[0][0] == emitted
        place = choices.choose()
        if place is None or (left[place] != ends[0][1] if ends_now else emitted >= skipped):
            raise StateMismatch(
                "the state is of a mixture with other choices: other weights or another seed."
            )
        if ends_now:
            del ends[0], left[place]
            choices.drop(place)
        else:
            counts[left[place]] += 1
            emitted += 1
    return counts, left


def _resumes(dataset: Any) -> bool:
    """Whether a dataset itself returns to a saved place."""
    return getattr(dataset, "resumes_itself", False) and hasattr(dataset, "state_dict")


def _begun(dataset: Any, turn: Epoch, taken: int, state: Any) -> Iterator[Any]:
    """Begin a pass over a dataset behind the items taken from it: by its state, its `skip`, or by reading."""
    if hasattr(dataset, "begin_epoch"):
        dataset.begin_epoch(turn)
    elif hasattr(dataset, "set_epoch"):
        dataset.set_epoch(turn.number)
        if isinstance(dataset, EpochAware):
            dataset.shared = turn.shared
    if state is not None and _resumes(dataset):
        dataset.load_state_dict(state)
        taken = 0
    elif taken and callable(getattr(dataset, "skip", None)):
        found = dataset.skip(taken)  # in place, or as a new dataset
        dataset, taken = dataset if found is None else found, 0
    source: Iterator[Any] = iter(dataset)
    next(islice(source, taken, taken), None)
    return source


def _check_weights(weights: Sequence[float], count: int) -> None:
    if len(weights) != count:
        raise ValueError(f"{count} datasets need as many probabilities, got {len(weights)}")
    if (
        not all(math.isfinite(weight) and weight >= 0 for weight in weights)
        or not 0 < sum(weights) < math.inf
    ):
        raise ValueError(f"probabilities must not be negative, nor all zero, got {list(weights)}")
