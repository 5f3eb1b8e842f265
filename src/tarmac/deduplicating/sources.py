"""What is compared: samples with keys and numbers, first those of the source, then those to compare it with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.deduplicating import texts, vectors
from tarmac.deduplicating.options import Options
from tarmac.deduplicating.pairs import Pairs
from tarmac.display import plural
from tarmac.embedding.embeddings import Embeddings
from tarmac.embedding.keys import HINT
from tarmac.embedding.layout import KINDS, MANIFEST
from tarmac.errors import BadManifest, IndexStale, NotFound, UsageError
from tarmac.exact.joined import key_hashes
from tarmac.jobs.statuses import status_fingerprint, statuses_of
from tarmac.runtime.types import Integers
from tarmac.searching.facts import MANIFEST as KNN
from tarmac.searching.facts import read_facts
from tarmac.searching.sources import open_source
from tarmac.storage import is_local
from tarmac.storage.local import local_path

WIDTH, HEIGHT = "width", "height"
Numbers = NDArray[np.float64]


class Source(Protocol):
    """Samples to compare."""

    @property
    def own(self) -> int:
        """Return how many samples may be removed: those of the source."""

    @property
    def count(self) -> int:
        """Return the number of all samples."""

    @property
    def inputs(self) -> str:
        """Return a hash of all samples and of how they are compared, but for the threshold."""

    def pairs(self, work: str, progress: bool | None) -> tuple[Pairs, int]:
        """Return the pairs of near samples, and how many samples cannot be compared."""

    def values(self) -> Numbers | None:
        """Return the number of each sample of the source of which the largest stays; None to keep the first."""

    def key_blocks(self) -> Iterator[list[str]]:
        """Yield the keys of the samples of the source, in order."""

    def keys(self, numbers: Integers) -> list[str]:
        """Return the keys of these samples."""


def open_directories(name: str, kind: str | None, field: str) -> list[Embeddings]:
    """Return the embeddings in a directory, or those that an index in it was built from; none if it is neither."""
    if not is_local(name) or not os.path.isdir(local_path(name)):
        return []
    directory = local_path(name)
    if os.path.exists(os.path.join(directory, KNN)):
        return _indexed(directory, kind, field)
    return [_opened(directory, kind, field)] if _has_vectors(directory) else []


def _opened(directory: str, kind: str | None, field: str) -> Embeddings:
    try:
        return Embeddings(directory, kind=kind)
    except UsageError as error:
        error.field = error.field or field
        raise


def _has_vectors(directory: str) -> bool:
    names = os.listdir(directory)
    return MANIFEST in names or any(f"{kind}_emb" in names for kind in KINDS)


def _indexed(directory: str, kind: str | None, field: str) -> list[Embeddings]:
    """Return the embeddings that an index was built from, each directory once."""
    try:
        opened = [open_source(source, directory) for source in read_facts(directory).sources]
    except (BadManifest, NotFound, IndexStale) as error:
        error.hint = "the directory of the embeddings."
        raise
    directories = {os.path.realpath(each.directory): each for each in opened}
    return [each if kind is None else _opened(each.directory, kind, field) for each in directories.values()]


def check_keys(source: Source) -> None:
    """Raise UsageError if a list of keys cannot tell the samples of the source apart."""
    hashes = np.concatenate([np.zeros(0, np.uint64), *map(key_hashes, source.key_blocks())])
    order = np.argsort(hashes, kind="stable")
    again = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
    if len(again):
        key = source.keys(np.sort(again)[:1])[0]
        count = plural(len(again), "repeated key")
        what = f"{count}, such as {key!r}: a list of keys cannot tell their samples apart."
        raise UsageError(what, field="sources", hint=HINT)


@dataclass
class Directories:
    """Directories of embeddings, compared by their vectors or by a column of text."""

    several: vectors.Several
    options: Options

    def __post_init__(self) -> None:
        first, *others = self.several.directories
        if self.options.text is None:
            for number, other in enumerate(others, 1):
                _check_alike(first, other, "sources" if number < self.several.sources else "against")
        if not self.own:
            raise UsageError("there are no vectors.", field="sources", url=first.directory)

    @property
    def own(self) -> int:
        return self.several.own

    @property
    def _sources(self) -> Sequence[Embeddings]:
        return self.several.directories[: self.several.sources]

    @property
    def count(self) -> int:
        return len(self.several)

    @property
    def inputs(self) -> str:
        facts = [self.several.sources, *map(_fingerprint, self.several.directories)]
        how = ["texts", self.options.text, self.options.pieces] if self.options.text else ["vectors"]
        return xxhash.xxh3_128_hexdigest(repr((facts, how)).encode())

    def pairs(self, work: str, progress: bool | None) -> tuple[Pairs, int]:
        check_keys(self)
        options, least = self.options, self.options.least
        if options.text is None:
            return vectors.near_pairs(
                self.several, least, work=work, inputs=self.inputs, most=options.max_pairs, progress=progress
            )
        return texts.near_pairs(
            self._texts(options.text), lambda: self.own, least, options.cutter,
            work=work, most=options.max_pairs, progress=progress,
        )  # fmt: skip

    def _texts(self, column: str) -> Iterator[list[str | None]]:
        for directory in self.several.directories:
            self._check_columns(directory, [column])
            for block in _blocks(directory, [column]):
                yield [None if text is None else str(text) for text in block.column(column).to_pylist()]

    def values(self) -> Numbers | None:
        preferred = self.options.preferred
        if preferred == "first":
            return None
        if preferred == "score":
            return self._numbers([str(self.options.score)])[0]
        if self.options.text is not None:
            lengths = [[len(text or "") for text in block] for block in self._texts(self.options.text)]
            return np.concatenate(lengths)[: self.own].astype(np.float64)
        width, height = self._numbers([WIDTH, HEIGHT])
        return width * height

    def _numbers(self, columns: list[str]) -> list[Numbers]:
        """Return columns of the metadata of the source as numbers."""
        result: list[list[Any]] = [[] for _ in columns]
        for directory in self._sources:
            self._check_columns(directory, columns)
            for block in _blocks(directory, columns):
                for name, values in zip(columns, result, strict=True):
                    values.append(_as_numbers(block.column(name), directory))
        return [np.concatenate(values) for values in result]

    def _check_columns(self, directory: Embeddings, columns: Sequence[str]) -> None:
        options = {self.options.score: "score", self.options.text: "text"}
        for name in columns:
            directory.check_columns([name], options.get(name, "keep"))

    def key_blocks(self) -> Iterator[list[str]]:
        for directory in self._sources:
            for part in directory.parts:
                yield part.read_keys()

    def keys(self, numbers: Integers) -> list[str]:
        result = np.empty(len(numbers), object)
        which = np.searchsorted(self.several.offsets, numbers, side="right") - 1
        for index, directory in enumerate(self.several.directories):
            chosen = which == index
            result[chosen] = directory.keys(numbers[chosen] - self.several.offsets[index])
        return list(result)


def _blocks(directory: Embeddings, columns: list[str]) -> Iterator[Any]:
    """Yield tables of these columns; parts without one have nulls."""
    for part, offset in zip(directory.parts, directory.offsets.tolist(), strict=False):
        for start in range(0, part.metadata_rows, 1 << 14):
            rows = np.arange(start, min(start + (1 << 14), part.metadata_rows))
            yield directory.metadata(rows + offset, columns)


def _as_numbers(column: Any, directory: Embeddings) -> Numbers:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return pc.cast(column, pa.float64(), safe=False).to_numpy()  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        what = f"expected a column of numbers: {str(error)[:200]}."
        raise UsageError(what, field="score", url=directory.directory) from None


def _fingerprint(directory: Embeddings) -> str:
    """Return a hash of what a directory holds; of one without digests, the times of its files."""
    files = [name for part in directory.facts.parts for name, (_, digest) in part.files.items() if not digest]
    paths = [os.path.join(directory.directory, name) for name in files]
    return directory.fingerprint + status_fingerprint(statuses_of(paths))


def _check_alike(first: Embeddings, other: Embeddings, field: str) -> None:
    """Raise UsageError if the vectors of two directories cannot be compared."""
    if other.dimension != first.dimension:
        what = f"expected vectors of {first.dimension} numbers, as in the source, got {other.dimension}."
    elif first.facts.model and other.facts.model and first.facts.model != other.facts.model:
        what = f"expected vectors of the model {first.facts.model!r}, got those of {other.facts.model!r}."
    elif first.kind != other.kind:
        what = f"expected vectors of the kind {first.kind!r}, as in the source, got {other.kind!r}."
    else:
        return
    hint = "tarmac embed with the model of the source."
    raise UsageError(what, field=field, url=other.directory, hint=hint)
