"""Derive seeds from values: equal on every machine and in every run, different for different values."""

from __future__ import annotations

import hashlib
import numbers
import operator
import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from tarmac import environment
from tarmac.errors import StateMismatch

Seed = int | float | str | bytes
"""A seed that users give."""
SeedPart = Seed | None | tuple["SeedPart", ...]
"""A value that seeds are derived from."""


def make_seed(*parts: SeedPart) -> int:
    """Hash numbers, strings and tuples of them into a 63-bit seed.

    The boundaries of the parts count: (0, 31, 0) and (1, 0, 0) give different seeds, and so do "ab", "c" and
    "a", "bc". True and 1 are the same number.
    """
    digest = hashlib.blake2b(_encoded(parts), digest_size=8, person=b"tarmac-seed").digest()
    return int.from_bytes(digest, "big") >> 1


def webdataset_seed(*parts: SeedPart) -> int:
    """Return the 31-bit seed that the webdataset library makes of numbers.

    It hashes other values differently in each process; for them, return one by `make_seed`.
    """
    if not all(isinstance(part, numbers.Real) for part in parts):
        return make_seed(*parts) & 0x7FFFFFFF
    seed = 0
    for part in parts:
        seed = (seed * 31 + hash(part)) & 0x7FFFFFFF
    return seed


def seed_or_default(seed: int | None) -> int:
    """Return the seed given, else the one from the environment, else 0."""
    return environment.default_seed() if seed is None else seed


def is_given(seed: int | None) -> bool:
    """Return whether the program or the environment gives the seed."""
    return seed is not None or environment.has_seed()


def random_seed() -> int:
    """Return a random seed from the operating system."""
    return int.from_bytes(os.urandom(8), "big") >> 1


def all_seeds(stages: Iterable[Any]) -> list[Any]:
    """Return the seeds that each stage or dataset has beyond the epoch, as JSON; None for most."""
    return [stage.seeds() if hasattr(stage, "seeds") else None for stage in stages]


def load_all_seeds(stages: Sequence[Any], saved: object) -> None:
    """Restore the seeds that `all_seeds` returned for the same stages or datasets in a saved run."""
    if not isinstance(saved, list) or len(saved) != len(stages):
        raise StateMismatch("the state belongs to different stages or datasets.")
    for stage, seeds in zip(stages, saved, strict=True):
        if seeds is None:
            continue
        try:
            stage.load_seeds(seeds)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, StateMismatch):
                raise
            raise StateMismatch(f"the state does not match {type(stage).__name__}: {error}.") from error


def _encoded(part: object) -> bytes:
    """Encode a value unambiguously: type, length, content."""
    if part is None:
        return _framed(b"n", b"")
    if isinstance(part, tuple):
        return _framed(b"t", b"".join(map(_encoded, part)))
    if isinstance(part, str):
        return _framed(b"s", part.encode("utf-8", "surrogatepass"))
    if isinstance(part, bytes):
        return _framed(b"b", part)
    if isinstance(part, float):
        return _framed(b"f", struct.pack(">d", part))
    try:
        number = operator.index(part)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"expected numbers, strings or tuples as a seed, got {type(part).__name__}") from None
    return _framed(b"i", number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))


def _framed(type_: bytes, content: bytes) -> bytes:
    return type_ + struct.pack(">Q", len(content)) + content
