"""Split samples by a hash of their keys, so that a sample stays in its split when the dataset changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import xxhash

from tarmac.errors import UsageError

_END = 1 << 64
_ROUNDING = 1e-9


def split_bounds(shares: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """Return for each name the range of hashes [low, high) out of 2**64 that its share covers.

    Raise UsageError unless the shares are positive and add up to 1: other samples would be in no split.
    """
    total = sum(shares.values())
    if not shares or not min(shares.values()) > 0 or not abs(total - 1) < _ROUNDING:
        raise UsageError(
            f"expected positive shares that add up to 1, got a sum of {total:.9g}.",
            field="split",
            hint=f"rest={1 - total:.9g} for the other samples." if 0 < total < 1 else None,
        )
    hashes = [min(round(edge * _END), _END) for edge in itertools.accumulate(shares.values())]
    return dict(zip(shares, itertools.pairwise([0, *hashes[:-1], _END]), strict=True))


def key_hasher(salt: str = "") -> Callable[[str], int]:
    """Return the function that hashes a key to a number below 2**64; another salt gives another split."""
    digest, seed = xxhash.xxh3_64_intdigest, xxhash.xxh3_64_intdigest(salt.encode())

    def hash_key(key: str) -> int:
        return digest(key.encode("utf-8", "surrogateescape"), seed)

    return hash_key
