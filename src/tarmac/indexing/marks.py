"""Content marks: digests of a few places of a shard, by which its index knows it after any kind of copy.

Times and ETags change when a file is copied, unpacked or uploaded; these bytes do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import xxhash

from tarmac.errors import TransferError
from tarmac.storage import ObjectInfo, StorageOptions, is_local, read_range
from tarmac.storage.local import LocalSource

__all__ = ["digest_at", "differing_mark", "Mark", "parse_marks", "take_marks"]

MEMBERS = 32
"""Members whose headers are marked: the first, the last, and others evenly between them."""
AROUND = 2048
"""Bytes marked before and after the end of a header: its extensions, itself, and the start of the payload."""
REMOTE = 4
"""Marks of a remote shard that are compared, each by a request."""
REQUESTS = 16
"""Requests under way at a time."""
MOST = 1024
"""Marks that an index can have; one with more was not made by us."""

Span = tuple[int, int]


class Mark(NamedTuple):
    """The xxh3-64 digest of the bytes from `start` up to `stop`."""

    start: int
    stop: int
    digest: str


def digest_at(read: Callable[[int, int], bytes], spans: Iterable[Span]) -> str:
    """Return one digest of the bytes at some places; `read(start, size)` gives them."""
    digest = xxhash.xxh3_64()
    for start, stop in spans:
        digest.update(read(start, stop - start))
    return digest.hexdigest()


def take_marks(url: str, info: ObjectInfo, offsets: Sequence[int], storage: StorageOptions) -> list[Mark]:
    """Return the marks of a shard whose payloads begin at `offsets`.

    A server that does not answer ranges has none taken: its shards are known by size and ETag alone.
    """
    spans = marked_spans(offsets, info.size)
    try:
        digests = list(_digests(spans, url, info, storage))
    except TransferError as error:
        if not _has_no_ranges(error, url):
            raise
        return []
    return [Mark(start, stop, digest) for (start, stop), digest in zip(spans, digests, strict=True)]


def differing_mark(
    marks: Sequence[Mark], url: str, info: ObjectInfo, storage: StorageOptions, content: Any = None
) -> Mark | None:
    """Return a mark that the shard does not have; LookupError if its server does not answer ranges.

    Of a remote shard a few are compared, unless its `content` is here already.
    """
    some = marks
    if content is None and not is_local(url):
        # The last one is the end of the archive, the one before it the last header.
        some = [*_evenly(marks[:-1], REMOTE - 1), *marks[-1:]]
    try:
        found = list(_digests([(mark.start, mark.stop) for mark in some], url, info, storage, content))
    except TransferError as error:
        if not _has_no_ranges(error, url):
            raise
        raise LookupError("the server does not answer ranges") from None
    return next((mark for mark, digest in zip(some, found, strict=True) if mark.digest != digest), None)


def _has_no_ranges(error: TransferError, url: str) -> bool:
    """Whether this is the answer of a server, and no fault on the way: those have classes of their own."""
    return type(error) is TransferError and not is_local(url)


def marked_spans(offsets: Sequence[int], size: int) -> list[Span]:
    """Choose the places of a shard to be marked: around some headers, and its two ends."""
    middles = [AROUND, *(int(offset) for offset in _evenly(offsets, MEMBERS)), size - AROUND]
    spans: list[Span] = []
    for middle in sorted(middles):
        start, stop = max(0, middle - AROUND), min(size, middle + AROUND)
        if start >= stop:
            continue
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        else:
            spans.append((start, stop))
    return spans


def parse_marks(found: Any, size: int) -> tuple[Mark, ...]:
    """Read the marks that an index file holds; ValueError if they cannot be those of such a shard."""
    if not isinstance(found, list) or len(found) > MOST:
        raise ValueError("marks must be a short list")
    marks = tuple(Mark(*one) for one in found)
    for start, stop, digest in marks:
        if type(start) is not int or type(stop) is not int or not isinstance(digest, str):
            raise ValueError("a mark is two whole numbers and a digest")
        if not 0 <= start < stop <= size:
            raise ValueError(f"a mark from {start} to {stop} lies outside of the shard")
    if sum(stop - start for start, stop, _ in marks) > 2 * AROUND * MOST:
        raise ValueError("marks cover too much")
    return marks


def _evenly(items: Sequence[Any], most: int) -> list[Any]:
    """Choose so many of the items, the first and the last among them."""
    count = len(items)
    if count <= most:
        return list(items)
    return [items[number * (count - 1) // (most - 1)] for number in range(most)]


def _digests(
    spans: Sequence[Span], url: str, info: ObjectInfo, storage: StorageOptions, content: Any = None
) -> Iterator[str]:
    if content is not None:
        for start, stop in spans:
            yield xxhash.xxh3_64_hexdigest(content[start:stop])
        return
    if is_local(url):
        with LocalSource(url) as source:
            for span in spans:
                yield digest_at(source.read_at, [span])
        return

    def one(span: Span) -> str:
        return xxhash.xxh3_64_hexdigest(read_range(url, *span, storage, info.version))

    try:
        with ThreadPoolExecutor(REQUESTS) as pool:
            found = list(pool.map(one, spans))
    except RuntimeError:  # no thread can be started while the interpreter ends
        found = [one(span) for span in spans]
    yield from found
