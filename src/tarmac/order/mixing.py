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
from itertools import accumulate, islice
from typing import Any, Protocol

from tarmac.errors import StateMismatch
from tarmac.order.passes import Source
from tarmac.order.seeds import chosen_seed, make_seed
from tarmac.order.workers import current_place

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


class _Mix(Source, ABC):
    """What all mixtures share: passes, ends of datasets, and states."""

    resumes_itself = True  # as the first stage of a pipeline

    def __init__(self, datasets: Iterable[Iterable[Any]], longest: bool) -> None:
        super().__init__()
        self.datasets: list[Any] = list(datasets)
        if not self.datasets:
            raise ValueError("a mixture needs at least one dataset")
        self.longest = longest
        self._epoch = 0
        self._emitted = 0
        self._ended: list[list[int]] = []
        self._resume: Mapping[str, Any] | None = None

    @abstractmethod
    def _choices(self, epoch: int) -> _Choices:
        """Begin the choices of a pass."""

    def set_epoch(self, epoch: int) -> None:
        """Say which pass comes next, to this mixture and, when it begins, to its datasets."""
        super().set_epoch(epoch)
        if self._resume is not None and self._resume["epoch"] == epoch:
            return  # a pipeline says again what the state has said
        self._resume = None
        self._epoch, self._emitted, self._ended = epoch, 0, []

    def state_dict(self) -> dict[str, Any]:
        """Tell how far the pass has come, as JSON."""
        if self._resume is not None:
            return dict(self._resume)
        return {
            "epoch": self._epoch,
            "emitted": self._emitted,
            "ended": [list(end) for end in self._ended],
            "datasets": [data.state_dict() if _resumes(data) else None for data in self.datasets],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass go on where `state_dict` was taken."""
        if len(state["datasets"]) != len(self.datasets):
            raise StateMismatch(
                f"the state is of a mixture of {len(state['datasets'])} datasets, not {len(self.datasets)}."
            )
        super().set_epoch(state["epoch"])
        self._resume = dict(state)

    def __iter__(self) -> Iterator[Any]:
        resume, self._resume = self._resume or {}, None
        self._epoch = self._begin()
        self._emitted = resume.get("emitted", 0)
        self._ended = [list(end) for end in resume.get("ended", ())]
        choices = self._choices(self._epoch)
        counts, left = _replay(choices, len(self.datasets), self._emitted, self._ended)
        return self._run(choices, left, counts, resume.get("datasets") or [None] * len(self.datasets))

    def _run(
        self, choices: _Choices, left: list[int], counts: Sequence[int], states: Sequence[Any]
    ) -> Iterator[Any]:
        sources: dict[int, Iterator[Any]] = {}
        try:
            for number in left:
                dataset, taken = self.datasets[number], counts[number]
                sources[number] = _begun(dataset, self._epoch, taken, states[number] if taken else None)
            while (self.longest or not self._ended) and (place := choices.choose()) is not None:
                item = next(sources[left[place]], _STOPPED)
                if item is _STOPPED:
                    self._ended.append([self._emitted, left.pop(place)])
                    choices.drop(place)
                else:
                    self._emitted += 1
                    yield item
        finally:
            for number, source in sources.items():
                if source is not self.datasets[number] and hasattr(source, "close"):
                    source.close()


class RoundRobin(_Mix):
    """Take one item of each dataset in turn: until the first ends, or with `longest` until all have."""

    def __init__(self, datasets: Iterable[Iterable[Any]], longest: bool = False) -> None:
        super().__init__(datasets, longest)

    def _choices(self, epoch: int) -> _Choices:
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

    def _choices(self, epoch: int) -> _Choices:
        place = current_place()
        seed = make_seed("mix", self.seed, epoch, place.rank, place.worker)
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


def _begun(dataset: Any, epoch: int, taken: int, state: Any) -> Iterator[Any]:
    """Begin a pass over a dataset behind the items taken from it: by its state, its `skip`, or by reading."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)
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
