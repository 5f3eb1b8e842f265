"""Remember the pictures that were kept, so that copies of them are recognised.

Those of finished shards are in a temporary database, so that memory does not grow with their number; those of the
shard that is being written are in memory, and are forgotten if it fails.
"""

from __future__ import annotations

from collections.abc import Iterable

from tarmac.downloading.hashes import NEAR, as_signed, is_flat
from tarmac.tools.keystore import Database

_WIDTHS = (22, 21, 21)
"""Bits of the parts of a hash. If two hashes differ in NEAR bits, they differ in one bit at most in some part."""
_CHANGES = tuple((0, *(1 << bit for bit in range(width))) for width in _WIDTHS)
"""What turns a part into itself, and into those that differ from it in one bit."""
_PLACES = ",".join("?" * sum(map(len, _CHANGES)))
_QUERY = f"SELECT hash FROM looks WHERE part IN ({_PLACES})"  # noqa: S608 - our own text
_ALL = (1 << 64) - 1
Hashes = tuple[int, int | None]
"""The hashes of a picture: of its bytes, and of what it shows."""


class Seen(Database):
    """The hashes of pictures; with `near`, also of what they show. Its files end with this process."""

    def __init__(self, *, near: bool = False) -> None:
        super().__init__(
            "",
            "bytes (hash INTEGER PRIMARY KEY)",
            "looks (part INTEGER, hash INTEGER, PRIMARY KEY (part, hash)) WITHOUT ROWID",
        )
        self._near = near
        self.forget()

    def forget(self) -> None:
        """Forget the pictures of an unfinished shard."""
        self._bytes: set[int] = set()
        self._looks: dict[int, list[int]] = {}

    def add(self, content: int, shown: int | None) -> None:
        """Add a picture of an unfinished shard."""
        self._bytes.add(content)
        for part in self._parts(shown):
            self._looks.setdefault(part, []).append(shown or 0)

    def keep(self, pictures: Iterable[Hashes]) -> None:
        """Add the pictures of a finished shard."""
        listed = list(pictures)
        contents = ((as_signed(content),) for content, _ in listed)
        looks = ((part, as_signed(shown)) for _, shown in listed for part in self._parts(shown))
        with self.transaction():
            self.execute("INSERT OR IGNORE INTO bytes VALUES (?)", contents, many=True)
            self.execute("INSERT OR IGNORE INTO looks VALUES (?, ?)", looks, many=True)

    def has(self, content: int, shown: int | None) -> bool:
        """Return whether a picture was added before, or with `near` one that looks like it."""
        if content in self._bytes:
            return True
        if self.execute("SELECT 1 FROM bytes WHERE hash = ?", (as_signed(content),)).fetchone():
            return True
        parts = self._parts(shown)
        if shown is None or not parts:
            return False
        near = [part ^ change for part, changes in zip(parts, _CHANGES, strict=True) for change in changes]
        if any((other ^ shown).bit_count() <= NEAR for part in near for other in self._looks.get(part, ())):
            return True
        others = self.execute(_QUERY, near).fetchall()
        return any(((other & _ALL) ^ shown).bit_count() <= NEAR for (other,) in others)

    def _parts(self, shown: int | None) -> list[int]:
        """Return the parts of a hash, each with its number above its bits; none if it does not count."""
        if not self._near or shown is None or is_flat(shown):
            return []
        parts = []
        for number, width in enumerate(_WIDTHS):
            parts.append(number << max(_WIDTHS) | (shown & ((1 << width) - 1)))
            shown >>= width
        return parts
