"""Recognise pictures: digests of their bytes, and hashes of what they show."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import xxhash

from tarmac.codecs.resize import fit, resize_array
from tarmac.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIGESTS = ("xxh3", "md5", "sha256", "sha512")
NEAR = 4
"""Bits in which the hashes of two versions of a picture may differ."""


def check_digest(name: str) -> str:
    """Return the name of a digest; raise for an unknown one."""
    if name not in DIGESTS:
        raise UsageError(f"expected one of {', '.join(DIGESTS)}, got {name!r}.", field="digest")
    return name


def digest(data: bytes, name: str) -> str:
    """Return a digest of bytes, in hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data) if name == "xxh3" else hashlib.new(name, data).hexdigest()


def perceptual_hash(pixels: NDArray[np.uint8]) -> int:
    """Return 64 bits that say where a picture becomes brighter from left to right; similar pictures differ in few."""
    import numpy as np

    high, wide = pixels.shape[:2]
    step = max(1, min(high, wide) // 64)
    green = np.ascontiguousarray(pixels[::step, ::step, 1:2])  # most of the brightness
    small = resize_array(green, fit(green.shape[1], green.shape[0], (9, 8)))[:, :, 0]
    bits = np.packbits(small[:, 1:] > small[:, :-1])
    return int.from_bytes(bits.tobytes(), "big")


def bytes_hash(data: bytes) -> int:
    """Return 64 bits that identify bytes."""
    return xxhash.xxh3_64_intdigest(data)


def is_flat(shown: int) -> bool:
    """Return whether a hash has so few bits of one kind that it says little: a picture of one colour has none."""
    return not 8 <= shown.bit_count() <= 56


def as_signed(number: int | None) -> Any:
    """Return a number of 64 bits as Parquet and databases store it."""
    return number if number is None or number < 1 << 63 else number - (1 << 64)
