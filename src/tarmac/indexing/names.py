"""Compare the member names in a shard with its index, to detect a shard that was rewritten.

Sampled digests recognise a copy by a few spans. Between them the shard may contain different samples of the same
sizes, which must not be returned under the keys of the index.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import ArchiveError, IndexDamaged, IndexStale
from tarmac.runtime.types import Integers
from tarmac.storage import ObjectInfo, location
from tarmac.storage.local import LocalSource
from tarmac.tar import TarOptions, read_members
from tarmac.tar.header import BLOCK, classify

if TYPE_CHECKING:
    from tarmac.indexing.sidecar import Sidecar

HEADER_BYTES = BLOCK
"""Bytes before a payload that hold its header."""
MAX_NAME = 100
"""Bytes of a name that every header has in full; longer ones may be in an extended header."""
MAX_VERIFIED = 1 << 16
_ANY_END = TarOptions(concatenated=True)

_verified: set[tuple[str, ...]] = set()
"""Versions of shards whose names were compared in this process."""


def check_all_names(index: Sidecar, info: ObjectInfo, url: str, content: mmap.mmap | bytes | None) -> None:
    """Raise IndexStale if a local shard, or one whose `content` is given, lacks members of its index.

    All headers are read, once per process for each version of a shard.
    """
    version = location(url), str(info.size), info.version or "", index.facts.fingerprint
    if version in _verified:
        return
    if content is None:
        with LocalSource(url) as source:
            mapped = source.map()
            missing = None if mapped is None else _first_missing(index, mapped)
    else:
        missing = _first_missing(index, content)
    if missing is not None:
        raise _stale(*missing, url)
    if info.version:
        if len(_verified) >= MAX_VERIFIED:
            _verified.clear()
        _verified.add(version)


def _first_missing(index: Sidecar, content: mmap.mmap | bytes) -> tuple[str, int] | None:
    """Return name and offset of the first member of the index that the shard lacks."""
    expected = _members(index)
    offset, size, key, field = next(expected, (-1, 0, "", ""))
    if offset < 0:
        return None
    try:
        for name, start, length, _ in read_members(content, _ANY_END, payload=False):
            if start == offset and length == size and _matches(name, key, field):
                offset, size, key, field = next(expected, (-1, 0, "", ""))
                if offset < 0:
                    return None
    except ArchiveError:
        pass  # it was readable when it was indexed
    return f"{key}.{field}", offset


def _members(index: Sidecar) -> Iterator[tuple[int, int, str, str]]:
    """Yield offset, size, key and field of each member, in the order of the shard."""
    starts, fields = index.starts.tolist(), index.fields
    for row in range(len(starts) - 1):
        members = slice(starts[row], starts[row + 1])
        numbers = index.field_of[members].tolist()
        for offset, size, number in zip(
            index.offsets[members].tolist(), index.sizes[members].tolist(), numbers, strict=True
        ):
            yield offset, size, index.key(row), fields[number]


def hard_links(offsets: Integers, url: str) -> NDArray[np.bool_]:
    """Return which members are hard links: their offsets go back, all others increase."""
    if not len(offsets):
        return np.zeros(0, bool)
    if offsets.min() < HEADER_BYTES:
        raise IndexDamaged("the index has a member without room for its header.", url=url)
    return np.concatenate([[False], offsets[1:] <= np.maximum.accumulate(offsets)[:-1]])


def check_headers(pieces: Iterable[bytes], expected: Iterable[tuple[str, str, bool, int]], url: str) -> None:
    """Raise IndexStale if a member has another name than in the index; each piece begins with its header.

    `expected` has the key, the field, whether the member is a hard link, and its offset. Names of hard links
    and names that may be in an extended header are not compared.
    """
    for piece, (key, field, link, offset) in zip(pieces, expected, strict=True):
        name = f"{key}.{field}"
        if link or not name.isascii() or len(name) > MAX_NAME:
            continue
        stored, prefix = piece[:100].partition(b"\0")[0], classify(piece[156:BLOCK]).prefix
        if not _matches(prefix + b"/" + stored if prefix else stored, key, field):
            raise _stale(name, offset, url)


def _matches(name: bytes, key: str, field: str) -> bool:
    """Return whether a member is this field of this sample; the index may have the field in lower case."""
    expected = f"{key}.{field}".encode("utf-8", "surrogateescape")
    if name == expected:
        return True
    text = name.decode("utf-8", "surrogateescape")
    return text.startswith(f"{key}.") and text[len(key) + 1 :].lower() == field


def _stale(name: str, offset: int, url: str) -> IndexStale:
    return IndexStale(
        f'the shard was rewritten with different samples: expected "{name}" at byte {offset}.', url=url
    )
