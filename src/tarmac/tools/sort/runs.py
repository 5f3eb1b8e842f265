"""Sort more values than fit into memory: sorted runs in files, merged. The sort is stable."""

from __future__ import annotations

import heapq
import os
import struct
from array import array
from collections.abc import Iterable, Iterator
from operator import itemgetter

from tarmac.tools.workdir import disk_errors

Row = tuple[bytes, int]
_HEAD = struct.Struct("<IQ")
_OVERHEAD = 110
"""Bytes that a value takes besides its own while its run is sorted."""
_BUFFER = 1 << 16
MAX_RUNS = 200
"""Files that are merged at a time."""


class Runs:
    """Values with their numbers, iterated in order; `memory` bounds the bytes held at a time."""

    def __init__(self, directory: str, memory: int, *, reverse: bool = False) -> None:
        self._directory, self._memory, self._reverse = directory, memory, reverse
        self._values: list[bytes] = []
        self._numbers = array("q")
        self._held = 0
        self._files: list[str] = []
        self._created = 0

    def add(self, value: bytes, number: int) -> None:
        self._values.append(value)
        self._numbers.append(number)
        self._held += len(value) + _OVERHEAD
        if self._held > self._memory:
            self._files.append(self._write(self._held_rows()))
            self._values, self._numbers, self._held = [], array("q"), 0
            if len(self._files) == MAX_RUNS:
                merged = self._write(self._merge(list(map(_read, self._files))))
                for path in self._files:
                    os.unlink(path)
                self._files = [merged]

    def __iter__(self) -> Iterator[Row]:
        if not self._files:
            return self._held_rows()
        return self._merge([*map(_read, self._files), self._held_rows()])

    def numbers(self) -> Iterator[int]:
        """Return the numbers alone, in the order of their values."""
        if self._files:
            return (number for _, number in self)
        return map(self._numbers.__getitem__, self._held_order())

    def _held_order(self) -> array[int]:
        values = self._values
        return array("q", sorted(range(len(values)), key=values.__getitem__, reverse=self._reverse))

    def _held_rows(self) -> Iterator[Row]:
        order = self._held_order()
        return zip(map(self._values.__getitem__, order), map(self._numbers.__getitem__, order), strict=True)

    def _merge(self, runs: list[Iterator[Row]]) -> Iterator[Row]:
        return heapq.merge(*runs, key=itemgetter(0), reverse=self._reverse)

    def _write(self, rows: Iterable[Row]) -> str:
        path = os.path.join(self._directory, f"run-{self._created}")
        self._created += 1
        with disk_errors(path), open(path, "wb", _BUFFER) as file:
            for value, number in rows:
                file.write(_HEAD.pack(len(value), number))
                file.write(value)
        return path


def _read(path: str) -> Iterator[Row]:
    with open(path, "rb", _BUFFER) as file:
        while head := file.read(_HEAD.size):
            length, number = _HEAD.unpack(head)
            yield file.read(length), number
