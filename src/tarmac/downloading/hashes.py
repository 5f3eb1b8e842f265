"""Recognise pictures: digests of their bytes, and hashes of what they show."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

from tarmac.codecs.resize import fit, resize_array
from tarmac.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIGESTS = ("xxh3", "md5", "sha256", "sha512")
_BANDS = 6
"""Parts of a perceptual hash; two that differ in fewer bits than there are bands agree in one of them."""
_WIDTHS = (11, 11, 11, 11, 10, 10)
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


@dataclass
class Seen:
    """Pictures that were kept: hashes of their bytes, and of what they show. They are held in memory."""

    near: bool = False
    exact: set[int] = field(default_factory=set)
    _bands: list[dict[int, list[int]]] = field(default_factory=lambda: [{} for _ in range(_BANDS)])

    def has(self, content: int, shown: int | None) -> bool:
        """Return whether a picture was seen before."""
        return content in self.exact or (self.near and shown is not None and self._is_near(shown))

    def add(self, content: int, shown: int | None) -> None:
        """Add a picture."""
        self.exact.add(content)
        if self.near and shown is not None and not is_flat(shown):
            for band, part in zip(self._bands, _parts(shown), strict=True):
                band.setdefault(part, []).append(shown)

    def _is_near(self, shown: int) -> bool:
        if is_flat(shown):
            return False
        return any(
            (other ^ shown).bit_count() <= NEAR
            for band, part in zip(self._bands, _parts(shown), strict=True)
            for other in band.get(part, ())
        )


def is_flat(shown: int) -> bool:
    """Return whether a hash has so few bits of one kind that it says little: a picture of one colour has none."""
    return not 8 <= shown.bit_count() <= 56


def _parts(shown: int) -> list[int]:
    parts: list[int] = []
    for width in _WIDTHS:
        parts.append(shown & ((1 << width) - 1))
        shown >>= width
    return parts


def as_signed(number: int | None) -> Any:
    """Return a number of 64 bits as Parquet and databases store it."""
    return number if number is None or number < 1 << 63 else number - (1 << 64)
