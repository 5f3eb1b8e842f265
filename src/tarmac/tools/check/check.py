"""Read shards to their ends and say, for each, what is in it or where it is damaged."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tarmac.codecs import Decoder, imagehandler
from tarmac.display import identity
from tarmac.errors import (
    IndexMissing,
    MissingField,
    NoCodec,
    SampleError,
    TarmacError,
    TransferError,
    UnsafeCodec,
    UrlError,
)
from tarmac.indexing.manifest import Manifest, Shard, read_manifest
from tarmac.jobs.engines import Engine, make_engine
from tarmac.jobs.ledger import open_ledger
from tarmac.jobs.outputs import existing_sizes
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.limits import Limits
from tarmac.progress import progress
from tarmac.samples.grouping import Grouping, group_members
from tarmac.storage import StorageOptions, open_read, scheme_of, stat
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards, expand
from tarmac.tar import Member, TarOptions, read_members
from tarmac.tar.reader import DEFAULT_OPTIONS
from tarmac.tools.check.compare import Comparison, Place, entries_of
from tarmac.tools.check.duplicates import KeyFiles

__all__ = ["check", "Checking", "Checks", "sample_problems", "ShardCheck"]

MOST_TOLD = 1000
"""Problems of one shard that are kept; the others are counted."""


@dataclass(slots=True)
class ShardCheck:
    """The verdict on one shard: what was read, and what is wrong with it, if anything."""

    url: str
    samples: int = 0
    payload: int = 0
    fields: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    error: TarmacError | None = None
    """The first problem."""
    errors: list[TarmacError] = field(default_factory=list)
    """All problems, or of very many the first."""
    problems: int = 0
    """How many there are."""

    @property
    def ok(self) -> bool:
        """Whether the shard is complete and well formed."""
        return self.error is None

    @property
    def unreachable(self) -> bool:
        """Whether the shard could not be read at all, as opposed to being damaged."""
        return isinstance(self.error, TransferError | UrlError)

    def add(self, error: TarmacError) -> None:
        """Take note of a problem."""
        self.problems += 1
        self.error = error if self.error is None else self.error
        if len(self.errors) < MOST_TOLD:
            self.errors.append(error)


@dataclass(frozen=True)
class Checks:
    """What is checked beyond the archive itself."""

    require: frozenset[str] = frozenset()
    """Fields that every sample must have."""
    digests: bool = False
    """Compare every field with its digest in the index beside the shard."""
    against: str = ""
    """A manifest to compare with, and its indexes."""
    decode: str = ""
    """Decode every field that can be, images so."""
    all_errors: bool = False
    """Go on after a sample that is not right."""
    max_errors: int | None = None
    """Give a shard up when more are wrong."""
    tar: TarOptions = DEFAULT_OPTIONS
    storage: StorageOptions = DEFAULT_STORAGE

    def options(self) -> dict[str, Any]:
        """What the verdict depends on, for a ledger."""
        found: dict[str, Any] = {"require": sorted(self.require), "digests": self.digests}
        if self.against:
            found["against"] = (
                f"{identity(self.against)} {read_manifest(self.against, self.storage).fingerprint}"
            )
        return found | {"decode": self.decode, "end": self.tar.end, "concatenated": self.tar.concatenated}


@dataclass
class Checking(Task):
    """A shard is a unit; its verdict is in the facts of its outcome."""

    urls: Sequence[str]
    checks: Checks
    told: Sequence[Shard | None]
    """What a manifest says of each shard."""
    keys: KeyFiles | None = None
    """Where to leave the keys of each shard."""
    known: bool = False
    """Whether to ask for the version of each shard, which a ledger needs."""
    verb = "check"

    def options(self) -> dict[str, Any]:
        return self.checks.options()

    def plan(self) -> Iterator[Unit]:
        for number, url in enumerate(self.urls):
            yield Unit(identity(url), number, self._inputs(url, self.told[number]) if self.known else "")

    def _inputs(self, url: str, told: Shard | None) -> str:
        """What the verdict on one shard depends on: its version, and what the manifest says of it."""
        version = self._version(url)
        if not version or told is None:
            return version
        return f"{version} {told.samples} {told.index} {told.fingerprint}"

    def _version(self, url: str) -> str:
        try:
            info = stat(url, self.checks.storage)
        except TarmacError:
            return ""
        return f"{info.size} {info.version}" if info.version else ""

    def run(self, unit: Unit) -> Outcome:
        number = unit.content
        keys: list[str] | None = None if self.keys is None else []
        verdict = _check_one(self.urls[number], self.checks, self.told[number], keys)
        if self.keys is not None and keys is not None:
            self.keys.save(number, keys)
        return Outcome(verdict.samples, bytes=verdict.payload, details={"verdict": verdict})


def check(
    shards: Shards,
    *,
    require: Collection[str] = (),
    tar: TarOptions = DEFAULT_OPTIONS,
    storage: StorageOptions = DEFAULT_STORAGE,
    checks: Checks | None = None,
    keys: KeyFiles | None = None,
    ledger: str | None = None,
    jobs: int = 1,
    show: bool | None = False,
) -> Iterator[ShardCheck]:
    """Check shards, several at a time, and yield a verdict on each, in order.

    A damaged shard does not keep the others from being checked. `checks` asks for more than whole archives;
    `keys` is where to leave all keys, to find duplicates. With a `ledger` what was found whole is not read
    again unless it has changed.
    """
    chosen = Checks(frozenset(require), tar=tar, storage=storage) if checks is None else checks
    urls: list[str] = [*expand(shards, limits=chosen.tar.limits, options=chosen.storage)]
    if keys is not None and ledger is not None:
        raise UrlError("to find duplicates all keys have to be read, so a ledger would be of no use.")
    if chosen.against:
        urls += _absent(read_manifest(chosen.against, chosen.storage), urls, chosen.storage)
    told = _told(chosen, shards, urls)
    task = Checking(urls, chosen, told, keys, known=ledger is not None)
    # The standard input of worker processes is empty.
    engine = make_engine(None, 1 if any(scheme_of(url) == "-" for url in urls) else jobs)
    verdicts = _with_ledger(task, engine, ledger)
    return progress(verdicts, len(urls), "checking", show=show)


def _absent(manifest: Manifest, urls: Sequence[str], storage: StorageOptions) -> list[str]:
    """The shards that should be there, are not, and would be passed over by a pattern."""
    named = [shard.url for shard in entries_of(manifest, urls) if shard is not None]
    others = [shard.url for shard in manifest.shards if shard.url not in named]
    there = existing_sizes(others, storage)
    return [url for url in others if url not in there]


def _told(checks: Checks, shards: Shards, urls: Sequence[str]) -> list[Shard | None]:
    """What a manifest says of the shards: the one to compare with, or the one they were named by."""
    if checks.against:
        return entries_of(read_manifest(checks.against, checks.storage), urls)
    names = [shards] if isinstance(shards, str) else list(shards) if isinstance(shards, list | tuple) else []
    if len(names) == 1 and str(names[0]).lower().endswith(".json"):
        with contextlib.suppress(TarmacError):  # a list of another kind
            return entries_of(read_manifest(str(names[0]), checks.storage), urls)
    return [None] * len(urls)


def _with_ledger(task: Checking, engine: Engine, place: str | None) -> Iterator[ShardCheck]:
    """The verdicts in order; those that a ledger has of the same version of a shard are not made again."""
    book = open_ledger(place, task.verb, task.options() if place else {}, storage=task.checks.storage)
    try:
        book.begin()
        done: dict[int, ShardCheck] = {}
        missing: list[Unit] = []
        for unit in task.plan():
            inputs, outcome = book.done.get(unit.name, ("", Outcome()))
            if unit.inputs and inputs == unit.inputs:
                done[unit.content] = ShardCheck(
                    task.urls[unit.content], outcome.read, outcome.bytes, **outcome.details
                )
            else:
                missing.append(unit)
        following = 0
        for unit, outcome_or_error in engine.run(task.run, missing):
            if isinstance(outcome_or_error, Exception):
                raise outcome_or_error
            verdict = outcome_or_error.details["verdict"]
            if verdict.ok and unit.inputs:
                details = {"fields": verdict.fields, "skipped": verdict.skipped}
                book.record(unit, replace(outcome_or_error, details=details))
            done[unit.content] = verdict
            while following in done:
                yield done.pop(following)
                following += 1
        while following in done:
            yield done.pop(following)
            following += 1
    finally:
        book.close()


class _EnoughError(Exception):
    """So much is wrong with a shard that there is no point in reading on."""


def _check_one(url: str, checks: Checks, told: Shard | None, keys: list[str] | None = None) -> ShardCheck:
    result = ShardCheck(url)
    skipped: Counter[str] = Counter()

    def wrong(error: TarmacError) -> None:
        if not checks.all_errors:
            raise error
        result.add(error.at(url=url))
        if checks.max_errors is not None and result.problems > checks.max_errors:
            raise _EnoughError

    try:
        comparison = _comparison(url, checks, told)
        for error in comparison.begin():
            wrong(error)
        for key, places in _samples(url, checks, skipped, wrong):
            result.samples += 1
            for name, (_, size, _) in places.items():
                result.fields[name] = result.fields.get(name, 0) + 1
                result.payload += size
            if keys is not None:
                keys.append(key)
            for error in sample_problems(key, places, url, checks, skipped):
                wrong(error)
            for error in comparison.sample(key, places):
                wrong(error)
        for error in comparison.end(result.samples):
            wrong(error)
    except _EnoughError:
        pass
    except TarmacError as error:
        result.add(error.at(url=url))
    result.skipped = dict(skipped)
    return result


def _comparison(url: str, checks: Checks, told: Shard | None) -> Comparison:
    if checks.against and told is None:
        raise IndexMissing("the manifest does not name this shard.", url=url)
    return Comparison(url, told, need_digests=checks.digests, storage=checks.storage)


def _samples(
    url: str, checks: Checks, skipped: Counter[str], wrong: Callable[[SampleError], None]
) -> Iterator[tuple[str, Mapping[str, Place]]]:
    """The samples of a shard: where each field is, and its bytes."""
    tar = checks.tar
    grouping = Grouping(lenient=tar.end == "lenient", tracked_keys=tar.limits.tracked_keys)
    with open_read(url, checks.storage) as source:
        members = read_members(source.map() or source, tar, url=url, skipped=skipped)
        try:
            located = _located(members)
            for sample in group_members(located, url, grouping, skipped=skipped, on_error=wrong):
                key = sample.pop("__key__")
                del sample["__url__"]
                yield key, sample
        finally:
            members.close()


def _located(members: Iterable[Member]) -> Iterator[Any]:
    for name, offset, size, data in members:
        yield name, offset, size, (offset, size, data)


def sample_problems(
    key: str, places: Mapping[str, Place], url: str, checks: Checks, skipped: Counter[str]
) -> Iterator[TarmacError]:
    """What is wrong with one sample."""
    missing = checks.require - places.keys()
    if missing:
        yield MissingField(f"the sample has no {', '.join(sorted(missing))}.", url=url, key=key)
    if not checks.decode:
        return
    decoder = _decoder(checks)
    for name, (_, _, data) in places.items():
        try:
            decoder({"__key__": key, "__url__": url, name: data})
        except (UnsafeCodec, NoCodec):
            skipped["field that only trusted data is decoded from"] += 1
        except ImportError as error:
            skipped[f"field that needs {error.name or 'a library'} to be decoded"] += 1
        except TarmacError as error:
            yield error


def _decoder(checks: Checks) -> Decoder:
    return _decoder_of(checks.decode, checks.tar.limits)


@lru_cache
def _decoder_of(spec: str, limits: Limits) -> Decoder:
    return Decoder([imagehandler(spec)], limits=limits)
