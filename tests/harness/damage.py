"""Damage shards in every way there is, and check that no damage passes in silence.

Silence means: fewer or other samples than the intact shard has, and no error. The intact shard's samples,
or a typed error after some of them in the right order, are the only outcomes that count as correct.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tarmac.errors import TarmacError, TarmacWarning

Reader = Callable[[bytes], Iterable[object]]


@dataclass(frozen=True)
class Damaged:
    """A damaged shard, and how it came to be."""

    data: bytes
    how: str


def cuts(data: bytes, step: int = 1) -> Iterator[Damaged]:
    """Cut at every `step`-th byte, from nothing to all but one."""
    for size in range(0, len(data), step):
        yield Damaged(data[:size], f"cut at {size} of {len(data)}")


def bit_flips(data: bytes, regions: Iterable[tuple[int, int]], step: int = 1) -> Iterator[Damaged]:
    """Flip every `step`-th single bit within the regions."""
    count = 0
    for start, stop in regions:
        for position in range(start, stop):
            for bit in range(8):
                count += 1
                if count % step:
                    continue
                changed = bytearray(data)
                changed[position] ^= 1 << bit
                yield Damaged(bytes(changed), f"bit {bit} of byte {position} flipped")


def random_flips(data: bytes, rng: random.Random, count: int) -> Iterator[Damaged]:
    """Flip one random bit, `count` times over."""
    for _ in range(count):
        position, bit = rng.randrange(len(data)), rng.randrange(8)
        changed = bytearray(data)
        changed[position] ^= 1 << bit
        yield Damaged(bytes(changed), f"bit {bit} of byte {position} flipped")


def mutations(data: bytes, rng: random.Random, count: int) -> Iterator[Damaged]:
    """Overwrite, insert, delete, swap or repeat random runs of bytes, one to four times."""
    for _ in range(count):
        changed = bytearray(data)
        steps = []
        for _ in range(rng.randint(1, 4)):
            position = rng.randrange(len(changed) + 1)
            length = rng.choice((1, 2, 8, 100, 511, 512, 513, 1024))
            action = rng.choice(("overwrite", "insert", "delete", "repeat", "zero", "block"))
            if action == "overwrite":
                changed[position : position + length] = rng.randbytes(length)
            elif action == "insert":
                changed[position:position] = rng.randbytes(length)
            elif action == "delete":
                del changed[position : position + length]
            elif action == "repeat":
                changed[position:position] = changed[position : position + length]
            elif action == "zero":
                changed[position : position + length] = bytes(length)
            else:
                block = position & -512
                changed[block : block + 512] = data[(rng.randrange(len(data)) & -512) :][:512]
            steps.append(f"{action} {length} at {position}")
        yield Damaged(bytes(changed), "; ".join(steps))


@dataclass
class Tally:
    """How many damaged shards gave an error, the intact samples, or (never) silence."""

    errors: int = 0
    intact: int = 0
    silent: int = 0

    @property
    def total(self) -> int:
        return self.errors + self.intact + self.silent


def expect_no_silence(
    read: Reader,
    good: bytes,
    damaged: Iterable[Damaged],
    *,
    accept: Callable[[Damaged, list[object]], bool] | None = None,
    early: bool = True,
) -> Tally:
    """Read each damaged shard; fail unless it raises a tarmac error or gives what the intact one gives.

    What was handed out before an error must be the beginning of the intact samples: a partial or
    invented sample is as bad as a lost one. `accept` allows other outcomes for damage that no reader of
    tar can see, such as a flipped bit in a payload. `early=False` is for compressed shards, whose checksum
    comes last: there the error counts, whatever was handed out before it.
    """
    expected = list(read(good))
    tally = Tally()
    for case in damaged:
        found: list[object] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TarmacWarning)
                found.extend(read(case.data))
        except TarmacError:
            tally.errors += 1
            if early and found != expected[: len(found)] and not (accept and accept(case, found)):
                raise AssertionError(f"{case.how}: a wrong sample was handed out before the error") from None
            continue
        if found == expected or (accept and accept(case, found)):
            tally.intact += 1
        else:
            tally.silent += 1
            raise AssertionError(f"{case.how}: {len(found)} of {len(expected)} samples and no error")
    return tally
