"""Sort more than fits into memory: sorted runs in files, merged. Equal values stay in their order."""

from __future__ import annotations

import heapq
import os
import struct
from array import array
from collections.abc import Iterable, Iterator
from operator import itemgetter

import numpy as np

from tarmac.tools.sort.sources import disk_errors

__all__ = ["Runs", "write_numbers"]

Row = tuple[bytes, int]
_HEAD = struct.Struct("<IQ")
_OVERHEAD = 110
"""Bytes that a value takes besides its own, while its run is sorted."""
_BUFFER = 1 << 16
MOST_RUNS = 200
"""Files that are merged at a time."""


class Runs:
    """Values with their numbers, in order in the end; `memory` bounds what is held at a time."""

    def __init__(self, directory: str, memory: int, *, reverse: bool = False) -> None:
        self._directory, self._memory, self._reverse = directory, memory, reverse
        self._values: list[bytes] = []
        self._numbers = array("q")
        self._held = 0
        self._files: list[str] = []
        self._made = 0

    def add(self, value: bytes, number: int) -> None:
        """Take in a value."""
        self._values.append(value)
        self._numbers.append(number)
        self._held += len(value) + _OVERHEAD
        if self._held > self._memory:
            self._files.append(self._written(self._held_rows()))
            self._values, self._numbers, self._held = [], array("q"), 0
            if len(self._files) == MOST_RUNS:
                merged = self._written(self._merged(list(map(_read, self._files))))
                for path in self._files:
                    os.unlink(path)
                self._files = [merged]

    @property
    def spilled(self) -> int:
        """How many files there are."""
        return len(self._files)

    def __iter__(self) -> Iterator[Row]:
        """All values in order, each with its number."""
        if not self._files:
            return self._held_rows()
        return self._merged([*map(_read, self._files), self._held_rows()])

    def _held_rows(self) -> Iterator[Row]:
        values, numbers = self._values, self._numbers
        order = array("q", sorted(range(len(values)), key=values.__getitem__, reverse=self._reverse))
        for place in order:
            yield values[place], numbers[place]

    def _merged(self, runs: list[Iterator[Row]]) -> Iterator[Row]:
        return heapq.merge(*runs, key=itemgetter(0), reverse=self._reverse)

    def _written(self, rows: Iterable[Row]) -> str:
        path = os.path.join(self._directory, f"run-{self._made}")
        self._made += 1
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


def write_numbers(path: str, numbers: Iterable[int]) -> None:
    """Write whole numbers to a file of NumPy, some at a time; how many there are shows only at the end."""
    plain, count = f"{path}.part", 0
    with disk_errors(path), open(plain, "wb") as file:
        some = array("q")
        for number in numbers:
            some.append(number)
            if len(some) == 1 << 16:
                file.write(some)
                count, some = count + len(some), array("q")
        file.write(some)
        count += len(some)
    with disk_errors(path), open(path, "wb") as file, open(plain, "rb") as source:
        header = {"descr": "<i8", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, header)
        while chunk := source.read(1 << 20):
            file.write(chunk)
    os.unlink(plain)
