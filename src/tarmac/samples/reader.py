"""Shards to samples: the whole way from what the user wrote to raw sample dictionaries."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any

from tarmac.errors import ArchiveError, SampleError, SplitSample, TarmacWarning
from tarmac.samples.grouping import Grouping, Sample, group_members
from tarmac.samples.naming import Splitter, first_dot
from tarmac.storage import Cache, Source, StorageOptions, open_read
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards, expand
from tarmac.tar import Member, TarOptions, read_members
from tarmac.tar.compression import HEAD, detect
from tarmac.tar.reader import DEFAULT_OPTIONS

__all__ = ["ReadReport", "SampleReader", "read", "read_shard"]


@dataclass(slots=True)
class ReadReport:
    """What a reader has done so far. `skipped` counts members that belong to no sample, by reason."""

    shards: int = 0
    samples: int = 0
    empty_shards: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class SampleReader:
    """Iterate over the raw samples of shards, in order; each pass starts from the front.

    Fields are bytes, under their names; `__key__` and `__url__` say which sample it is. Reading is
    strict: damage of any kind raises, with the place, and no partial sample is handed out.
    """

    urls: Sequence[str]
    fields: frozenset[str] | None = None
    split: Splitter = first_dot
    lower: bool = True
    tar: TarOptions = DEFAULT_OPTIONS
    storage: StorageOptions = DEFAULT_STORAGE
    cache: Cache | None = None
    mmap: bool = True
    rename: Callable[[str], str] | None = None
    select: Callable[[str], bool] | None = None
    report: ReadReport = field(default_factory=ReadReport, compare=False)

    def __iter__(self) -> Iterator[Sample]:
        report = self.report
        for url in self.urls:
            before = report.samples
            for sample in read_shard(self, url):
                report.samples += 1
                yield sample
            report.shards += 1
            if report.samples == before:
                report.empty_shards.append(url)

    def open(self, url: str) -> Source:
        """Open the bytes of one shard, through the cache if there is one."""
        return open_read(url, self.storage) if self.cache is None else self.cache.open_read(url, self.storage)


def read_shard(
    reader: SampleReader, url: str, on_error: Callable[[SampleError], None] | None = None
) -> Iterator[Sample]:
    """Yield the samples of one shard. What is known of a sample dies with its shard.

    With an `on_error` that drops samples and goes on, the headers of a plain local shard are read first, so
    that a sample that comes in pieces is dropped whole. In a stream it is found when its second piece
    comes; then the rest of the shard is dropped, because there is no telling what else in it is in pieces.
    """
    grouping = Grouping(
        split=reader.split,
        lower=reader.lower,
        lenient=reader.tar.end == "lenient",
        tracked_keys=reader.tar.limits.tracked_keys,
    )
    skipped = reader.report.skipped
    with reader.open(url) as source:
        whole = source.map() if reader.mmap else None
        options: dict[str, Any] = {}
        if on_error is not None:
            known = whole is not None and detect(whole[:HEAD]) is None
            options["on_error"] = on_error if known else _ending(on_error)
            if whole is not None and known:
                options["in_pieces"] = _in_pieces(reader, url, whole, grouping)
        members = read_members(
            whole or source, reader.tar, url=url, wanted=_selection(reader), skipped=skipped
        )
        named = members if reader.rename is None else _renamed(members, reader.rename)
        try:
            yield from group_members(named, url, grouping, skipped=skipped, **options)
        except (ArchiveError, SampleError) as error:
            error.at(url=url)
            source.blame(error)
            raise
        except _RestDropped:
            return
        finally:
            members.close()


class _RestDropped(Exception):
    """What comes behind a sample in pieces is not read."""


def _ending(on_error: Callable[[SampleError], None]) -> Callable[[SampleError], None]:
    def dropping_the_rest(error: SampleError) -> None:
        on_error(error)
        if isinstance(error, SplitSample):
            raise _RestDropped

    return dropping_the_rest


def _in_pieces(reader: SampleReader, url: str, whole: mmap, grouping: Grouping) -> frozenset[str]:
    """The keys of samples whose files are not next to each other, from the headers alone."""
    found = set()

    def note(error: SampleError) -> None:
        if isinstance(error, SplitSample) and error.key is not None:
            found.add(error.key)

    members = read_members(whole, reader.tar, url=url, wanted=_selection(reader), payload=False)
    named = members if reader.rename is None else _renamed(members, reader.rename)
    with contextlib.suppress(ArchiveError), warnings.catch_warnings():  # reading reports it again
        warnings.simplefilter("ignore", TarmacWarning)
        for _ in group_members(named, url, grouping, on_error=note):
            pass
    return frozenset(found)


def _renamed(members: Iterator[Member], rename: Callable[[str], str]) -> Iterator[Member]:
    for name, offset, size, data in members:
        yield _encoded(rename(_decoded(name))), offset, size, data


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _selection(reader: SampleReader) -> Callable[[bytes], bool] | None:
    """Turn a choice of fields or files into a test on names, so that other payload is never copied."""
    fields, split, lower = reader.fields, reader.split, reader.lower
    rename, select = reader.rename, reader.select
    if fields is None and select is None:
        return None

    def wanted(member: bytes) -> bool:
        name = _decoded(member)
        if rename is not None:
            name = rename(name)
        if select is not None and not select(name):
            return False
        if fields is None:
            return True
        named = split(name)
        return named is not None and (named[1].lower() if lower else named[1]) in fields

    return wanted


def read(
    shards: Shards,
    *,
    fields: Collection[str] | None = None,
    split: Splitter = first_dot,
    lower: bool = True,
    tar: TarOptions = DEFAULT_OPTIONS,
    storage: StorageOptions = DEFAULT_STORAGE,
    cache: Cache | None = None,
    mmap: bool = True,
) -> SampleReader:
    """Read samples from shards anywhere.

    >>> for sample in tarmac.read("s3://bucket/train-{000000..000099}.tar", fields=["jpg", "cls"]):
    ...     print(sample["__key__"], len(sample["jpg"]))

    `fields` limits what is read, `split` is the naming rule, `tar` says how strict to be, `storage` how
    patient and with which credentials, and `cache` keeps remote shards on disk. `mmap=False` reads local
    files in pieces instead of mapping them: slower, but safe from files that shrink meanwhile.
    """
    urls = expand(shards, limits=tar.limits, storage=storage)
    if isinstance(fields, str):
        raise ValueError(f'fields must be a list of names such as ["jpg", "cls"], got {fields!r}')
    chosen = None if fields is None else frozenset(name.lower() if lower else name for name in fields)
    return SampleReader(urls, chosen, split, lower, tar, storage, cache, mmap)
