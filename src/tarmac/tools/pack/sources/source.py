"""What every kind of source has in common: items that are planned in one process and read in another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any

from tarmac.samples.grouping import Sample

__all__ = ["File", "Item", "Load", "Seen", "Skipped", "Source", "UNSEEN", "Where", "load_each"]

File = tuple[str, "str | bytes", int, "int | str | None"]
"""Where the bytes of a field are: field, place, size, mark.

Of a local file: its path, its size and its time of change in nanoseconds, or -1 and UNSEEN if nobody asked.
Of an object: its URL, its size and its version, or -1 and None. Of a command: `pipe:` and the command. Of
bytes: themselves.
Plain tuples, because there are millions of them and they travel.
"""
UNSEEN = -2
"""The mark of a local file that nobody has looked at: whoever reads it does."""
Seen = dict["str | bytes", tuple[int, int]]
"""The sizes and times of change that such files had when they were read."""
Where = tuple[Any, ...]
"""What a source needs to know to read one sample; made of tuples, texts, bytes and numbers."""
Item = tuple["str | None", int, Where]
"""A sample that is planned: its key (None: numbered), the size of its payload, and where it is."""
Load = Callable[[str, Where], Sample]
"""Read one sample, by its key and where it is."""
HANDFUL = 16
"""Samples that are read before the first of them is given out, at most; ..."""
SMALL = 1 << 14
"""... one of so many bytes is the last of them."""


@dataclass
class Skipped:
    """What was found and belongs to no sample: counted by reason, with one name as an example."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        """Count something that is left out."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.examples.setdefault(reason, name)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return ", ".join(f"{n} {reason} ({self.examples[reason]!r})" for reason, n in self.counts.items())


def load_each(read: Load, planned: Iterable[tuple[str, Where]]) -> Iterator[Sample]:
    """Read samples, small ones by the handful: going back and forth between reading and writing is slower."""
    some: list[Sample] = []
    for key, where in planned:
        sample = read(key, where)
        some.append(sample)
        if len(some) == HANDFUL or sum(map(len, sample.values())) >= SMALL:
            yield from some
            some.clear()
    yield from some


class Source(ABC):
    """Something that samples can be made of."""

    kind: str
    name: str
    """As the user gave it."""

    def __getstate__(self) -> dict[str, Any]:
        """What a source is; what it has worked out from that need not travel, and may not be able to."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    @abstractmethod
    def items(self, skipped: Skipped) -> Iterator[Item]:
        """All samples, in an order that depends on nothing but the source."""

    @abstractmethod
    def opened(self, wheres: Sequence[Where], seen: Seen) -> AbstractContextManager[Load]:
        """Get ready to read these samples, which will be asked for in this order, and note what is seen."""

    def files(self, where: Where) -> tuple[File, ...]:
        """The files among what a sample is made of."""
        return where

    def fingerprint(self) -> str:
        """What changes when the source does and no `where` would show it."""
        return ""

    def has(self, where: Where) -> set[str] | None:
        """The fields that a sample has, if that is known before it is read."""
        return None
