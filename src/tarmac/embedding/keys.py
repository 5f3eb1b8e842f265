"""Find the numbers that keys have, by a hash of each: sixteen bytes, where the key itself takes a hundred."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.runtime.types import Integers

HINT = "tarmac copy SHARDS -o DIR/ --rekey '{i:09d}' makes keys unique, before tarmac embed."


class KeyIndex:
    """The numbers of keys, each of which may occur several times."""

    def __init__(self, keys: Iterable[str]) -> None:
        halves = _halves(keys)
        self._order = np.argsort(halves[:, 0], kind="stable")
        self._first, self._second = np.ascontiguousarray(halves[self._order].T)

    def find(self, keys: Iterable[str]) -> Integers:
        """Return the first number of each key; -1 if there is none."""
        numbers, _ = self._matches(keys)
        return numbers

    def repeated(self, keys: Iterable[str]) -> NDArray[np.bool_]:
        """Return for each key whether it occurs several times."""
        _, counts = self._matches(keys)
        return counts > 1

    def find_all(self, key: str) -> Integers:
        """Return all numbers of a key, in order."""
        ((one, other),) = _halves([key]).tolist()
        begin, end = (np.searchsorted(self._first, np.uint64(one), side) for side in ("left", "right"))
        numbers: Integers = self._order[begin:end][self._second[begin:end] == other]
        return numbers

    def _matches(self, keys: Iterable[str]) -> tuple[Integers, Integers]:
        """Return the first number of each key, and how many it has."""
        sought = _halves(keys)
        begins, ends = (np.searchsorted(self._first, sought[:, 0], side) for side in ("left", "right"))
        counts = ends - begins
        numbers = np.full(len(sought), -1)
        some = np.flatnonzero(counts)
        same = self._second[begins[some]] == sought[some, 1]
        numbers[some[same]] = self._order[begins[some[same]]]
        counts[some[~same]] = 0
        return numbers, counts


def _halves(keys: Iterable[str]) -> NDArray[np.uint64]:
    """Return a hash of each key as two numbers."""
    digest = xxhash.xxh3_128_digest
    joined = b"".join(digest(key.encode("utf-8", "surrogateescape")) for key in keys)
    return np.frombuffer(joined, ">u8").astype(np.uint64).reshape(-1, 2)
