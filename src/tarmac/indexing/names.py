"""Compare the names in the headers of a shard with its index: that is where other samples show.

Marks know a copy by a few places. Between them a shard may have been written again with other samples of the
same sizes, whose bytes must not come out under the keys of the index.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import ArchiveError, IndexDamaged, IndexStale
from tarmac.storage import ObjectInfo, is_local
from tarmac.storage.local import LocalSource, local_path
from tarmac.tar import TarOptions, read_members
from tarmac.tar.header import BLOCK, classify

__all__ = ["BEFORE", "check_all_names", "check_names_before", "hard_links"]

BEFORE = BLOCK
"""Bytes before a payload in which its header is."""
LONGEST = 100
"""Bytes of a name that every header has in full; longer ones may be in an extended header."""
REMEMBERED = 1 << 16
_ANY_END = TarOptions(concatenated=True)

_sound: set[tuple[str, ...]] = set()
"""Shards whose names were compared in this process, as they were then."""


class Names(Protocol):
    """What is needed of an index."""

    fields: list[str]
    field_of: NDArray[np.int16]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    starts: NDArray[np.int32]

    def key(self, row: int) -> str: ...


def check_all_names(
    index: Names, fingerprint: str, info: ObjectInfo, url: str, content: mmap.mmap | bytes | None
) -> None:
    """Refuse a shard of this machine, or whose `content` is here, that has other members than its index.

    All headers are read, once per process for each version of a shard.
    """
    place = os.path.abspath(local_path(url)) if is_local(url) else url
    known = place, str(info.size), info.version or "", fingerprint
    if known in _sound:
        return
    if content is None:
        with LocalSource(url) as source:
            whole = source.map()
            missing = None if whole is None else _missing(index, whole)
    else:
        missing = _missing(index, content)
    if missing is not None:
        raise _stale(*missing, url)
    if info.version:
        if len(_sound) >= REMEMBERED:
            _sound.clear()
        _sound.add(known)


def _missing(index: Names, content: mmap.mmap | bytes) -> tuple[str, int] | None:
    """Return the first member of an index that a shard does not have: its name and its offset."""
    expected = _members(index)
    offset, size, key, field = next(expected, (-1, 0, "", ""))
    if offset < 0:
        return None
    try:
        for name, found, length, _ in read_members(content, _ANY_END, payload=False):
            if found == offset and length == size and _is(name, key, field):
                offset, size, key, field = next(expected, (-1, 0, "", ""))
                if offset < 0:
                    return None
    except ArchiveError:
        pass  # it was sound when it was indexed
    return f"{key}.{field}", offset


def _members(index: Names) -> Iterator[tuple[int, int, str, str]]:
    """Offset, size, key and field of each member, in the order of the shard."""
    starts, fields = index.starts.tolist(), index.fields
    for row in range(len(starts) - 1):
        here = slice(starts[row], starts[row + 1])
        numbers = index.field_of[here].tolist()
        for offset, size, number in zip(
            index.offsets[here].tolist(), index.sizes[here].tolist(), numbers, strict=True
        ):
            yield offset, size, index.key(row), fields[number]


def hard_links(offsets: NDArray[np.int64], url: str) -> NDArray[np.bool_]:
    """Say which members are hard links: those lead back, while all others follow each other."""
    if not len(offsets):
        return np.zeros(0, bool)
    if offsets.min() < BEFORE:
        raise IndexDamaged("the index has a member where no header comes before it.", url=url)
    return np.concatenate([[False], offsets[1:] <= np.maximum.accumulate(offsets)[:-1]])


def check_names_before(
    pieces: Iterable[bytes], expected: Iterable[tuple[str, str, bool, int]], url: str
) -> None:
    """Refuse members with other names than those of the index; each piece begins with the header.

    `expected` is the key and the field, whether the member is a hard link, and its offset. The names of hard
    links are not compared, nor those that may stand in an extended header.
    """
    for piece, (key, field, link, offset) in zip(pieces, expected, strict=True):
        name = f"{key}.{field}"
        if link or not name.isascii() or len(name) > LONGEST:
            continue
        found, prefix = piece[:100].partition(b"\0")[0], classify(piece[156:BLOCK]).prefix
        if not _is(prefix + b"/" + found if prefix else found, key, field):
            raise _stale(name, offset, url)


def _is(name: bytes, key: str, field: str) -> bool:
    """Whether a member is this field of this sample; the index may have the field in lower case."""
    wanted = f"{key}.{field}".encode("utf-8", "surrogateescape")
    if name == wanted:
        return True
    text = name.decode("utf-8", "surrogateescape")
    return text.startswith(f"{key}.") and text[len(key) + 1 :].lower() == field


def _stale(name: str, offset: int, url: str) -> IndexStale:
    return IndexStale(
        f'the shard was written again with other samples: there is no "{name}" at byte {offset}.', url=url
    )
