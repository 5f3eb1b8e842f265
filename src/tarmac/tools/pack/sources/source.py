"""Sources, which `pack` reads, by format: samples are planned in one process and read in another."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any

from tarmac.errors import NotFound, UrlError, UsageError
from tarmac.jobs.entries import public_name
from tarmac.jobs.task import Status
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import Splitter, first_dot
from tarmac.storage import StorageOptions, is_local, without_query
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar.compression import format_of_name
from tarmac.tools.columns import Columns

File = tuple[str, "str | bytes", int, "int | str | None"]
"""The content of a field: field name, location, size, version.

A local file: its path, its size and its modification time in nanoseconds, or -1 and UNKNOWN until it is read.
An object: its URL, its size and its version, or -1 and None. A command: `pipe:` and the command. Or bytes. These
are plain tuples, because a plan has millions of them and is sent to workers.
"""
UNKNOWN = -2
"""The version of a local file that is determined when it is read."""
FileStats = dict["str | bytes", tuple[int, ...]]
"""Size, modification time, change time and inode of each local file, by path."""
Location = tuple[Any, ...]
"""What a source needs to read one sample, made of tuples, strings, bytes and numbers."""
Item = tuple["str | None", int, Location]
"""A planned sample: its key (None: its number), its payload size, and its location."""
Load = Callable[[str, Location], Sample]
"""Reads one sample, by key and location."""
_CHUNK = 16
"""Maximum number of samples to read before the first of them is passed on."""
_CHUNK_BYTES = 1 << 14
"""A sample of this size ends a chunk."""


@dataclass
class Skipped:
    """Files that belong to no sample: counted by reason, with one example each."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        """Count a file."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.examples.setdefault(reason, name)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return ", ".join(f"{n} {reason} ({self.examples[reason]!r})" for reason, n in self.counts.items())


@dataclass(frozen=True)
class SourceOptions:
    """How to open sources."""

    columns: Columns = field(default_factory=Columns)
    base: str = ""
    """The directory of relative file names; by default that of the list which names them."""
    allow_exec: bool = False
    timeout: float = 600.0
    storage: StorageOptions = DEFAULT_STORAGE
    needs_sizes: bool = False
    """Whether planning needs the size of each sample, which takes longer."""
    split_name: Splitter = first_dot
    """Where the name of a file splits into key and field."""
    checks_names: bool = False
    """Whether to reject files that `split_name` joins, although their names suggest that they are samples."""
    directory: str = ""
    """A temporary directory for copies of remote and compressed lists."""


def load_each(read: Load, planned: Iterable[tuple[str, Location]]) -> Iterator[Sample]:
    """Read samples, small ones in chunks: alternating between reading and writing is slower."""
    chunk: list[Sample] = []
    for key, location in planned:
        sample = read(key, location)
        chunk.append(sample)
        if len(chunk) == _CHUNK or sum(map(len, sample.values())) >= _CHUNK_BYTES:
            yield from chunk
            chunk.clear()
    yield from chunk


class Source(ABC):
    """Base class of pack sources. Subclasses are dataclasses, so that they pickle.

    `register_source` registers a class of sources.
    """

    format: str
    url: str
    """As the caller gave it."""
    classes: Sequence[str] | None = None
    """Names of the classes that `cls` numbers, for a file beside the shards; known after `items`."""
    unique_keys: bool = False
    """Whether no two samples of it can have the same key."""

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    @abstractmethod
    def items(self, skipped: Skipped) -> Iterator[Item]:
        """Yield all samples, in an order that depends on nothing but the source."""

    @abstractmethod
    def opened(self, locations: Sequence[Location], stats: FileStats) -> AbstractContextManager[Load]:
        """Prepare to read these samples in this order; `stats` records what is known only after reading."""

    def files(self, location: Location) -> tuple[File, ...]:
        """Return the files of a sample, whose changes are noticed by the next run."""
        return ()

    def fingerprint(self) -> str:
        """Return what changes with the source, unless locations change with it."""
        return ""

    def statuses(self) -> dict[str, Status]:
        """Return the status of the table or list that the source is, by URL; see `files` for the files of a sample."""
        version = self.fingerprint()
        return {public_name(self.url): [version]} if version else {}

    def field_names(self, location: Location) -> set[str] | None:
        """Return the fields of a sample, if they are known without reading it."""
        return None


@dataclass(frozen=True)
class SourceFormat:
    """A format of sources."""

    name: str
    open: Callable[[str, SourceOptions], Source]
    """Called with the URL and the options."""
    extensions: tuple[str, ...] = ()
    """Extensions by which it is recognised: `(".csv",)`. Compression extensions may follow."""
    has_columns: bool = False
    """Whether `key`, `columns` and `files` apply to it."""
    lists_files: bool = False
    """Whether it names files, which may be relative to `base`."""
    directory: Callable[[str], bool] | None = None
    """Returns whether a local directory has this format, rather than being one of plain files."""


SOURCES: dict[str, SourceFormat] = {}
"""The source formats, by name."""


def register_source(source: SourceFormat) -> None:
    """Register a format that `tarmac.pack` reads."""
    SOURCES[source.name] = source


def guess_format(url: str) -> str:
    """Return the format of a source by its name."""
    if url.endswith("/") or (is_local(url) and os.path.isdir(local_path(url))):
        special = [each for each in SOURCES.values() if each.directory and is_local(url)]
        return next((each.name for each in special if each.directory(local_path(url))), "dir")  # type: ignore[misc]
    name = without_query(url).lower()
    if format_of_name(name):
        name = name.rpartition(".")[0]
    for source in SOURCES.values():
        if name.endswith(source.extensions):
            return source.name
    if url != "-" and is_local(url) and not os.path.exists(local_path(url)):
        raise NotFound("no such file or directory.", url=url)
    if ".tar" in os.path.basename(name):
        raise UrlError("this is already a shard.", url=url, hint="tarmac copy repacks shards.")
    raise UsageError(
        "cannot infer the format from the name.",
        field="format",
        url=url,
        hint=f"one of {', '.join(SOURCES)}.",
    )


def open_source(url: str, format: str | None, options: SourceOptions) -> Source:
    """Open a source of a format, by default the one inferred from its name."""
    if format is not None and format not in SOURCES:
        raise UsageError(f"expected one of {', '.join(SOURCES)}, got {format!r}.", field="format")
    source = SOURCES[format or guess_format(url)]
    columns = options.columns
    if (columns.key or columns.files or columns.fields) and not source.has_columns:
        raise UsageError("`key`, `files` and `columns` apply to tables only.", url=url)
    if options.base:
        if not source.lists_files:
            raise UsageError("`base` applies to recipes and tables only.", url=url)
        if is_local(options.base) and not os.path.isdir(local_path(options.base)):
            raise NotFound("no such directory.", url=options.base)
    return source.open(url, options)
