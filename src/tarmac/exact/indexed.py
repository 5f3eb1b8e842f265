"""Read samples of a shard at the offsets in its index, without parsing headers.

Local shards are memory-mapped. From remote shards only the requested bytes are fetched: nearby fields in one
request, and several requests in parallel.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.errors import DigestMismatch, IndexingError, IndexStale
from tarmac.exact.types import Rows
from tarmac.indexing.build import REQUESTS
from tarmac.indexing.names import HEADER_BYTES, check_headers, hard_links
from tarmac.indexing.sampled_digests import Held
from tarmac.indexing.sidecar import Sidecar
from tarmac.runtime.lookahead import in_threads
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample
from tarmac.storage import ObjectInfo, Source, StorageOptions
from tarmac.storage.local import LocalSource
from tarmac.storage.mapped import MappedFile, map_file
from tarmac.storage.schemes import read_buffer
from tarmac.storage.types import DEFAULT_STORAGE

CHUNK = 4096
"""Samples read at a time when a whole shard is read, ..."""
CHUNK_BYTES = 32 << 20
"""... and their approximate size."""
LARGE = 16 << 10
"""Mean size of samples from which the file is read instead of its map."""
GAP = 64 << 10
"""Gap between two fields, in bytes, up to which one request is cheaper than two."""
LOCAL_GAP = 4 << 10
"""The same for local files that are not mapped."""
END = 16 << 10
"""Bytes after the last field up to which the end of a copy is fetched with it."""
SPAN = 8 << 20
"""Largest request, in bytes; longer ranges are read in parallel."""


class IndexedShard:
    """A shard and its index.

    `source` is the open shard if it is local; without it, `url` is read by ranges. `fields` limits what is
    read. `verify` compares each field with its digest in the index. Without `mapped`, a local shard is read in
    pieces: the pages of a map count as memory in use. With `views`, the fields of a mapped shard are memoryviews
    instead of bytes.

    `remote` is the state of a remote shard when it was opened; reading raises if it changes. A shard of another version
    than the indexed one is taken for a copy: the header of each member is fetched, too, and compared with the
    index, and so are its sampled digests before the first bytes are returned.
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
        remote: ObjectInfo | None = None,
        mapped: bool = True,
        views: bool = False,
    ) -> None:
        self.url, self.sidecar = url, sidecar
        self._storage, self._remote, self._verify = storage, remote, verify
        self._wanted = None if fields is None else frozenset(fields)
        self._file = source if isinstance(source, LocalSource | MappedFile) else None
        self.content: Any = None
        """The bytes of the shard, if it is mapped or in memory."""
        self.damaged: bool = False
        """Whether the bytes differ from those indexed, so that the shard must be opened again."""
        if source is not None:
            # Other threads may read after this shard was dropped, so the source is closed with the last reference.
            closing = weakref.finalize(self, source.close)
            length = None if self._file is None else source.length
            if isinstance(source, LocalSource):
                self.content = map_file(source.fileno(), length or 0) if mapped else None
            elif mapped or length is None:
                self.content = source.content()
            if self.content is not None:
                length = len(self.content)
            elif length is None:
                self._file = None
                closing()  # a stream cannot be addressed
            if length not in (None, sidecar.facts.size):
                raise IndexStale(
                    f"expected {sidecar.facts.size} bytes as when it was indexed, got {length}.", url=url
                )
        if views and self.content is not None:
            self.content = memoryview(self.content).cast("B")
        self.data: Any = self.content
        """What fields are sliced from, if the shard is local: its map, or the file where samples are large."""
        if self._file is not None and not views and sidecar.facts.size >= LARGE * len(sidecar):
            self.data = _Sliced(self._file, url)
        self._links: NDArray[np.bool_] | None = None
        """Which members are hard links; only needed to compare names."""
        self._unchecked: threading.Lock | None = None
        """Held while a copy is compared with its sampled digests; None if it was."""
        by_ranges = self.content is None and self._file is None
        if by_ranges and remote is not None and not sidecar.facts.same_version(remote, url):
            self._links = None if sidecar.facts.rows else hard_links(sidecar.offsets, url)
            self._unchecked = threading.Lock()
        if verify and sidecar.digests is None:
            raise IndexingError("the index has no digests.", url=url, hint="tarmac index --digests SHARDS")
        # Reading one number from a memoryview is several times faster than from a numpy array.
        self._starts = sidecar.starts.data
        self._field_of = sidecar.field_of.data
        self._offsets = sidecar.offsets.data
        self._sizes = sidecar.sizes.data
        layout = sidecar.facts.layout
        self.names: list[str] | None = None
        """The fields of each sample, if all samples have the same fields and `content` is in memory."""
        if layout is not None and self.content is not None and not verify:
            self.names = [name for name in layout if self._wanted is None or name in self._wanted]
        # The fast path: all samples have the same fields, and all fields are wanted.
        uniform = self.data, url, sidecar.key, layout, self._offsets, self._sizes
        self._uniform: tuple[Any, ...] | None = uniform if self.names and fields is None else None

    def __len__(self) -> int:
        return len(self.sidecar)

    def sample(self, row: int) -> Sample:
        """Return one sample: its key, its URL, and the bytes of each field."""
        if self.content is None or self._verify:
            return self.samples(np.array([row]))[0]
        sample: Sample
        if self._uniform is not None:
            data, url, key, names, offsets, sizes = self._uniform
            sample = {"__key__": key(row), "__url__": url}
            member = row * len(names)
            for name in names:
                start = offsets[member]
                sample[name] = data[start : start + sizes[member]]
                member += 1
            return sample
        data, fields, wanted = self.data, self.sidecar.fields, self._wanted
        sample = {"__key__": self.sidecar.key(row), "__url__": self.url}
        for member in range(self._starts[row], self._starts[row + 1]):
            name = fields[self._field_of[member]]
            if wanted is None or name in wanted:
                start = self._offsets[member]
                sample[name] = data[start : start + self._sizes[member]]
        return sample

    def members(self, row: int) -> list[tuple[str, int, int, int | None]]:
        """Return name, offset, size and digest of each wanted field of a sample; digests only to be verified."""
        sidecar, wanted, digests = self.sidecar, self._wanted, self.sidecar.digests if self._verify else None
        members = []
        for number in range(self._starts[row], self._starts[row + 1]):
            name = sidecar.fields[self._field_of[number]]
            if wanted is None or name in wanted:
                digest = None if digests is None else int(digests[number])
                members.append((name, self._offsets[number], self._sizes[number], digest))
        return members

    def extents(self, rows: Integers) -> tuple[Integers, Integers]:
        """Return begin and end of the bytes that each of these samples needs; equal if it needs none.

        Those of a copy include headers, and the end of the archive after the last sample, which are compared.
        """
        owners, members = self._members_of(rows)
        begins, ends = np.full(len(rows), self.sidecar.facts.size, np.int64), np.zeros(len(rows), np.int64)
        offsets = self.sidecar.offsets[members]
        np.minimum.at(begins, owners, offsets if self._links is None else offsets - HEADER_BYTES)
        np.maximum.at(ends, owners, offsets + self.sidecar.sizes[members])
        if self._links is not None and len(self.sidecar):
            last = int(self.sidecar.offsets[-1]) + int(self.sidecar.sizes[-1])
            ends[ends >= max(last, self.sidecar.facts.size - END)] = self.sidecar.facts.size
        return np.minimum(begins, ends), ends

    def check_names(self, rows: Integers, data: Any, base: int) -> None:
        """Raise IndexStale if fetched bytes, from offset `base` on, have other names than the index."""
        if self._links is None:
            return
        owners, members = self._members_of(rows)
        keys, offsets = self.sidecar.keys(rows), self.sidecar.offsets[members].tolist()
        names = [self.sidecar.fields[number] for number in self.sidecar.field_of[members].tolist()]
        view = memoryview(data)
        headers = [bytes(view[offset - HEADER_BYTES - base : offset - base]) for offset in offsets]
        expected = zip(
            [keys[owner] for owner in owners.tolist()],
            names,
            self._links[members].tolist(),
            offsets,
            strict=True,
        )
        check_headers(headers, expected, self.url)

    def read_range(self, start: int, stop: int) -> Any:
        """Return a buffer of a remote shard; raise if it was replaced or is shorter than when it was indexed."""
        remote = self._remote
        data = read_buffer(self.url, start, stop, self._storage, None if remote is None else remote.version)
        if len(data) != stop - start:
            raise IndexStale("the shard is shorter than when it was indexed.", url=self.url)
        unchecked = self._unchecked
        if remote is not None and unchecked is not None:
            with unchecked:
                if self._unchecked is not None:
                    self.sidecar.facts.check_shard(
                        remote, self.url, self._storage, Held(memoryview(data), start)
                    )
                    self._unchecked = None
        return data

    def samples(self, rows: Integers | slice) -> list[Sample]:
        """Return several samples, in the order of `rows`."""
        if self.names is not None:
            return list(self._cut_out(rows))
        url = self.url
        samples: list[Sample] = [{"__key__": key, "__url__": url} for key in self.sidecar.keys(rows)]
        self._fill(samples, rows)
        return samples

    def some(self, rows: Rows | None) -> Iterator[Sample]:
        """Yield the samples of these rows; None yields all."""
        for start, stop in self._chunks(slice(None) if rows is None else rows):
            chunk = slice(start, stop) if rows is None else rows[start:stop].astype(np.int64)
            yield from self.samples(chunk) if self.names is None else self._cut_out(chunk)

    def __iter__(self) -> Iterator[Sample]:
        return self.some(None)

    def _chunks(self, rows: Rows | slice) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows, each of a bounded number of samples and bytes."""
        sidecar = self.sidecar
        if not len(sidecar):
            return
        ends = np.cumsum(np.add.reduceat(sidecar.sizes, sidecar.starts[:-1])[rows])
        start = 0
        while start < len(ends):
            read = ends[start - 1] if start else 0
            stop = int(np.searchsorted(ends, read + CHUNK_BYTES, side="right"))
            stop = min(max(stop, start + 1), start + CHUNK, len(ends))
            yield start, stop
            start = stop

    def bounds(self, rows: Integers | slice) -> Integers:
        """Return begin and end of each of `names`, for each sample."""
        layout = self.sidecar.facts.layout
        assert layout is not None
        fields = self._wanted
        wanted = [number for number, name in enumerate(layout) if fields is None or name in fields]
        starts = self.sidecar.offsets.reshape(-1, len(layout))[rows][:, wanted]
        sizes = self.sidecar.sizes.reshape(-1, len(layout))[rows][:, wanted]
        return np.stack([starts, starts + sizes], axis=2).reshape(len(starts), 2 * len(wanted))

    def _cut_out(self, rows: Integers | slice) -> Iterator[Sample]:
        assert self.names is not None
        keys = self.sidecar.keys(rows)
        urls, contents = itertools.repeat(self.url, len(keys)), itertools.repeat(self.content, len(keys))
        return cut_out(self.names, keys, urls, contents, self.bounds(rows).T.tolist())

    def _fill(self, samples: list[Sample], rows: Integers | slice) -> None:
        sidecar = self.sidecar
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        owners, members = self._members_of(numbers)
        starts = sidecar.offsets[members]
        names = [sidecar.fields[number] for number in sidecar.field_of[members].tolist()]
        header = 0 if self._links is None else HEADER_BYTES
        payloads = self._bytes((starts - header).tolist(), (starts + sidecar.sizes[members]).tolist())
        if self._links is not None:
            keys = (samples[owner]["__key__"] for owner in owners.tolist())
            expected = zip(keys, names, self._links[members].tolist(), starts.tolist(), strict=True)
            check_headers(payloads, expected, self.url)
            payloads = [payload[header:] for payload in payloads]
        for owner, name, payload in zip(owners.tolist(), names, payloads, strict=True):
            samples[owner][name] = payload
        if self._verify:
            self._check_digests(samples, owners, members, names)

    def _members_of(self, rows: Integers) -> tuple[Integers, Integers]:
        """Return the numbers of the wanted members of some samples, and for each the index of its sample."""
        sidecar = self.sidecar
        firsts, lasts = sidecar.starts[rows], sidecar.starts[rows + 1]
        counts = (lasts - firsts).astype(np.int64)
        owners = np.repeat(np.arange(len(rows)), counts)
        members = np.arange(len(owners)) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        if self._wanted is not None:
            selected = np.isin(
                sidecar.field_of[members],
                [number for number, name in enumerate(sidecar.fields) if name in self._wanted],
            )
            owners, members = owners[selected], members[selected]
        return owners, members

    def _check_digests(
        self, samples: list[Sample], owners: Integers, members: Integers, names: list[str]
    ) -> None:
        assert self.sidecar.digests is not None
        expected = self.sidecar.digests[members].tolist()
        for owner, name, digest in zip(owners.tolist(), names, expected, strict=True):
            if xxhash.xxh3_64_intdigest(samples[owner][name]) != digest:
                error = digest_mismatch(name, self.url, samples[owner]["__key__"])
                self.damaged = True
                if self._file is not None:
                    self._file.blame(error)
                raise error

    def _bytes(self, starts: list[int], ends: list[int]) -> list[Any]:
        if self.content is not None:
            data = self.data
            return [data[start:end] for start, end in zip(starts, ends, strict=True)]
        spans = coalesce(starts, ends, GAP if self._file is None else LOCAL_GAP)
        threads = min(REQUESTS, len(spans)) if self._file is None else 1
        pieces = in_threads(self._read, spans, threads) if threads > 1 else map(self._read, spans)
        payloads = [b""] * len(starts)
        for (base, _, numbers), piece in zip(spans, pieces, strict=True):
            for number in numbers:
                payloads[number] = piece[starts[number] - base : ends[number] - base]
        return payloads

    def _read(self, span: tuple[int, int, Any]) -> bytes:
        start, stop, _ = span
        return (
            bytes(self.read_range(start, stop))
            if self._file is None
            else _Sliced(self._file, self.url)[start:stop]
        )


class _Sliced:
    """The bytes of a file, read when they are sliced: that releases the GIL, and has the system map no pages."""

    __slots__ = ("_file", "_url")

    def __init__(self, file: LocalSource | MappedFile, url: str) -> None:
        self._file, self._url = file, url

    def __getitem__(self, span: slice) -> bytes:
        size = span.stop - span.start
        data = self._file.read_at(span.start, size)
        if len(data) != size:
            raise IndexStale("the shard was truncated while it was read.", url=self._url)
        return data


def digest_mismatch(field: str, url: str, key: str) -> DigestMismatch:
    """Return the error for a field that differs from its digest."""
    return DigestMismatch(f'the field "{field}" differs from its digest in the index.', url=url, key=key)


def cut_out(
    names: Sequence[str],
    keys: Iterable[str],
    urls: Iterable[str],
    contents: Iterable[Any],
    bounds: Sequence[Iterable[int]],
) -> Iterator[Sample]:
    """Yield samples that all have the same fields; `bounds` holds all begins and all ends of each field."""
    rows = zip(keys, urls, contents, *bounds, strict=True)
    match names:
        # Most samples have up to three fields, and dictionary displays are fastest.
        case [one]:
            return ({"__key__": key, "__url__": url, one: data[a:b]} for key, url, data, a, b in rows)
        case [one, two]:
            return (
                {"__key__": key, "__url__": url, one: data[a:b], two: data[c:d]}
                for key, url, data, a, b, c, d in rows
            )
        case [one, two, three]:
            return (
                {"__key__": key, "__url__": url, one: data[a:b], two: data[c:d], three: data[e:f]}
                for key, url, data, a, b, c, d, e, f in rows
            )
    return (
        {"__key__": key, "__url__": url}
        | {name: data[a:b] for name, a, b in zip(names, cuts[::2], cuts[1::2], strict=True)}
        for key, url, data, *cuts in rows
    )


def coalesce(
    starts: Sequence[int], ends: Sequence[int], gap: int = GAP, span: int = SPAN
) -> list[tuple[int, int, list[int]]]:
    """Merge ranges that overlap or are close: return begin, end and the numbers of the merged ranges.

    None becomes longer than `span` by merging.
    """
    spans: list[tuple[int, int, list[int]]] = []
    for number in sorted(range(len(starts)), key=starts.__getitem__):
        start, end = starts[number], ends[number]
        if spans and start <= spans[-1][1] + gap and end <= spans[-1][0] + span:
            first, last, numbers = spans[-1]
            numbers.append(number)
            spans[-1] = first, max(last, end), numbers
        else:
            spans.append((start, end, [number]))
    return spans
