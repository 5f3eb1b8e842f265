"""Every bound in one place, so that no input can use unbounded memory or time."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["DEFAULT_LIMITS", "Limits"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a shard may make tarmac do. All are positive; raise one for trusted data."""

    member_bytes: int = 4 * GIB
    """Largest member that is read into memory."""
    extension_bytes: int = 1 * MIB
    """Largest extended header (long name, PAX records)."""
    extensions: int = 64
    """Extended headers in a row before one member."""
    expansion: int = 200
    """Bytes a compressed shard may give per byte read, once it gave more than `expansion_floor`."""
    expansion_floor: int = 64 * MIB
    """Decompressed bytes that are always allowed, whatever the ratio."""
    tracked_keys: int = 1_000_000
    """Sample keys per shard remembered to detect samples torn apart; later ones are not compared."""
    shards: int = 10_000_000
    """Shards that one pattern, list or manifest may stand for."""
    list_bytes: int = 1 * GIB
    """Largest list of shards (`@list.txt`, manifest, shardspec) that is read."""

    pixels: int = 64_000_000
    """Pixels of one image, or of one frame of a video."""
    media_bytes: int = 4 * GIB
    """Bytes that the frames of one video, or the samples of one recording, decode to."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"Limits.{field.name} must be positive, got {getattr(self, field.name)}")


DEFAULT_LIMITS = Limits()
