"""Damage shards in many ways, and check that no damage is silent.

Silence means: fewer or other samples than the intact shard has, and no error. The intact shard's samples,
or a typed error after some of them in the right order, are the only outcomes that count as correct.
"""

from __future__ import annotations

import random
import tarfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from harness.shards import reseal
from tarmac.errors import TarmacError, TarmacWarning

Reader = Callable[[bytes], Iterable[object]]


@dataclass(frozen=True)
class Damaged:
    """A damaged shard, and a description of the damage."""

    data: bytes
    how: str


def cuts(data: bytes, step: int = 1) -> Iterator[Damaged]:
    """Truncate at every `step`-th byte."""
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
    """Flip one random bit, `count` times."""
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
    """The number of damaged shards that raised an error, and that returned the intact samples."""

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
    """Read each damaged shard; fail unless it raises a tarmac error or returns the intact samples.

    What was handed out before an error must be the beginning of the intact samples: a partial or
    invented sample is as bad as a lost one. `accept` allows other outcomes for damage that no reader of
    tar can see, such as a flipped bit in a payload. `early=False` is for compressed shards, whose checksum
    comes last: there the error counts, whatever was handed out before it.
    """
    expected = list(read(good))
    tally = Tally()
    for case in damaged:
        result: list[object] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TarmacWarning)
                result.extend(read(case.data))
        except TarmacError:
            tally.errors += 1
            if early and result != expected[: len(result)] and not (accept and accept(case, result)):
                raise AssertionError(f"{case.how}: a wrong sample was handed out before the error") from None
            continue
        if result == expected or (accept and accept(case, result)):
            tally.intact += 1
        else:
            tally.silent += 1
            raise AssertionError(f"{case.how}: {len(result)} of {len(expected)} samples and no error")
    return tally


SIZES = (2**63 - 1, 2**63 - 512, 2**62, 2**40, 2**33, 10**6, 0, 1, 511, 512, 513)
_PAX_KEYS = (b"size", b"path", b"linkpath", b"GNU.sparse.name", b"GNU.sparse.size", b"hdrcharset", b"mtime")
_PAX_VALUES = (
    b"9223372036854775807",
    b"9999999999999999999",
    b"5",
    b"0",
    b"-1",
    b"a.txt",
    b"\xff.txt",
    b"a\0b",
)
_NAMES = (b"", b"a.txt", b"\xff.b", b"__x__", b"/", b"..", b"a/../b.c", b"x.", b"./s0.cls")


def pax_header(key: bytes, value: bytes, kind: bytes = b"x") -> bytes:
    """An extended header with one record."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + len(str(len(body)))
    record = b"%d" % (len(body) + len(str(length))) + body
    info = tarfile.TarInfo("pax")
    info.type, info.size = kind, len(record)
    return info.tobuf(tarfile.USTAR_FORMAT) + record.ljust(-(-len(record) // 512) * 512, b"\0")


def sized(data: bytes, start: int, size: int) -> bytes:
    """Return the archive with another size in the header at `start`."""
    changed = bytearray(data)
    changed[start + 124 : start + 136] = b"\x80" + size.to_bytes(11, "big")
    reseal(changed, start)
    return bytes(changed)


def structural(data: bytes, rng: random.Random) -> bytes:
    """Change an archive like an attacker: wrong headers with valid checksums and moved blocks, one to three."""
    for _ in range(rng.randint(1, 3)):
        blocks = len(data) // 512
        if blocks < 2:
            return data
        start, other = rng.randrange(blocks) * 512, rng.randrange(blocks) * 512
        length = 512 * rng.randint(1, 3)
        changed = bytearray(data)
        action = rng.choice(("size", "type", "delete", "insert", "pax", "bit", "name", "cut", "zero"))
        if action == "size":
            changed = bytearray(sized(data, start, rng.choice(SIZES)))
        elif action == "type":
            changed[start + 156] = rng.choice(b"0123456789LKxXgSMDV\0")
            reseal(changed, start)
        elif action == "delete":
            del changed[start : start + length]
        elif action == "insert":
            changed[start:start] = data[other : other + length]
        elif action == "pax":
            changed[start:start] = pax_header(
                rng.choice(_PAX_KEYS), rng.choice(_PAX_VALUES), rng.choice((b"x", b"g"))
            )
        elif action == "bit":
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        elif action == "name":
            changed[start : start + 100] = rng.choice(_NAMES).ljust(100, b"\0")
            reseal(changed, start)
        elif action == "cut":
            del changed[rng.randrange(len(changed)) :]
        else:
            changed[start : start + 512] = bytes(512)
        data = bytes(changed)
    return data
