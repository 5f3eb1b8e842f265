"""Orders of samples: which one comes at each place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import xxhash

from tarmac.exact.order.bijection import permute
from tarmac.runtime.seeds import make_seed
from tarmac.runtime.types import Integers

__all__ = ["Interleaved", "Listed", "Mixed", "Permutation", "permutation_text", "Shuffled"]


class Permutation(Protocol):
    """Which sample comes at each place."""

    @property
    def size(self) -> int:
        """How many places there are."""

    def at(self, start: int, stop: int) -> Integers:
        """The numbers of the samples at the places from `start` up to `stop`."""


@dataclass(frozen=True, slots=True)
class Shuffled:
    """All of them at random; the order is not kept, where a sample goes is computed."""

    size: int
    seed: int | str

    def at(self, start: int, stop: int) -> Integers:
        return permute(np.arange(start, stop), max(self.size, 1), make_seed("copy", self.seed))


@dataclass(frozen=True)
class Interleaved:
    """One sample of each of `ways` shards in turn; a shard that ends is followed by the next one."""

    lengths: tuple[int, ...]
    ways: int

    @property
    def size(self) -> int:
        return sum(self.lengths)

    def at(self, start: int, stop: int) -> Integers:
        return self._all[start:stop]

    @cached_property
    def _all(self) -> Integers:
        begins = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        waiting = list(range(len(self.lengths)))[::-1]
        open_now: list[list[int]] = []
        runs: list[Integers] = []
        while waiting or open_now:
            while waiting and len(open_now) < self.ways:
                shard = waiting.pop()
                if self.lengths[shard]:
                    open_now.append([int(begins[shard]), int(begins[shard + 1])])
            if not open_now:
                break
            turns = min(end - begin for begin, end in open_now)
            heads = np.array([begin for begin, _ in open_now], np.int64)
            runs.append((heads + np.arange(turns)[:, None]).ravel())
            for place in open_now:
                place[0] += turns
            open_now = [place for place in open_now if place[0] < place[1]]
        return np.concatenate(runs) if runs else np.empty(0, np.int64)

    def __getstate__(self) -> dict[str, object]:
        return {"lengths": self.lengths, "ways": self.ways}


@dataclass(frozen=True)
class Listed:
    """An order that was worked out and is kept in a file of NumPy."""

    path: str

    @property
    def size(self) -> int:
        return len(self._numbers)

    def at(self, start: int, stop: int) -> Integers:
        return np.array(self._numbers[start:stop], np.int64)

    @cached_property
    def _numbers(self) -> Integers:
        found: Integers = np.load(self.path, mmap_mode="r")
        return found

    def __getstate__(self) -> dict[str, str]:
        return {"path": self.path}


@dataclass(frozen=True)
class Mixed:
    """Several datasets, one after the other in number, mixed by weights; each keeps its own order.

    Of each dataset a sample is due every 1 / weight, give or take; they come in the order in which they are
    due. When one has ended, the others go on with the weights they have, or all end with the first.
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


def permutation_text(order: Permutation | None) -> str:
    """What tells one order from another, for a ledger."""
    if isinstance(order, Listed):
        digest = xxhash.xxh3_64()
        with open(order.path, "rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
        return digest.hexdigest()
    return repr(order)
