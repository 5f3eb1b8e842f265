"""Sort more values than fit into memory: sorted runs in files, merged. The sort is stable."""

from __future__ import annotations

import heapq
import os
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from operator import itemgetter

from tarmac.tools.workdir import disk_errors

Row = tuple[bytes, int]
_HEAD = struct.Struct("<QQ")
_OVERHEAD = 110
"""Bytes that a value takes besides its own while its run is sorted."""
_BLOCK = 1 << 16
"""Bytes of values, with their overhead, that are read and written together."""
MAX_RUNS = 200
"""Files that are merged at a time."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """A sorted run in a file."""

    path: str
    size: int
    """Bytes that its values take in memory."""


class Runs:
    """Values with their numbers, iterated in order; `memory` bounds the bytes held at a time.

    Values are added in the order of their numbers: one by one, or as files that the `Runs` of another process
    has written.
    """

    def __init__(self, directory: str, memory: int, *, reverse: bool = False) -> None:
        self._directory, self._memory, self._reverse = directory, memory, reverse
        self._values: list[bytes] = []
        self._numbers = array("q")
        self._held = 0
        self._files: list[RunFile] = []
        self._created = 0

    def add(self, value: bytes, number: int) -> None:
        self._values.append(value)
        self._numbers.append(number)
        self._held += len(value) + _OVERHEAD
        if self._held > self._memory:
            self._flush()

    def add_file(self, file: RunFile) -> None:
        """Add a run, which is deleted when it has been merged with others."""
        self._files.append(file)
        if len(self._files) >= MAX_RUNS:
            merged = self._write(self._merge(map(_rows, self._files)))
            for each in self._files:
                os.unlink(each.path)
            self._files = [merged]

    def files(self) -> Sequence[RunFile]:
        """Write what is held, and return all files."""
        if self._values:
            self._flush()
        return self._files

    def __iter__(self) -> Iterator[Row]:
        if self._fits():
            return self._held_rows()
        return self._merge([*map(_rows, self._files), self._held_rows()])

    def numbers(self) -> Iterator[int]:
        """Return the numbers alone, in the order of their values."""
        if self._fits():
            return map(self._numbers.__getitem__, self._held_order())
        return map(itemgetter(1), self)

    def _fits(self) -> bool:
        """Hold all values and return True, if memory suffices: they are sorted far faster than files are merged."""
        if self._held + sum(file.size for file in self._files) > self._memory:
            return False
        held = [(self._values, self._numbers)]
        self._values, self._numbers = [], array("q")
        for values, numbers in chain(chain.from_iterable(map(_blocks, self._files)), held):
            self._values += values
            self._numbers += numbers
        self._held += sum(file.size for file in self._files)
        self._files = []
        return True

    def _flush(self) -> None:
        file = self._write(self._held_rows())
        self._values, self._numbers, self._held = [], array("q"), 0
        self.add_file(file)

    def _held_order(self) -> array[int]:
        values = self._values
        return array("q", sorted(range(len(values)), key=values.__getitem__, reverse=self._reverse))

    def _held_rows(self) -> Iterator[Row]:
        order = self._held_order()
        return zip(map(self._values.__getitem__, order), map(self._numbers.__getitem__, order), strict=True)

    def _merge(self, runs: Iterable[Iterator[Row]]) -> Iterator[Row]:
        return heapq.merge(*runs, key=itemgetter(0), reverse=self._reverse)

    def _write(self, rows: Iterable[Row]) -> RunFile:
        path, total = os.path.join(self._directory, f"run-{self._created}"), 0
        self._created += 1
        with disk_errors(path), open(path, "wb") as file:
            for values, numbers, size in _in_blocks(rows):
                lengths = array("q", map(len, values))
                file.write(_HEAD.pack(len(values), sum(lengths)))
                file.writelines((lengths, numbers, b"".join(values)))
                total += size
        return RunFile(path, total)


def _in_blocks(rows: Iterable[Row]) -> Iterator[tuple[list[bytes], array[int], int]]:
    """Yield the values and the numbers of some rows, and the bytes that they take in memory."""
    values: list[bytes] = []
    numbers, size = array("q"), 0
    for value, number in rows:
        values.append(value)
        numbers.append(number)
        size += len(value) + _OVERHEAD
        if size > _BLOCK:
            yield values, numbers, size
            values, numbers, size = [], array("q"), 0
    if values:
        yield values, numbers, size


def _blocks(run: RunFile) -> Iterator[tuple[list[bytes], array[int]]]:
    with open(run.path, "rb") as file:
        while head := file.read(_HEAD.size):
            count, size = _HEAD.unpack(head)
            lengths, numbers = array("q"), array("q")
            lengths.fromfile(file, count)
            numbers.fromfile(file, count)
            text = file.read(size)
            yield [text[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))], numbers


def _rows(run: RunFile) -> Iterator[Row]:
    for values, numbers in _blocks(run):
        yield from zip(values, numbers, strict=True)
