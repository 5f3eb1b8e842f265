"""Digest the samples that a unit reads, so that inputs that change under the same name are noticed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from xxhash import xxh3_64_intdigest

from tarmac.samples.naming import is_reserved

S = TypeVar("S", bound=Mapping[str, Any])
_MASK = (1 << 64) - 1
_KEY = "__key__"


class Content:
    """The digest of a sequence of samples: a sum over their keys and fields, each hashed with its position and name.

    It does not depend on how the sequence is divided into batches. `value` and `position` are all its state, so that
    it can be stored in the middle of a unit and continued.
    """

    __slots__ = ("_seeds", "_total", "position")

    def __init__(self, value: int = 0, position: int = 0) -> None:
        self._total = value
        self.position = position
        """The number of samples so far."""
        self._seeds: dict[str, int] = {}

    @property
    def value(self) -> int:
        """The digest so far, of 64 bits."""
        return self._total & _MASK

    def add(self, sample: Mapping[str, Any]) -> None:
        """Add a sample whose fields are bytes or views of bytes."""
        for _ in self.over((sample,)):
            pass

    def over(self, samples: Iterable[S]) -> Iterator[S]:
        """Yield samples and add each, before it is yielded."""
        # This runs for every sample of a job, so it has few calls and attributes.
        seeds, total, position = self._seeds, self._total, self.position
        for sample in samples:
            for name, value in sample.items():
                try:
                    seed = seeds[name]
                except KeyError:
                    seed = self._seed(name)
                if seed:
                    total += xxh3_64_intdigest(value, seed + position)
                elif name == _KEY:
                    try:
                        total += xxh3_64_intdigest(value.encode(), position)
                    except UnicodeEncodeError:  # passing an error handler takes twice as long
                        total += xxh3_64_intdigest(value.encode("utf-8", "surrogateescape"), position)
            position += 1
            self._total, self.position = total, position
            yield sample

    def add_all(self, samples: Sequence[Mapping[str, Any]]) -> None:
        """Add samples in order; those that all have the same fields take less time together."""
        first, count = samples[0], len(samples)
        try:
            if any(len(sample) != len(first) for sample in samples):
                raise LookupError
            total = 0
            for name in first:
                seed = 0 if name == _KEY else self._seed(name)
                if seed or name == _KEY:
                    values = [sample[name] for sample in samples]
                    positions = range(seed + self.position, seed + self.position + count)
                    encoded = map(str.encode, values) if name == _KEY else values
                    total += sum(map(xxh3_64_intdigest, encoded, positions))
        except (LookupError, UnicodeEncodeError):
            for _ in self.over(samples):
                pass
        else:
            self._total += total
            self.position += count

    def _seed(self, name: str) -> int:
        if name not in self._seeds:
            self._seeds[name] = _seed(name)
        return self._seeds[name]

    def __str__(self) -> str:
        return f"{self.value:016x}"


def _seed(name: str) -> int:
    """Return the part of a seed that depends on the name of a field, or 0 for keys, URLs and the like.

    It is positive and has 29 bits: Python adds such numbers faster.
    """
    if is_reserved(name):
        return 0
    return xxh3_64_intdigest(name.encode("utf-8", "surrogateescape")) >> 35 | 1
