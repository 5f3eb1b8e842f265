"""Samples by their place: with an index no header is parsed, reading is slicing.

Local shards are mapped. Of remote ones only the bytes asked for are fetched, neighbours in one request
and several requests at a time.
"""

from __future__ import annotations

import itertools
import mmap
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.errors import DigestMismatch, IndexingError, IndexStale
from tarmac.indexing.names import BEFORE, check_names_before, hard_links
from tarmac.indexing.sidecar import Sidecar
from tarmac.samples.grouping import Sample
from tarmac.storage import Source, StorageOptions, read_range
from tarmac.storage.local import LocalSource
from tarmac.storage.types import DEFAULT_STORAGE

__all__ = ["cut_out", "IndexedShard"]

Rows = NDArray[np.int64]

CHUNK = 4096
"""Samples made at a time when a shard is read from front to back, ..."""
CHUNK_BYTES = 32 << 20
"""... and about how many bytes of them."""
LARGE = 32 << 10
"""Bytes from which a field is read from the file, without Python's lock, and not cut out of the map."""
GAP = 64 << 10
"""Bytes between two fields below which one request for both is cheaper than two."""
LOCAL_GAP = 4 << 10
"""The same for a local file that is not mapped."""
SPAN = 8 << 20
"""Bytes of one request at most, so that several share the work of a long stretch."""
REQUESTS = 16
"""Requests for one call under way at a time."""


class IndexedShard:
    """One shard together with its index.

    `source` is the open shard if it is on this machine; without it, `url` is read by ranges. `fields` limits
    what is read. With `verify` each field is compared with the digest in the index. A remote shard that no
    longer has `version` is refused. Without `mapped`, a local shard is read piece by piece: pages of a map
    count as memory in use, and after samples from all over a shard most of them do. With `views`, the fields
    of a mapped shard are memoryviews of it instead of bytes: for whoever only passes them on. With
    `compare_names`, the header of each member that is fetched is fetched, too, and must have its name.
    """

    def __init__(
        self,
        url: str,
        sidecar: Sidecar,
        source: Source | None = None,
        *,
        storage: StorageOptions = DEFAULT_STORAGE,
        fields: Collection[str] | None = None,
        verify: bool = False,
        version: str | None = None,
        mapped: bool = True,
        views: bool = False,
        compare_names: bool = False,
    ) -> None:
        self.url = url
        self._version = version
        self.sidecar = sidecar
        self._storage = storage
        self._map: mmap.mmap | bytes | memoryview | None = None
        self._file = source if isinstance(source, LocalSource) else None
        self.damaged = False
        """Whether bytes were found that are not those indexed, so that it has to be opened again."""
        if source is not None:
            # Other threads may still read when this shard is no longer kept, so its end closes the source.
            closing = weakref.finalize(self, source.close)
            if mapped or self._file is None or self._file.length is None:
                self._map = _addressable(source, sidecar, url)
                if self._map is None:
                    self._file = None
                    closing()  # a stream, which has no addresses
            else:
                _check_length(self._file.length, sidecar, url)
        if views and self._map is not None:
            self._map = memoryview(self._map)
        self._wanted = None if fields is None else frozenset(fields)
        self._verify = verify
        self._links: NDArray[np.bool_] | None = None
        """Which members are hard links, where names are compared."""
        if compare_names and self._map is None and self._file is None:
            self._links = hard_links(sidecar.offsets, url)
        if verify and sidecar.digests is None:
            raise IndexingError(
                "the index has no digests to compare with.", url=url, hint="tarmac index --digest SHARDS"
            )
        # Reading one number from a memoryview is several times faster than from a numpy array.
        self._starts = sidecar.starts.data
        self._field_of = sidecar.field_of.data
        self._offsets = sidecar.offsets.data
        self._sizes = sidecar.sizes.data
        # All samples have the same fields and all are wanted, so that nothing has to be looked up.
        layout = sidecar.facts.layout if fields is None else None
        here = self._map, url, sidecar.key, layout, self._offsets, self._sizes
        self._plain: tuple[Any, ...] | None = here if layout else None
        self.names = self._names()
        """The fields of each sample, if all have the same ones and they can be cut out of `content`."""

    def __len__(self) -> int:
        return len(self.sidecar)

    @property
    def content(self) -> Any:
        """All of the shard, if it is in memory or mapped."""
        return self._map

    def _names(self) -> list[str] | None:
        layout = self.sidecar.facts.layout
        if self._map is None or self._verify or layout is None:
            return None
        return [name for name in layout if self._wanted is None or name in self._wanted]

    def sample(self, row: int) -> Sample:
        """One sample: its key, its URL, and the bytes of each field."""
        if self._map is None or self._verify:
            return self.samples(np.array([row]))[0]
        found: Sample
        if self._plain is not None:
            data, url, key, names, offsets, sizes = self._plain
            found = {"__key__": key(row), "__url__": url}
            member = row * len(names)
            for name in names:
                start, size = offsets[member], sizes[member]
                found[name] = data[start : start + size] if size < LARGE else self._large(start, size)
                member += 1
            return found
        data, fields, wanted = self._map, self.sidecar.fields, self._wanted
        found = {"__key__": self.sidecar.key(row), "__url__": self.url}
        for member in range(self._starts[row], self._starts[row + 1]):
            name = fields[self._field_of[member]]
            if wanted is None or name in wanted:
                start, size = self._offsets[member], self._sizes[member]
                found[name] = data[start : start + size] if size < LARGE else self._large(start, size)
        return found

    def _large(self, start: int, size: int) -> Any:
        """The bytes of a large field, read so that other threads go on meanwhile, however slow the disk."""
        if self._file is None or isinstance(self._map, memoryview):
            assert self._map is not None
            return self._map[start : start + size]
        data = self._file.read_at(start, size)
        if len(data) != size:
            raise IndexStale("the shard has become shorter while it was read.", url=self.url)
        return data

    def samples(self, rows: Rows | slice) -> list[Sample]:
        """Several samples, in the order of `rows`."""
        if self.names is not None:
            return list(self._cut_out(rows))
        url = self.url
        found: list[Sample] = [{"__key__": key, "__url__": url} for key in self.sidecar.keys(rows)]
        self._fill(found, rows)
        return found

    @property
    def local(self) -> bool:
        """Whether reading a sample costs no request, neither of a server nor of the system."""
        return self._map is not None

    def some(self, rows: NDArray[np.int32]) -> Iterator[Sample]:
        """The samples of these rows, one after the other."""
        for start, stop in self._chunks(rows):
            yield from self.samples(rows[start:stop].astype(np.int64))

    def __iter__(self) -> Iterator[Sample]:
        for start, stop in self._chunks(slice(None)):
            rows = slice(start, stop)
            yield from self.samples(rows) if self.names is None else self._cut_out(rows)

    def _chunks(self, rows: NDArray[np.int32] | slice) -> Iterator[tuple[int, int]]:
        """Cut rows into pieces of a bounded number of samples and bytes."""
        sidecar = self.sidecar
        if not len(sidecar):
            return
        ends = np.cumsum(np.add.reduceat(sidecar.sizes, sidecar.starts[:-1])[rows])
        start = 0
        while start < len(ends):
            before = ends[start - 1] if start else 0
            stop = int(np.searchsorted(ends, before + CHUNK_BYTES, side="right"))
            stop = min(max(stop, start + 1), start + CHUNK, len(ends))
            yield start, stop
            start = stop

    def bounds(self, rows: Rows | slice) -> Rows:
        """Of each sample: where each of `names` begins and ends."""
        layout = self.sidecar.facts.layout
        assert layout is not None
        chosen = self._wanted
        wanted = [number for number, name in enumerate(layout) if chosen is None or name in chosen]
        starts = self.sidecar.offsets.reshape(-1, len(layout))[rows][:, wanted]
        sizes = self.sidecar.sizes.reshape(-1, len(layout))[rows][:, wanted]
        return np.stack([starts, starts + sizes], axis=2).reshape(len(starts), 2 * len(wanted))

    def _cut_out(self, rows: Rows | slice) -> Iterator[Sample]:
        assert self.names is not None
        keys = self.sidecar.keys(rows)
        urls, contents = itertools.repeat(self.url, len(keys)), itertools.repeat(self.content, len(keys))
        return cut_out(self.names, keys, urls, contents, self.bounds(rows).T.tolist())

    def _fill(self, found: list[Sample], rows: Rows | slice) -> None:
        sidecar = self.sidecar
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        firsts, lasts = sidecar.starts[numbers], sidecar.starts[numbers + 1]
        owners = np.repeat(np.arange(len(numbers)), lasts - firsts)
        # The numbers of all members: those of sample after sample, each run starting where its sample does.
        counts = (lasts - firsts).astype(np.int64)
        members = np.arange(len(owners)) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        if self._wanted is not None:
            chosen = np.isin(
                sidecar.field_of[members],
                [number for number, name in enumerate(sidecar.fields) if name in self._wanted],
            )
            owners, members = owners[chosen], members[chosen]
        starts = sidecar.offsets[members]
        names = [sidecar.fields[number] for number in sidecar.field_of[members].tolist()]
        before = 0 if self._links is None else BEFORE
        payloads = self._bytes((starts - before).tolist(), (starts + sidecar.sizes[members]).tolist())
        if self._links is not None:
            keys = (found[owner]["__key__"] for owner in owners.tolist())
            expected = zip(keys, names, self._links[members].tolist(), starts.tolist(), strict=True)
            check_names_before(payloads, expected, self.url)
            payloads = [payload[before:] for payload in payloads]
        for owner, name, payload in zip(owners.tolist(), names, payloads, strict=True):
            found[owner][name] = payload
        if self._verify:
            self._check_digests(found, owners, members, names)

    def _check_digests(self, found: list[Sample], owners: Rows, members: Rows, names: list[str]) -> None:
        assert self.sidecar.digests is not None
        expected = self.sidecar.digests[members].tolist()
        for owner, name, digest in zip(owners.tolist(), names, expected, strict=True):
            if xxhash.xxh3_64_intdigest(found[owner][name]) != digest:
                error = DigestMismatch(
                    f'the bytes of the field "{name}" are not those that were indexed.',
                    url=self.url,
                    key=found[owner]["__key__"],
                )
                self.damaged = True
                if self._file is not None:
                    self._file.blame(error)
                raise error

    def _bytes(self, starts: list[int], ends: list[int]) -> list[Any]:
        data = self._map
        if data is not None:
            return [data[start:end] for start, end in zip(starts, ends, strict=True)]
        spans = coalesced(starts, ends, GAP if self._file is None else LOCAL_GAP)
        fetched = self._fetch([span[:2] for span in spans])
        found = [b""] * len(starts)
        for (base, _, numbers), piece in zip(spans, fetched, strict=True):
            for number in numbers:
                found[number] = piece[starts[number] - base : ends[number] - base]
        return found

    def _fetch(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        if self._file is not None:
            return [self._large(start, stop - start) for start, stop in spans]

        def one(span: tuple[int, int]) -> bytes:
            return read_range(self.url, *span, self._storage, self._version)

        if len(spans) == 1:
            return [one(spans[0])]
        with ThreadPoolExecutor(min(REQUESTS, len(spans) or 1)) as pool:
            return list(pool.map(one, spans))


def cut_out(
    names: Sequence[str],
    keys: Iterable[str],
    urls: Iterable[str],
    contents: Iterable[Any],
    bounds: Sequence[Iterable[int]],
) -> Iterator[Sample]:
    """Make samples that all have the same fields; `bounds` are, for each field, all begins and all ends."""
    together = zip(keys, urls, contents, *bounds, strict=True)
    match names:
        # Most samples have two or three fields, and what is written down at once is made fastest.
        case [one, two]:
            return (
                {"__key__": key, "__url__": url, one: data[a:b], two: data[c:d]}
                for key, url, data, a, b, c, d in together
            )
        case [one, two, three]:
            return (
                {"__key__": key, "__url__": url, one: data[a:b], two: data[c:d], three: data[e:f]}
                for key, url, data, a, b, c, d, e, f in together
            )
    return (
        {"__key__": key, "__url__": url}
        | {name: data[a:b] for name, a, b in zip(names, cuts[::2], cuts[1::2], strict=True)}
        for key, url, data, *cuts in together
    )


def coalesced(starts: Sequence[int], ends: Sequence[int], gap: int = GAP) -> list[tuple[int, int, list[int]]]:
    """Join ranges that overlap or lie close together: from, to, and the numbers of those inside."""
    spans: list[tuple[int, int, list[int]]] = []
    for number in sorted(range(len(starts)), key=starts.__getitem__):
        start, end = starts[number], ends[number]
        if spans and start <= spans[-1][1] + gap and end <= spans[-1][0] + SPAN:
            first, reached, numbers = spans[-1]
            numbers.append(number)
            spans[-1] = first, max(reached, end), numbers
        else:
            spans.append((start, end, [number]))
    return spans


def _addressable(source: Source, sidecar: Sidecar, url: str) -> mmap.mmap | bytes | None:
    """The bytes of a shard that is on this machine: mapped, or in memory."""
    found = source.map() or source.content()
    if found is None:
        return None
    _check_length(len(found), sidecar, url)
    if isinstance(found, mmap.mmap):
        found.madvise(mmap.MADV_NORMAL)  # rows come in any order
    return found


def _check_length(length: int, sidecar: Sidecar, url: str) -> None:
    if length != sidecar.facts.size:
        raise IndexStale(f"the shard has {length} bytes, {sidecar.facts.size} when indexed.", url=url)
