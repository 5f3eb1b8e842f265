"""Recognise a shard by digests of a few spans, which survive copying, unlike times and ETags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import xxhash

from tarmac.errors import TransferError, UnsupportedScheme
from tarmac.storage import ObjectInfo, StorageOptions, is_local, read_range
from tarmac.storage.local import LocalSource

T = TypeVar("T")
MEMBERS = 32
"""Members whose headers are sampled: the first, the last, and others evenly between them."""
AROUND = 2048
"""Bytes before and after the end of a sampled header: its extensions, itself, and the start of the payload."""
REMOTE = 4
"""Digests of a remote shard that are compared, each by a request."""
REQUESTS = 16
"""Concurrent requests."""
MAX_DIGESTS = 1024
"""Digests that an index may hold; tarmac writes far fewer."""

Span: TypeAlias = tuple[int, int]


class SampledDigest(NamedTuple):
    """The xxh3-64 digest of the bytes from `start` up to `stop`."""

    start: int
    stop: int
    digest: str


class Held(NamedTuple):
    """Bytes of a shard that were read already, from `start` on."""

    data: Any
    start: int = 0

    def covers(self, start: int, stop: int) -> bool:
        """Return whether all bytes from `start` up to `stop` are among them."""
        return self.start <= start and stop <= self.start + len(self.data)

    def digest(self, start: int, stop: int) -> str:
        """Return the digest of the bytes from `start` up to `stop`."""
        return xxhash.xxh3_64_hexdigest(self.data[start - self.start : stop - self.start])


def digest_at(read: Callable[[int, int], bytes], spans: Iterable[Span]) -> str:
    """Return one digest of the bytes in some spans, which `read(start, size)` returns."""
    digest = xxhash.xxh3_64()
    for start, stop in spans:
        digest.update(read(start, stop - start))
    return digest.hexdigest()


def sample_digests(
    url: str, info: ObjectInfo, offsets: Sequence[int], storage: StorageOptions
) -> list[SampledDigest]:
    """Return sampled digests of a shard whose payloads begin at `offsets`.

    There are none if the server or store does not support ranges; then only size and ETag are compared.
    """
    spans = sampled_spans(offsets, info.size)
    try:
        digests = _digests(spans, url, info, storage)
    except LookupError:
        return []
    return [SampledDigest(*span, digest) for span, digest in zip(spans, digests, strict=True)]


def find_difference(
    expected: Sequence[SampledDigest],
    url: str,
    info: ObjectInfo,
    storage: StorageOptions,
    held: Held | None = None,
) -> SampledDigest | None:
    """Return a digest that differs from the shard's; raise LookupError if the server lacks ranges.

    Of a remote shard, those of the bytes `held` are compared and a few others, which are requested.
    """
    known = [] if held is None else [each for each in expected if held.covers(each.start, each.stop)]
    for each in known:
        if held is not None and held.digest(each.start, each.stop) != each.digest:
            return each
    compared = expected
    if not is_local(url):
        # The last one covers the end of the archive, the one before it the last header.
        compared = [*_evenly_spaced(expected[:-1], REMOTE - 1), *expected[-1:]]
    compared = [each for each in compared if each not in known]
    digests = _digests([(each.start, each.stop) for each in compared], url, info, storage)
    pairs = zip(compared, digests, strict=True)
    return next((each for each, digest in pairs if each.digest != digest), None)


def sampled_spans(offsets: Sequence[int], size: int) -> list[Span]:
    """Return the spans of a shard to sample: around some headers, and at both ends."""
    centers = [AROUND, *(int(offset) for offset in _evenly_spaced(offsets, MEMBERS)), size - AROUND]
    spans: list[Span] = []
    for center in sorted(centers):
        start, stop = max(0, center - AROUND), min(size, center + AROUND)
        if start >= stop:
            continue
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        else:
            spans.append((start, stop))
    return spans


def parse_digests(content: Any, size: int) -> tuple[SampledDigest, ...]:
    """Parse the sampled digests in an index; raise ValueError if they are invalid for a shard of this size."""
    if not isinstance(content, list) or len(content) > MAX_DIGESTS:
        raise ValueError("sampled digests must be a short list")
    digests = tuple(SampledDigest(*one) for one in content)
    for start, stop, digest in digests:
        if type(start) is not int or type(stop) is not int or not isinstance(digest, str):
            raise ValueError("expected two integers and a string as a sampled digest")
        if not 0 <= start < stop <= size:
            raise ValueError(f"a sampled digest from {start} to {stop} is outside the shard")
    if sum(stop - start for start, stop, _ in digests) > 2 * AROUND * MAX_DIGESTS:
        raise ValueError("sampled digests cover too much")
    return digests


def _evenly_spaced(items: Sequence[T], most: int) -> list[T]:
    """Return up to `most` items, the first and the last among them."""
    count = len(items)
    if count <= most:
        return list(items)
    return [items[number * (count - 1) // (most - 1)] for number in range(most)]


def _digests(spans: Sequence[Span], url: str, info: ObjectInfo, storage: StorageOptions) -> list[str]:
    if not spans:
        return []
    if is_local(url):
        with LocalSource(url) as source:
            return [digest_at(source.read_at, [span]) for span in spans]

    def remote_digest(span: Span) -> str:
        return xxhash.xxh3_64_hexdigest(read_range(url, *span, storage, info.version))

    try:
        try:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(REQUESTS) as pool:
                return list(pool.map(remote_digest, spans))
        except (RuntimeError, ImportError):  # no thread can be started while the interpreter shuts down
            return [remote_digest(span) for span in spans]
    except TransferError as error:
        if type(error) is not TransferError:  # the transfer failed; a rejected range has no class of its own
            raise
        raise LookupError("the server does not support ranges") from None
    except UnsupportedScheme:
        raise LookupError("the store does not support ranges") from None
