"""Read raw samples from shards."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from mmap import mmap
from typing import Any, TypeVar

from tarmac.display import display_url, examples, plural, visible
from tarmac.errors import (
    ArchiveError,
    MissingField,
    PartialSamples,
    SampleError,
    SplitSample,
    TarmacWarning,
    UsageError,
)
from tarmac.limits import Limits
from tarmac.samples.grouping import Grouping, Sample, group_members
from tarmac.samples.naming import Splitter, first_dot
from tarmac.samples.native import NativeRuns
from tarmac.storage import Cache, Source, StorageOptions, open_shard
from tarmac.storage.ahead import open_ahead
from tarmac.storage.cache import as_cache
from tarmac.storage.schemes import is_stream
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards, expand
from tarmac.tar import Member, Repeated, TarOptions, read_members
from tarmac.tar.compression import HEAD, detect
from tarmac.tar.reader import DEFAULT_OPTIONS

T = TypeVar("T")
Opening = Callable[[], Source]


@dataclass(slots=True)
class ReadReport:
    """Counts what a reader has read. `skipped` counts members that belong to no sample, by reason."""

    shards: int = 0
    samples: int = 0
    empty_shards: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, repr=False)
class SampleReader:
    """Iterates over the raw samples of shards in order; each iteration starts at the first shard.

    Fields are bytes by name; `__key__` and `__url__` identify the sample. Reading is strict: damage raises an
    error with its location, and no incomplete sample is yielded.
    """

    urls: Sequence[str]
    fields: frozenset[str] | None = None
    split_name: Splitter = first_dot
    lower: bool = True
    tar: TarOptions = DEFAULT_OPTIONS
    storage: StorageOptions = DEFAULT_STORAGE
    limits: Limits | None = None
    """Overrides `tar.limits`."""
    cache: Cache | None = None
    mmap: bool = True
    rename: Callable[[str], str] | None = None
    select: Callable[[str], bool] | None = None
    repeated: Repeated | None = None
    """Overrides `tar.repeated`."""
    report: ReadReport = field(default_factory=ReadReport, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tar", self.tar.override(self.limits, self.repeated))

    def __repr__(self) -> str:
        urls = [display_url(url) for url in islice(self.urls, 1)] + ["…"] * (len(self.urls) > 1)
        fields = "" if self.fields is None else f", fields {', '.join(sorted(self.fields))}"
        return f"<SampleReader of {plural(len(self.urls), 'shard')}: {', '.join(urls)}{fields}>"

    def __iter__(self) -> Iterator[Sample]:
        report, before = self.report, self.report.samples
        with contextlib.closing(self.open_each(self.urls)) as shards:
            for url, opening in shards:
                previous = report.samples
                for sample in read_shard(self, url, opening=opening):
                    report.samples += 1
                    yield sample
                report.shards += 1
                if report.samples == previous:
                    report.empty_shards.append(url)
        if self.fields and report.samples == before:
            self._check_fields(self.fields)

    def _check_fields(self, fields: frozenset[str]) -> None:
        """Raise MissingField if there are samples, although none has any of the selected fields."""
        again = [url for url in self.urls if not is_stream(url)]
        for sample in replace(self, urls=again, fields=None, report=ReadReport()):
            names = [name for name in sample if not name.startswith("__")]
            raise MissingField(
                f"no sample has a field {' or '.join(sorted(fields))}; this one has {examples(names)}.",
                url=sample["__url__"],
                key=sample["__key__"],
                hint=f"fields={names}",
            )

    def open(self, url: str) -> Source:
        """Open the bytes of one shard, through the cache if there is one."""
        return open_shard(url, self.storage, self.cache)

    def open_each(
        self, shards: Iterable[T], url_of: Callable[[T], str] = str, *, early: bool = True
    ) -> Generator[tuple[T, Opening], None, None]:
        """Yield each shard with a function that opens it; remote shards are opened `early` (storage/ahead.py)."""
        return open_ahead(shards, url_of, self.open, self.storage, self.cache, early=early)


def read(
    shards: Shards,
    *,
    fields: Collection[str] | None = None,
    split_name: Splitter = first_dot,
    lower: bool = True,
    tar: TarOptions = DEFAULT_OPTIONS,
    storage: StorageOptions = DEFAULT_STORAGE,
    limits: Limits | None = None,
    cache: Cache | str | os.PathLike[str] | None = None,
    mmap: bool = True,
    repeated: Repeated | None = None,
) -> SampleReader:
    """Read samples from shards anywhere.

    >>> for sample in tarmac.read("s3://bucket/train-{000000..000099}.tar", fields=["jpg", "cls"]):
    ...     print(sample["__key__"], len(sample["jpg"]))

    `fields` selects the fields to read, `split_name` is the naming rule, and `lower` converts field names to
    lower case. `tar` sets how strictly archives are read, `storage` credentials and timeouts, and `limits`
    overrides `tar.limits`. `cache`, a Cache or a directory, keeps remote shards on disk. `mmap=False` reads local
    files in chunks instead of mapping them: slower, but safe from files that shrink while they are read. `repeated`
    is "keep" to read whole samples whose key occurs again in a shard, which by default is an error; it overrides
    `tar.repeated`.
    """
    if isinstance(fields, str):
        raise UsageError(f'expected a list of names such as ["jpg", "cls"], got {fields!r}.', field="fields")
    selected = None if fields is None else frozenset(name.lower() if lower else name for name in fields)
    urls = expand(shards, limits=limits or tar.limits, storage=storage)
    return SampleReader(
        urls, selected, split_name, lower, tar, storage, limits, as_cache(cache), mmap, repeated=repeated
    )


def read_shard(
    reader: SampleReader,
    url: str,
    on_error: Callable[[SampleError], None] | None = None,
    opening: Opening | None = None,
) -> Iterator[Sample]:
    """Yield the samples of one shard, which `opening()` opens, or else the reader.

    With an `on_error` that returns, samples with errors are dropped. The headers of a plain local shard are
    then read first, so that non-contiguous samples are dropped whole. In a stream such a sample is detected
    at its second part; the rest of the shard is dropped, because other samples may be non-contiguous, too.
    """
    grouping, skipped = Grouping.of(reader.tar, reader.split_name, lower=reader.lower), reader.report.skipped
    with reader.open(url) if opening is None else opening() as source:
        mapped = source.map() if reader.mmap else None
        options: dict[str, Any] = {}
        if on_error is not None:
            if mapped is not None and detect(mapped[:HEAD]) is None:
                options["on_error"] = on_error
                options["split"] = _find_split(reader, url, mapped, grouping)
            else:
                options["on_error"] = _stop_at_split_sample(on_error, url)
        runs = _runs(reader)
        members = _members(reader, url, mapped or source, skipped=skipped, runs=runs)
        try:
            yield from group_members(members, url, grouping, skipped=skipped, runs=runs, **options)
        except (ArchiveError, SampleError) as error:
            error.at(url=url)
            source.blame(error)
            raise
        except _RestDropped:
            return
        finally:
            members.close()


def count_samples(reader: SampleReader, url: str) -> int:
    """Return the number of samples in a shard. Payload of a local shard is not read; a remote one is streamed."""
    with reader.open(url) as source:
        runs = _runs(reader, payload=False)
        members = _members(reader, url, source.map() or source, payload=False, runs=runs)
        grouping = Grouping.of(reader.tar, reader.split_name, lower=reader.lower)
        return sum(1 for _ in group_members(members, url, grouping, runs=runs))


class _RestDropped(Exception):
    """Ends the reading of a shard after a non-contiguous sample."""


def _stop_at_split_sample(on_error: Callable[[SampleError], None], url: str) -> Callable[[SampleError], None]:
    def handle(error: SampleError) -> None:
        on_error(error)
        if isinstance(error, SplitSample):
            warnings.warn(
                f'{display_url(url)}, sample "{visible(error.key or "")}": {error.what} '
                "Samples that were already returned may be incomplete; the rest of the shard is dropped. Try: a "
                f"cache, because incomplete samples of a local copy are dropped whole, or {error.hint}",
                PartialSamples,
                stacklevel=2,
            )
            raise _RestDropped

    return handle


def _find_split(reader: SampleReader, url: str, mapped: mmap, grouping: Grouping) -> dict[str, SampleError]:
    """Return the keys of non-contiguous samples with their errors, reading only headers."""
    split: dict[str, SampleError] = {}

    def collect(error: SampleError) -> None:
        if isinstance(error, SplitSample) and error.key is not None:
            split.setdefault(error.key, error)

    runs = _runs(reader, payload=False)
    members = _members(reader, url, mapped, payload=False, runs=runs)
    with contextlib.suppress(ArchiveError), warnings.catch_warnings():  # the real reading reports these
        warnings.simplefilter("ignore", TarmacWarning)
        for _ in group_members(members, url, grouping, on_error=collect, runs=runs):
            pass
    return split


def _runs(reader: SampleReader, *, payload: bool = True) -> NativeRuns | None:
    """Return a way to read runs of members at once, unless functions select or rename each of them."""
    plain = reader.select is None and reader.rename is None
    return NativeRuns(reader.tar.limits, payload=payload) if plain else None


def _members(
    reader: SampleReader, url: str, data: mmap | Source, *, runs: NativeRuns | None, **options: Any
) -> Generator[Member, None, None]:
    """Return the selected members of a shard, renamed."""
    wanted = _selection(reader, runs)
    members = read_members(data, reader.tar, url=url, wanted=wanted, runs=runs, **options)
    return members if reader.rename is None else _renamed(members, reader.rename)


def _renamed(members: Iterator[Member], rename: Callable[[str], str]) -> Generator[Member, None, None]:
    for name, offset, size, data in members:
        renamed = rename(name.decode("utf-8", "surrogateescape"))
        yield renamed.encode("utf-8", "surrogateescape"), offset, size, data


def _selection(reader: SampleReader, runs: NativeRuns | None) -> Callable[[bytes], bool] | None:
    """Return a test of member names for the selected fields or files, so that no other payload is copied.

    `runs` gets to know the other fields.
    """
    fields, split_name, lower = reader.fields, reader.split_name, reader.lower
    rename, select = reader.rename, reader.select
    if fields is None and select is None:
        return None

    def wanted(member: bytes) -> bool:
        name = member.decode("utf-8", "surrogateescape")
        if rename is not None:
            name = rename(name)
        if select is not None and not select(name):
            return False
        if fields is None:
            return True
        named = split_name(name)
        if named is None:
            return False
        selected = (named[1].lower() if lower else named[1]) in fields
        if runs is not None and not selected:
            runs.leave_out(named[1])
        return selected

    return wanted
