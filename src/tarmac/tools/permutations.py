"""Permutations of samples, computed in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import xxhash

from tarmac.exact.order.bijection import permute
from tarmac.runtime.seeds import make_seed
from tarmac.runtime.types import Integers


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


@dataclass(frozen=True)
class Interleaved:
    """One sample of each of `ways` shards in turn; the next shard replaces one that is exhausted."""

    lengths: tuple[int, ...]
    ways: int

    @property
    def size(self) -> int:
        return sum(self.lengths)

    def at(self, start: int, stop: int) -> Integers:
        return self._all[start:stop]

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

    def __getstate__(self) -> dict[str, object]:
        return {"lengths": self.lengths, "ways": self.ways}


@dataclass(frozen=True)
class Listed:
    """A permutation in an .npy file."""

    path: str

    @property
    def size(self) -> int:
        return len(self._numbers)

    def at(self, start: int, stop: int) -> Integers:
        return np.array(self._numbers[start:stop], np.int64)

    @cached_property
    def _numbers(self) -> Integers:
        numbers: Integers = np.load(self.path, mmap_mode="r")
        return numbers

    def __getstate__(self) -> dict[str, str]:
        return {"path": self.path}


@dataclass(frozen=True)
class Mixed:
    """Several datasets, numbered consecutively and mixed by weights; each keeps its own order.

    A sample of a dataset is due about every 1 / weight, and samples are in the order in which they are due.
    When a dataset is exhausted, the others continue with their weights, or all end with the first.
    """

    lengths: tuple[int, ...]
    weights: tuple[float, ...]
    seed: int
    until: Literal["first", "all"] = "all"

    @property
    def size(self) -> int:
        return len(self._all)

    def at(self, start: int, stop: int) -> Integers:
        return self._all[start:stop]

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

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("lengths", "weights", "seed", "until")}


def permutation_text(permutation: Permutation | None) -> str:
    """Return a text that identifies a permutation, for a ledger."""
    if isinstance(permutation, Listed):
        digest = xxhash.xxh3_64()
        with open(permutation.path, "rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
        return digest.hexdigest()
    return repr(permutation)
