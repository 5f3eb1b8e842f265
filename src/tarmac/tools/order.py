"""Reorder samples: what the Order arguments mean, as permutations that are computed in pieces."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, islice
from typing import Any, Literal, Protocol

import numpy as np
import xxhash

from tarmac.errors import UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.order.bijection import permute
from tarmac.runtime.seeds import make_seed
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample
from tarmac.stream.shuffle import buffer_shuffle


class Permutation(Protocol):
    """Maps positions to sample numbers."""

    @property
    def size(self) -> int:
        """Return the number of positions."""

    def at(self, start: int, stop: int) -> Integers:
        """Return the sample numbers at the positions from `start` to `stop`."""


@dataclass(frozen=True, slots=True)
class Shuffled:
    """A random permutation that is computed, not stored."""

    size: int
    seed: int | str

    def at(self, start: int, stop: int) -> Integers:
        return permute(np.arange(start, stop), max(self.size, 1), make_seed("copy", self.seed))


class _Stored:
    """A permutation whose numbers are computed once in each process; `_all` returns them."""

    _all: Any

    @property
    def size(self) -> int:
        return len(self._all)

    def at(self, start: int, stop: int) -> Integers:
        return np.array(self._all[start:stop], np.int64)

    def __getstate__(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class Interleaved(_Stored):
    """One sample of each of `ways` shards in turn; the next shard replaces one that is exhausted."""

    lengths: tuple[int, ...]
    ways: int

    @cached_property
    def _all(self) -> Integers:
        starts = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        waiting = list(range(len(self.lengths)))[::-1]
        active: list[list[int]] = []  # the next sample and the end of each shard
        runs: list[Integers] = []
        while waiting or active:
            while waiting and len(active) < self.ways:
                shard = waiting.pop()
                if self.lengths[shard]:
                    active.append([int(starts[shard]), int(starts[shard + 1])])
            if not active:
                break
            turns = min(stop - start for start, stop in active)
            heads = np.array([start for start, _ in active], np.int64)
            runs.append((heads + np.arange(turns)[:, None]).ravel())
            active = [[start + turns, stop] for start, stop in active if start + turns < stop]
        return np.concatenate(runs) if runs else np.empty(0, np.int64)


@dataclass(frozen=True)
class Listed(_Stored):
    """A permutation in an .npy file."""

    path: str

    @cached_property
    def _all(self) -> Any:
        return np.load(self.path, mmap_mode="r")


@dataclass(frozen=True)
class Mixed(_Stored):
    """Several datasets, numbered consecutively and mixed by weights; each keeps its own order.

    A sample of a dataset is due about every 1 / weight, and samples are in the order in which they are due.
    When a dataset is exhausted, the others continue with their weights, or all end with the first.
    """

    lengths: tuple[int, ...]
    weights: tuple[float, ...]
    seed: int
    until: Literal["first", "all"] = "all"

    @cached_property
    def _all(self) -> Integers:
        rng = np.random.default_rng(make_seed("mix", self.seed))
        due = [
            (np.arange(length) + rng.random(length)) / weight
            for length, weight in zip(self.lengths, self.weights, strict=True)
        ]
        order = np.argsort(np.concatenate(due), kind="stable")
        if self.until == "first":
            end = min(length / weight for length, weight in zip(self.lengths, self.weights, strict=True))
            order = order[: int(sum((times < end).sum() for times in due))]
        return order


def permutation_text(permutation: Permutation | None) -> str:
    """Return a text that identifies a permutation, for a ledger."""
    if isinstance(permutation, Listed):
        digest = xxhash.xxh3_64()
        with open(permutation.path, "rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
        return digest.hexdigest()
    return repr(permutation)


@dataclass(frozen=True)
class Order:
    """The order of samples; `OrderArgs` documents the arguments."""

    shuffle: bool = False
    seed: int = 0
    buffer: int = 10_000
    interleave: int = 0
    weights: Sequence[float] = ()
    until: Literal["first", "all"] = "all"

    def __post_init__(self) -> None:
        if sum(map(bool, (self.shuffle, self.interleave, self.weights))) > 1:
            raise UsageError("`shuffle`, `interleave` and `weights` are mutually exclusive.")
        if self.buffer < 1:
            raise UsageError(f"expected a positive number, got {self.buffer}.", field="buffer")
        if self.interleave < 0:
            raise UsageError(f"expected a positive number, got {self.interleave}.", field="interleave")
        if min(self.weights, default=1) <= 0:
            raise UsageError(f"expected positive numbers, got {min(self.weights)}.", field="weights")
        if self.until not in ("first", "all"):
            raise UsageError(f"expected 'first' or 'all', got {self.until!r}.", field="until")

    @property
    def as_is(self) -> bool:
        """Return whether the order does not change."""
        return not (self.shuffle or self.interleave or self.weights)

    def of(self, datasets: Sequence[Dataset]) -> Permutation | None:
        """Return the order of all samples of these datasets; None if it does not change."""
        if self.weights:
            return Mixed(tuple(map(len, datasets)), tuple(map(float, self.weights)), self.seed, self.until)
        if self.shuffle:
            return Shuffled(sum(map(len, datasets)), self.seed)
        if self.interleave > 1:
            lengths = tuple(n for dataset in datasets for n in dataset.lengths.tolist())
            return Interleaved(lengths, self.interleave)
        return None

    def of_streams(
        self,
        shards: Iterator[Iterator[Sample]],
        select: Callable[[Iterable[Sample]], Iterator[Sample]] = iter,
    ) -> Iterator[Sample]:
        """Yield the selected samples of shards that are read once; a shuffle is one in a buffer."""
        if self.interleave > 1:
            samples = _interleaved(map(select, shards), self.interleave)
        else:
            samples = select(chain.from_iterable(shards))
        if self.shuffle:
            rng = random.Random(make_seed("copy", self.seed))
            samples = buffer_shuffle(samples, self.buffer, self.buffer, rng)
        return samples

    def options(self, *, one_pass: bool = False) -> dict[str, Any]:
        """Return what the result depends on, for a ledger."""
        names = ("shuffle", "seed") if self.shuffle else ("interleave",) if self.interleave else ()
        mixed = ("weights", "seed", "until") if self.weights else ()
        options = {name: getattr(self, name) for name in (*names, *mixed)}
        if self.weights:
            options["weights"] = tuple(map(float, self.weights))
        return {"order": options} | ({"buffer": self.buffer} if self.shuffle and one_pass else {})


AS_IS = Order()


def _interleaved(shards: Iterator[Iterator[Sample]], ways: int) -> Iterator[Sample]:
    """Yield one sample of each of `ways` shards in turn; the next shard replaces one that is exhausted."""
    active: list[tuple[Sample, Iterator[Sample]]] = []  # each shard with its next sample
    while True:
        while len(active) < ways and (shard := next(shards, None)) is not None:
            active += [(first, shard) for first in islice(shard, 1)]
        if not active:
            return
        yield from (sample for sample, _ in active)
        active = [(following, shard) for _, shard in active for following in islice(shard, 1)]
