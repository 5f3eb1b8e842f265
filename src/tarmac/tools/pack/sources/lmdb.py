"""LMDB files that map `key.field`, the name of a member in a shard, to the bytes of the field."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tarmac.errors import DecodeFailed, ObjectChanged
from tarmac.extras import import_extra
from tarmac.jobs.entries import public_name
from tarmac.jobs.task import Status
from tarmac.samples.grouping import Sample
from tarmac.tools.localcopy import LocalCopy, ensure_local
from tarmac.tools.pack.sources.directory import NO_EXTENSION
from tarmac.tools.pack.sources.source import (
    FileStats,
    Item,
    Load,
    Location,
    Skipped,
    Source,
    SourceFormat,
    SourceOptions,
    register_source,
)


@dataclass
class Lmdb(Source):
    """A database in one file. A location is the names of the fields of a sample."""

    url: str
    options: SourceOptions
    local: LocalCopy
    format = "lmdb"
    unique_keys = True

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        lmdb = import_extra("lmdb", "lmdb", "LMDB files")
        try:
            with (
                self.local.opened(self.url),
                lmdb.open(self.local.path, subdir=False, lock=False, readonly=True) as database,
                database.begin(buffers=True) as transaction,
            ):
                yield transaction
        except lmdb.Error as error:
            raise DecodeFailed(f"the database cannot be read: {error}.", url=self.url) from None

    def items(self, skipped: Skipped) -> Iterator[Item]:
        samples: dict[str, list[str]] = {}
        sizes: dict[str, int] = {}
        with self._transaction() as transaction:
            for stored, value in transaction.cursor():
                name = bytes(stored).decode("utf-8", "surrogateescape")
                halves = self.options.split_name(name)
                if halves is None:
                    skipped.add(NO_EXTENSION, name)
                    continue
                key, field = halves
                samples.setdefault(key, []).append(field)
                sizes[key] = sizes.get(key, 0) + len(value)
        for key, names in samples.items():
            yield key, sizes[key], tuple(names)

    @contextlib.contextmanager
    def opened(self, locations: Sequence[Location], stats: FileStats) -> Iterator[Load]:
        with self._transaction() as transaction:

            def load(key: str, location: Location) -> Sample:
                sample: Sample = {"__key__": key}
                for field in location:
                    value = transaction.get(f"{key}.{field}".encode("utf-8", "surrogateescape"))
                    if value is None:
                        raise ObjectChanged("the database changed while it was being read.", url=self.url)
                    sample[field] = bytes(value)
                return sample

            yield load

    def fingerprint(self) -> str:
        return self.local.version

    def statuses(self) -> dict[str, Status]:
        return {public_name(self.url): self.local.status()}

    def field_names(self, location: Location) -> set[str] | None:
        return {field.lower() for field in location}


def _open(url: str, options: SourceOptions) -> Lmdb:
    return Lmdb(url, options, ensure_local(url, options.directory, options.storage))


register_source(SourceFormat("lmdb", _open, (".lmdb", ".mdb")))
