"""The vectors of an index: those of one directory of embeddings, and of others that were added, as one sequence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tarmac.embedding.embeddings import BLOCK, Embeddings
from tarmac.embedding.parts import release
from tarmac.embedding.tables import joined
from tarmac.errors import IndexStale, NotFound
from tarmac.searching.library import Numbers, Vectors, check_finite

KEPT_ROWS = 256
"""Rows that are read before their pages are given back: each may map hundreds of kilobytes of its file."""
HINT = "tarmac knn build DIR -o INDEX --overwrite."


@dataclass(frozen=True)
class Source:
    """A range of the parts of a directory of embeddings, as an index records it."""

    location: str
    relative: str
    """The same from the directory of the index, for directories that are moved together."""
    kind: str
    parts: int
    """The number of parts when they were indexed."""
    rows: int
    """The number of vectors of the range."""
    fingerprint: str
    """Of all these parts."""
    first: int = 0
    """The number of parts before the range: those that were indexed earlier."""


class Sources:
    """Vectors of several directories, numbered one after the other.

    `starts` are the numbers of the first vectors in their directories, and `rows` how many follow.
    """

    def __init__(
        self, embeddings: Sequence[Embeddings], starts: Sequence[int] = (), rows: Sequence[int] = ()
    ) -> None:
        self.embeddings = tuple(embeddings)
        self.starts = tuple(starts) or (0,) * len(embeddings)
        self.rows = tuple(rows) or tuple(map(len, embeddings))
        self.offsets = np.cumsum([0, *self.rows])
        self._read = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"embeddings": self.embeddings, "starts": self.starts, "rows": self.rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def dimension(self) -> int:
        """The number of numbers of a vector."""
        return self.embeddings[0].dimension

    def take(self, numbers: ArrayLike) -> Vectors:
        """Return the vectors of these numbers, a row for each."""
        chosen = np.asarray(numbers, np.int64).reshape(-1)
        result = np.empty((len(chosen), self.dimension), np.float32)
        for start in range(0, len(chosen), KEPT_ROWS):
            for source, where, within in self._by_source(chosen[start : start + KEPT_ROWS]):
                result[start + where] = self.embeddings[source].take(within)
            self._read += KEPT_ROWS if start + KEPT_ROWS < len(chosen) else len(chosen) - start
            if self._read >= KEPT_ROWS:
                self.release()
        return result

    def blocks(
        self, start: int = 0, stop: int | None = None, size: int = BLOCK
    ) -> Iterator[tuple[int, Vectors]]:
        """Yield the vectors from one number to another in order, with the number of the first of each block."""
        stop = len(self) if stop is None else stop
        for source, embeddings in enumerate(self.embeddings):
            before = int(self.offsets[source]) - self.starts[source]
            low, high = max(start, int(self.offsets[source])), min(stop, int(self.offsets[source + 1]))
            for part, offset in enumerate(embeddings.offsets[:-1].tolist()):
                first = before + offset
                rows = int(embeddings.offsets[part + 1]) - offset
                begin, end = max(low - first, 0), min(high - first, rows)
                if begin >= end:
                    continue
                stored = embeddings.array(part)
                for at in range(begin, end, size):
                    vectors = stored[at : min(at + size, end)].astype(np.float32)
                    check_finite(vectors, embeddings.parts[part].path(embeddings.kind))
                    yield first + at, vectors
                    release(stored)

    def numbered(
        self, start: int = 0, stop: int | None = None, without: Numbers | None = None
    ) -> Iterator[tuple[Numbers, Vectors]]:
        """Yield blocks of vectors with the number of each; those of `without` are left out."""
        for first, vectors in self.blocks(start, stop):
            numbers = np.arange(first, first + len(vectors))
            if without is not None:
                kept = ~np.isin(numbers, without)
                numbers, vectors = numbers[kept], vectors[kept]
            yield numbers, vectors

    def selected(self, numbers: Numbers, size: int = BLOCK) -> Iterator[tuple[Numbers, Vectors]]:
        """Yield blocks of the vectors of these numbers."""
        for start in range(0, len(numbers), size):
            chosen = numbers[start : start + size]
            yield chosen, self.take(chosen)

    def keys(self, numbers: ArrayLike) -> list[str]:
        """Return the keys of these numbers."""
        return self.metadata(numbers, ["key"]).column("key").to_pylist()  # type: ignore[no-any-return]

    def metadata(self, numbers: ArrayLike, columns: Sequence[str] | None = None) -> Any:
        """Return the metadata of these numbers as an Arrow table, a row for each."""
        chosen = np.asarray(numbers, np.int64).reshape(-1)
        if not len(chosen):
            return self.embeddings[0].metadata(chosen, columns)
        tables, order = [], []
        for source, where, within in self._by_source(chosen):
            tables.append(self.embeddings[source].metadata(within, columns))
            order.append(where)
        return joined(tables, order)

    def where(self, condition: str) -> NDArray[np.bool_]:
        """Return for each vector whether a condition on its metadata is true."""
        masks = [
            embeddings.where(condition)[start : start + rows]
            for embeddings, start, rows in zip(self.embeddings, self.starts, self.rows, strict=True)
        ]
        return np.concatenate(masks)

    def find(self, keys: Iterable[str]) -> Numbers:
        """Return the number of the first vector of each key; -1 if there is none."""
        wanted = list(keys)
        numbers = np.full(len(wanted), -1, np.int64)
        for source, embeddings in enumerate(self.embeddings):
            within = embeddings.find(wanted) - self.starts[source]
            known = (numbers < 0) & (within >= 0) & (within < self.rows[source])
            numbers = np.where(known, within + self.offsets[source], numbers)
        return numbers

    def find_all(self, key: str) -> Numbers:
        """Return the numbers of all vectors of a key."""
        numbers = []
        for source, embeddings in enumerate(self.embeddings):
            within = embeddings.find_all(key) - self.starts[source]
            indexed = (within >= 0) & (within < self.rows[source])
            numbers.append(within[indexed] + self.offsets[source])
        return np.concatenate(numbers)

    def release(self) -> None:
        """Give back the pages of the files that were read, which count as memory of this process."""
        self._read = 0
        for embeddings in self.embeddings:
            for stored in embeddings._arrays.values():
                release(stored)

    def _by_source(self, chosen: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yield each directory that holds some of these vectors, their places in the list, and their numbers in it."""
        sources = np.searchsorted(self.offsets, chosen, side="right") - 1
        for source in np.unique(sources).tolist():
            where = np.flatnonzero(sources == source)
            yield source, where, chosen[where] - self.offsets[source] + self.starts[source]


def describe_source(embeddings: Embeddings, index: str, first: int = 0) -> Source:
    """Return what an index in a directory records about the parts of embeddings from one on."""
    location = os.path.realpath(embeddings.directory)
    relative = os.path.relpath(location, os.path.realpath(index))
    parts = len(embeddings.parts)
    rows = int(embeddings.offsets[parts] - embeddings.offsets[first])
    fingerprint = embeddings.fingerprint_of(parts)
    return Source(location, relative, embeddings.kind, parts, rows, fingerprint, first)


def open_source(source: Source, index: str) -> Embeddings:
    """Open the embeddings that an index records; raise IndexStale if they have changed."""
    path = _recorded(source, index)
    if path is None:
        what = "the embeddings of the index are not there."
        hint = "`embeddings`, where each directory that was moved is now."
        raise NotFound(what, url=source.location, hint=hint)
    embeddings = Embeddings(path, kind=source.kind)
    if not _holds(embeddings, source):
        raise _stale(embeddings)
    return embeddings


def open_sources(sources: Sequence[Source], index: str, given: Sequence[str] = ()) -> Sources:
    """Open all embeddings of an index, where it records them or in directories that are given.

    These are one for each, or only those that were moved, which are recognised by their fingerprints.
    """
    moved = _recognised(sources, index, [Embeddings(name, kind=sources[0].kind) for name in given])
    opened = [
        moved[number] if number in moved else open_source(source, index)
        for number, source in enumerate(sources)
    ]
    starts = [int(each.offsets[source.first]) for each, source in zip(opened, sources, strict=True)]
    return Sources(opened, starts, [source.rows for source in sources])


def _recognised(sources: Sequence[Source], index: str, given: Sequence[Embeddings]) -> dict[int, Embeddings]:
    """Return the sources that given embeddings hold, by number; raise IndexStale if some hold none.

    Fingerprints of embeddings of other programs can be equal: then they hold one that is missing, or the first.
    """
    if len(given) == len(sources) and all(map(_holds, given, sources)):
        return dict(enumerate(given))
    held: dict[int, Embeddings] = {}
    for embeddings in {os.path.realpath(each.directory): each for each in given}.values():
        fitting = {
            n: source for n, source in enumerate(sources) if n not in held and _holds(embeddings, source)
        }
        missing = {n: source for n, source in fitting.items() if _recorded(source, index) is None}
        firsts = {source.fingerprint: n for n, source in reversed((missing or fitting).items())}
        if not firsts:
            raise _stale(embeddings)
        held |= dict.fromkeys(firsts.values(), embeddings)
    return held


def _holds(embeddings: Embeddings, source: Source) -> bool:
    """Return whether these are the embeddings that were indexed, or have grown since."""
    enough = len(embeddings.parts) >= source.parts
    return enough and embeddings.fingerprint_of(source.parts) == source.fingerprint


def _stale(embeddings: Embeddings) -> IndexStale:
    what = "the embeddings are not those that were indexed."
    return IndexStale(what, url=embeddings.directory, hint=HINT)


def _recorded(source: Source, index: str) -> str | None:
    """Return the path of the directory that an index records; None if it is not there."""
    moved = os.path.normpath(os.path.join(os.path.realpath(index), source.relative))
    return next((path for path in (moved, source.location) if os.path.isdir(path)), None)
