"""Check one shard: read it to its end, and compare it with its index and its manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash

from tarmac.codecs import Decoder, imagehandler
from tarmac.display import display_url, identity, plural, visible
from tarmac.errors import (
    DecodeFailed,
    DigestMismatch,
    ErrorBudgetExceeded,
    IndexDamaged,
    IndexMissing,
    IndexStale,
    MissingField,
    NoCodec,
    SampleError,
    TarmacError,
    TransferError,
    UnitTimedOut,
    UnsafeCodec,
    UrlError,
    UsageError,
    WorkerDied,
)
from tarmac.indexing.manifest import Manifest, Shard
from tarmac.indexing.sidecar import Sidecar, open_sidecar, sidecar_url
from tarmac.limits import Limits
from tarmac.runtime.budget import ErrorBudget
from tarmac.samples.grouping import Grouping, group_members
from tarmac.samples.naming import Splitter, first_dot, known_fields, last_dot, rule_bytes
from tarmac.samples.native import NativeRuns
from tarmac.storage import StorageOptions, location, open_read, stat
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar import TarOptions, read_members
from tarmac.tar.reader import DEFAULT_OPTIONS
from tarmac.tools.mappers.records import FIELD
from tarmac.tools.mappers.shards import row_extents
from tarmac.tools.select import missing_fields

LocatedField = tuple[int, int, bytes]
"""Offset, size and bytes of a field."""
MAX_ERRORS = 1000
"""Errors of one shard that are kept; all are counted."""


@dataclass(frozen=True)
class CheckOptions:
    """What is checked besides the archive itself."""

    require: frozenset[str] = frozenset()
    """Fields that every sample must have."""
    digests: bool = False
    """Compare every field with its digest in the index beside the shard."""
    manifest: Manifest | None = None
    """A manifest to compare with, and its indexes; `manifest_url` is where it is."""
    manifest_url: str = ""
    decode: str = ""
    """How to decode images, if fields are to be decoded."""
    all_errors: bool = False
    """Continue after a bad sample."""
    max_errors: int | None = None
    """Give up a shard with more errors than this."""
    tar: TarOptions = DEFAULT_OPTIONS
    split_name: Splitter = first_dot
    storage: StorageOptions = DEFAULT_STORAGE

    def ledger_options(self) -> dict[str, Any]:
        """Return what the result depends on, for a ledger."""
        options: dict[str, Any] = {"require": sorted(self.require), "digests": self.digests}
        if self.manifest is not None:
            options["against"] = f"{identity(self.manifest_url)} {self.manifest.fingerprint}"
        if self.split_name is not first_dot:
            options["split_name"] = xxhash.xxh3_64_hexdigest(rule_bytes(self.split_name))
        if self.tar.repeated != "error":
            options["repeated"] = self.tar.repeated
        return options | {
            "decode": self.decode,
            "end": self.tar.end,
            "concatenated": self.tar.concatenated,
        }


@dataclass(slots=True)
class ShardCheck:
    """The result for one shard: what was read, and what is wrong with it."""

    url: str
    samples: int = 0
    payload: int = 0
    fields: dict[str, int] = field(default_factory=dict)
    """Number of samples that have each field."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Members that were not checked, by reason."""
    error: TarmacError | None = None
    """The first error."""
    errors: list[TarmacError] = field(default_factory=list)
    """All errors, or the first of very many."""
    problems: int = 0
    """The number of errors."""
    kept: bool = False
    """Whether the result is from the ledger."""

    @property
    def ok(self) -> bool:
        """Return whether the shard is complete and well-formed."""
        return self.error is None

    @property
    def unreachable(self) -> bool:
        """Return whether the shard could not be read at all, as opposed to being damaged."""
        return isinstance(self.error, TransferError | UrlError | UsageError | UnitTimedOut | WorkerDied)

    def add(self, error: TarmacError) -> None:
        """Record an error."""
        self.problems += 1
        self.error = error if self.error is None else self.error
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)

    def to_dict(self) -> dict[str, Any]:
        """Return the result, for JSON."""
        names = ("samples", "payload", "fields", "skipped", "problems", "ok")
        errors = [_error_dict(error) for error in self.errors]
        facts: dict[str, Any] = {name: getattr(self, name) for name in names}
        first = None if self.error is None else _error_dict(self.error)
        return {"url": display_url(self.url)} | facts | {"error": first, "errors": errors}

    def __str__(self) -> str:
        if self.error is not None:
            more = self.problems - len(self.errors)
            lines = [f"BAD   {error}" for error in self.errors]
            return "\n".join(
                [*lines, f"BAD   {visible(display_url(self.url))}: and {more} more"] if more else lines
            )
        fields = " ".join(f"{visible(name)}:{count}" for name, count in sorted(self.fields.items()))
        skipped = "".join(f", {count} x {reason} skipped" for reason, count in sorted(self.skipped.items()))
        counts = f"{plural(self.samples, 'sample')}, {plural(self.payload, 'byte')}"
        return f"ok    {visible(display_url(self.url))}: {counts}, {fields}{skipped}"


def _error_dict(error: TarmacError) -> dict[str, Any]:
    facts = {"kind": type(error).__name__, "offset": error.offset, "key": error.key, "text": str(error)}
    return {name: value for name, value in facts.items() if value is not None or name == "offset"}


def check_shard(
    url: str, options: CheckOptions, entry: Shard | None, keys: list[str] | None = None
) -> ShardCheck:
    """Check one shard; `entry` is that of the manifest, and `keys` collects the keys."""
    result = ShardCheck(url)
    skipped: Counter[str] = Counter()
    budget = ErrorBudget(options.max_errors)

    def record(error: TarmacError) -> None:
        if not options.all_errors:
            raise error
        result.add(error.at(url=url))
        budget.check(result.problems, error)

    try:
        if options.manifest is not None and entry is None:
            raise IndexMissing("the manifest does not list this shard.", url=url)
        comparison = _Comparison(url, entry, need_digests=options.digests, storage=options.storage)
        for error in comparison.begin():
            record(error)
        for key, fields in _samples(url, options, comparison.rule(options.split_name), skipped, record):
            result.samples += 1
            for name, (_, size, _) in fields.items():
                result.fields[name] = result.fields.get(name, 0) + 1
                result.payload += size
            if keys is not None:
                keys.append(key)
            for error in sample_problems(key, fields, url, options, skipped):
                record(error)
            for error in comparison.sample(key, fields):
                record(error)
        for error in comparison.end(result.samples):
            record(error)
    except ErrorBudgetExceeded:
        pass  # each error is recorded already
    except TarmacError as error:
        result.add(error.at(url=url))
    result.skipped = dict(skipped)
    return result


def _samples(
    url: str,
    options: CheckOptions,
    rule: Splitter,
    skipped: Counter[str],
    record: Callable[[SampleError], None],
) -> Iterator[tuple[str, Mapping[str, LocatedField]]]:
    """Yield the key of each sample, and the offset, size and bytes of its fields."""
    grouping = Grouping.of(options.tar, rule)
    with open_read(url, options.storage) as source:
        runs = NativeRuns(options.tar.limits, value=_located)
        members = read_members(source.map() or source, options.tar, url=url, skipped=skipped, runs=runs)
        try:
            for sample in group_members(
                members, url, grouping, skipped=skipped, on_error=record, value=_located, runs=runs
            ):
                key = sample.pop("__key__")
                del sample["__url__"]
                yield key, sample
        finally:
            members.close()


def _located(offset: int, size: int, data: bytes) -> LocatedField:
    return offset, size, data


def sample_problems(
    key: str,
    fields: Mapping[str, LocatedField],
    url: str,
    options: CheckOptions,
    skipped: Counter[str],
) -> Iterator[TarmacError]:
    """Yield the errors of one sample: missing fields, and fields that cannot be decoded."""
    if missing := missing_fields(options.require, fields):
        yield MissingField(f"the sample has no {', '.join(missing)}.", url=url, key=key)
    if not options.decode:
        return
    decoder = _decoder(options.decode, options.tar.limits)
    for name, (_, _, data) in fields.items():
        try:
            decoder({"__key__": key, "__url__": url, name: data})
        except (UnsafeCodec, NoCodec):
            skipped["field that is decoded only from trusted data"] += 1
        except ImportError as error:
            skipped[f"field that needs {error.name or 'a library'} to be decoded"] += 1
        except TarmacError as error:
            yield error


@lru_cache
def _decoder(spec: str, limits: Limits) -> Decoder:
    return Decoder([imagehandler(spec)], limits=limits)


def entries_of(manifest: Manifest, urls: Sequence[str]) -> list[Shard | None]:
    """Return the entry of each of these shards in the manifest."""
    known = {location(shard.url): shard for shard in manifest.shards}
    return [known.get(location(url)) for url in urls]


def index_url(url: str, entry: Shard | None) -> str:
    """Return the URL of the index that a shard is compared with."""
    return (entry.index if entry else None) or sidecar_url(url)


def naming_rule(sidecar: Sidecar, chosen: Splitter) -> Splitter:
    """Return the rule that the caller chose, otherwise one that gives the keys and fields of the index."""
    if chosen is not first_dot or not any("." in key.rpartition("/")[2] for key in sidecar.keys(None)):
        return chosen
    return next(filter(sidecar.split_by, (last_dot, known_fields(sidecar.fields))), chosen)


class _Comparison:
    """Compare sample by sample; the index of another shard is reported at the first difference."""

    def __init__(self, url: str, entry: Shard | None, *, need_digests: bool, storage: StorageOptions) -> None:
        self._url, self._entry, self._storage = url, entry, storage
        self._need_digests = need_digests
        self._sidecar: Sidecar | None = None
        self._row = 0

    def begin(self) -> Iterator[TarmacError]:
        """Open the index, and yield an error if it obviously belongs to another shard."""
        entry = self._entry
        if not (self._need_digests or (entry and (entry.index or entry.fingerprint))):
            return
        url = index_url(self._url, entry)
        try:
            sidecar = open_sidecar(url, self._storage)
        except TarmacError as error:
            yield error
            return
        if entry is not None and entry.fingerprint not in (None, sidecar.facts.fingerprint):
            yield IndexDamaged("the index is not the one that the manifest describes.", url=url)
        if self._need_digests and sidecar.facts.rows:
            yield IndexMissing("an index of rows has no digests.", url=url)
        elif self._need_digests and sidecar.digests is None:
            yield IndexMissing("the index has no digests.", url=url, hint="tarmac index --digests SHARDS")
        try:
            sidecar.check_shard(stat(self._url, self._storage), self._url, self._storage)
        except IndexStale as error:
            yield error
        self._sidecar = sidecar

    def rule(self, chosen: Splitter) -> Splitter:
        """Return the naming rule to read the shard by."""
        sidecar = self._sidecar
        return chosen if sidecar is None or sidecar.facts.rows else naming_rule(sidecar, chosen)

    def sample(self, key: str, fields: Mapping[str, LocatedField]) -> Iterator[TarmacError]:
        """Yield the differences of one sample."""
        sidecar, row = self._sidecar, self._row
        if sidecar is not None and sidecar.facts.rows:
            yield from self._record(sidecar, key, fields)
            return
        self._row += 1
        if sidecar is None:
            return
        if row >= len(sidecar) or sidecar.key(row) != key:
            self._sidecar = None
            expected = f'"{sidecar.key(row)}"' if row < len(sidecar) else "no sample"
            yield IndexStale(f"the index has {expected} at row {row}.", url=self._url, key=key)
            return
        begin, end = int(sidecar.starts[row]), int(sidecar.starts[row + 1])
        indexed = {sidecar.fields[sidecar.field_of[member]]: member for member in range(begin, end)}
        for name in sorted(indexed.keys() ^ fields.keys()):
            what = f'the index does not match the shard at the field "{name}".'
            yield IndexStale(what, url=self._url, key=key)
        for name in indexed.keys() & fields.keys():
            yield from self._field(sidecar, indexed[name], key, name, fields[name])

    def _record(
        self, sidecar: Sidecar, key: str, fields: Mapping[str, LocatedField]
    ) -> Iterator[TarmacError]:
        """Yield a difference of the rows of one record."""
        offset, _, data = fields.get(FIELD, (0, 0, b""))
        try:
            keys, extents = row_extents(data, offset)
        except DecodeFailed as error:
            yield error.at(url=self._url, key=key)
            return
        rows = slice(self._row, self._row + len(keys))
        self._row = rows.stop
        members = slice(
            *sidecar.starts[[min(rows.start, len(sidecar)), min(rows.stop, len(sidecar))]].tolist()
        )
        indexed = np.stack([sidecar.offsets[members], sidecar.sizes[members]], axis=1)
        if rows.stop > len(sidecar) or sidecar.keys(rows) != keys or not np.array_equal(indexed, extents):
            what = f"the index of rows differs from the shard between rows {rows.start} and {rows.stop}."
            yield IndexStale(what, url=self._url, key=key)

    def _field(
        self, sidecar: Sidecar, member: int, key: str, name: str, located: LocatedField
    ) -> Iterator[TarmacError]:
        offset, size, data = located
        if (offset, size) != (int(sidecar.offsets[member]), int(sidecar.sizes[member])):
            what = f'"{name}" is {size} bytes at {offset}, the index has '
            what += f"{sidecar.sizes[member]} at {sidecar.offsets[member]}."
            yield IndexStale(what, url=self._url, key=key)
        elif sidecar.digests is not None and xxhash.xxh3_64_intdigest(data) != int(sidecar.digests[member]):
            what = f'the bytes of "{name}" differ from those that were indexed.'
            yield DigestMismatch(
                what, url=self._url, key=key, offset=offset, hint="download or write the shard again."
            )

    def end(self, samples: int) -> Iterator[TarmacError]:
        """Yield what is missing at the end."""
        entry = self._entry
        if self._sidecar is not None and self._sidecar.facts.rows:
            samples = self._row
        if entry is not None and entry.samples != samples:
            yield IndexStale(f"the manifest has {entry.samples} samples, the shard {samples}.", url=self._url)
        if self._sidecar is not None and len(self._sidecar) > samples:
            what = f"the index has {len(self._sidecar)} samples, the shard {samples}."
            yield IndexStale(what, url=self._url)
