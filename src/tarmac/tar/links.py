"""Hard links: a second name for the bytes of an earlier file of the same archive.

GNU tar writes one for each file that it packs a second time, so a link is data like any other. It means the
last file of its target's name before it. Symbolic links are another matter: they may lead anywhere.
"""

from __future__ import annotations

import posixpath

from tarmac.errors import UnsupportedMember

__all__ = ["Files", "no_way_back"]

Place = tuple[int, int]
"""Offset and size."""


class Files:
    """Where the files of an archive are that have gone by, links included."""

    def __init__(self) -> None:
        self._places: dict[bytes, Place] = {}

    def add(self, name: bytes, offset: int, size: int) -> None:
        """Remember a file; of several with one name, the last one counts."""
        self._places[_plain(name)] = offset, size

    def find(self, target: bytes) -> Place:
        """Return where the file is that a link means."""
        found = self._places.get(_plain(target))
        if found is None:
            raise UnsupportedMember(
                f"a hard link to {_shown(target)}, and no file of that name comes before it.",
                hint="pack the files again, with tar --hard-dereference.",
            )
        return found


def no_way_back(target: bytes) -> UnsupportedMember:
    """The error for a link in a stream, where what it means has gone by."""
    return UnsupportedMember(
        f"a hard link to {_shown(target)}, whose bytes have gone by in this stream.",
        hint="read it from a local file that is not compressed, or a remote one with cache_dir=; "
        "tarmac copy LOCAL.tar -o NEW.tar makes plain files of links.",
    )


def _plain(name: bytes) -> bytes:
    """A name as tools that unpack see it: `./a`, `/a` and `a` are one file."""
    return posixpath.normpath(name.lstrip(b"/"))


def _shown(name: bytes) -> str:
    return repr(name[:80].decode("utf-8", "replace"))
