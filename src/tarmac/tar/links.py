"""Hard links: a second name for the bytes of an earlier file in the same archive.

GNU tar writes one for each file that it packs a second time, so links are data. A link refers to the last
preceding file with the name of its target. Symbolic links are skipped: they may lead anywhere.
"""

from __future__ import annotations

import posixpath

from tarmac.errors import UnsupportedMember

Extent = tuple[int, int]
"""Offset and size."""


class Files:
    """The offsets and sizes of the preceding files of an archive, including links."""

    def __init__(self) -> None:
        self._extents: dict[bytes, Extent] = {}

    def add(self, name: bytes, offset: int, size: int) -> None:
        """Add a file; the last one with a name replaces the others."""
        self._extents[_normalized(name)] = offset, size

    def find(self, target: bytes) -> Extent:
        """Return offset and size of the file that a link refers to."""
        extent = self._extents.get(_normalized(target))
        if extent is None:
            raise UnsupportedMember(
                f"a hard link refers to {_quoted(target)}, but no such file precedes it.",
                hint="pack the files again, with tar --hard-dereference.",
            )
        return extent


def unreadable_link(target: bytes) -> UnsupportedMember:
    """Return the error for a link in a stream, which cannot go back to the target."""
    return UnsupportedMember(
        f"a hard link refers to {_quoted(target)}, which a stream cannot read again.",
        hint="read it uncompressed, from a local file or through a `cache`; "
        "tarmac copy LOCAL.tar -o NEW.tar replaces links by files.",
    )


def _normalized(name: bytes) -> bytes:
    """Return a name as tools that extract archives see it: `./a`, `/a` and `a` are the same file."""
    return posixpath.normpath(name.lstrip(b"/"))


def _quoted(name: bytes) -> str:
    return repr(name[:80].decode("utf-8", "replace"))
