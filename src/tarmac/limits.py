"""All limits in one place, so that no input can use unbounded memory or time."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgtp", 1)
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_number(text: str) -> int:
    """Parse an integer with an optional unit, such as `1e4`, `100MB` or `2GiB`; raise ValueError if it is not one."""
    match = _NUMBER.fullmatch(text)
    size = _UNITS.get(match[2].lower()) if match else None
    if match is None or size is None:
        raise ValueError(f"expected a number such as 1000, 1e4, 100MB or 2GiB, got {text!r}")
    number = float(match[1]) * size if not match[1].isdigit() else int(match[1]) * size
    if number != int(number):
        raise ValueError(f"expected a whole number, got {text!r}")
    return int(number)


class Options:
    """The base class of options: their repr has the fields that differ from their defaults.

    Values of fields that are declared with `repr=False` are replaced by `…`.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        shown = []
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            default = each.default_factory() if callable(each.default_factory) else each.default
            if value != default:
                shown.append(f"{each.name}={repr(value) if each.repr else '…'}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, repr=False)
class Limits(Options):
    """Limits on the resources that a shard can make tarmac use. Raise one for trusted data."""

    member_bytes: int = 4 * GIB
    """Largest member that is read into memory."""
    extension_bytes: int = 1 * MIB
    """Largest extended header (long name, PAX records)."""
    extensions: int = 64
    """Number of consecutive extended headers before a member."""
    expansion: int = 200
    """Ratio of decompressed to compressed bytes of a shard, beyond `expansion_floor`."""
    expansion_floor: int = 64 * MIB
    """Number of decompressed bytes that is allowed at any ratio."""
    tracked_keys: int = 1_000_000
    """Number of keys per shard that are remembered to detect split samples; later keys are not compared."""
    shards: int = 10_000_000
    """Number of shards that a pattern, list or manifest may expand to."""
    list_bytes: int = 1 * GIB
    """Largest shard list (`@list.txt`, manifest, shardspec) that is read."""
    pixels: int = 64_000_000
    """Number of pixels in an image, or in a frame of a video."""
    media_bytes: int = 4 * GIB
    """Number of bytes that all frames of a video, or all samples of a recording, may decode to."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"Limits.{field.name}: expected 1 or more, got {getattr(self, field.name)}")


DEFAULT_LIMITS = Limits()
