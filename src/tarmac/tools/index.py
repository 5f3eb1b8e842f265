"""Index shards: a sidecar for each, and one manifest; indexes that are up to date are kept."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack

from tarmac.display import display_url, plural
from tarmac.errors import IndexDamaged, TarmacError, UsageError, WriteError
from tarmac.indexing.build import IndexOptions, index_again, usable_index, with_existing_columns
from tarmac.indexing.dali import read_dali
from tarmac.indexing.manifest import Manifest, Shard, existing_shards, read_manifest, write_manifest
from tarmac.indexing.meta import meta_plan
from tarmac.indexing.sidecar import Sidecar, open_sidecar, sidecar_url, write_sidecar
from tarmac.jobs.leases import Leases
from tarmac.jobs.ledger import SUFFIX, Ledger, ledger_url
from tarmac.jobs.report import Report
from tarmac.jobs.run import run_job, run_until_error, take_share
from tarmac.jobs.share import Share
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.jobs.work import UnitWork
from tarmac.progress import track
from tarmac.storage import StorageOptions, is_local, is_stream, location, stat, without_query
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards
from tarmac.tools.options import Access, AccessArgs, Run, RunArgs, bundle, verb


class IndexArgs(RunArgs, AccessArgs, total=False):
    """The shared keyword arguments of `index`."""


@dataclass(slots=True, repr=False)
class IndexReport(Report):
    """What indexing did; `bytes` is the size of all shards."""

    manifest: Manifest = field(default_factory=lambda: Manifest([]))
    output: str | None = None
    """Where the manifest was written."""
    built: list[str] = field(default_factory=list)
    """Shards that were read, or would be by a dry run."""
    up_to_date: list[str] = field(default_factory=list)
    """Shards whose index is up to date."""

    def add_shard(self, shard: Shard, *, built: bool) -> None:
        """Add a shard to the manifest and to the counts."""
        self.manifest.shards.append(shard)
        (self.built if built else self.up_to_date).append(shard.url)
        self.units, self.kept = len(self.manifest.shards), len(self.up_to_date)
        self.done = 0 if self.dry_run else len(self.built)
        self.read += shard.samples
        self.bytes += shard.size or 0

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        return Report.to_dict(self) | {
            "manifest": None if self.output is None else display_url(self.output),
            "shards": self.units,
            "samples": self.read,
            "built": len(self.built),
            "fingerprint": self.manifest.fingerprint,
        }

    def __str__(self) -> str:
        if self.dry_run:
            return f"index: {len(self.built)} to do, {self.kept} up to date"
        counts = ", ".join(
            [plural(self.units, "shard"), plural(self.read, "sample"), plural(self.bytes, "byte")]
        )
        where = "" if self.output is None else f" -> {display_url(self.output)}"
        return f"index: {counts}; {self.done} indexed, {self.kept} up to date{where}"


@dataclass(frozen=True, slots=True)
class StaleShard:
    """A shard whose index cannot be used, and why."""

    url: str
    error: TarmacError


@verb(IndexArgs, Run, Access)
def index(
    sources: Shards | Manifest,
    output: str | os.PathLike[str] | None = None,
    *,
    meta: Sequence[str] = (),
    on_bad_meta: Literal["error", "null"] = "error",
    digests: bool = False,
    drop: bool = False,
    add: bool = False,
    sidecars: str | None = None,
    dali: bool = False,
    name: str | None = None,
    info: Any = None,
    **options: Unpack[IndexArgs],
) -> IndexReport:
    """Index shards and write a manifest to `output`, by default beside the shards: `train.json` for `train-*.tar`.

    The default never replaces a manifest that lists other shards; without a common directory of the shards, there is
    none. Manifests among `sources` are not written again unless `output` names one.

    `meta` names metadata columns, such as `["jpg.width", "json.caption", "cls"]`; with `on_bad_meta` "null" a
    damaged field gives an empty value instead of an error. `digests` adds a digest of every field. Existing
    columns and digests are kept unless `drop` is set.

    Indexes go beside their shards, or into the directory `sidecars`. With `add`, the shards of the existing
    manifest come first. `dali` imports the `.idx` files of DALI instead of reading shards. `name` and `info`
    describe the dataset in the manifest.
    """
    access, run = bundle(Access, options), bundle(Run, options)
    target = None if output is None else os.fspath(output)
    if dali and (digests or meta):
        raise UsageError("`dali` files have neither digests nor metadata.")
    if access.tar.end == "lenient":
        what = "an index of a lenient read would hide what the shard has lost."
        raise UsageError(what, field="tar", hint="tarmac check SHARD --repair -o DIR/, and index the copy.")
    plan = meta_plan(meta, on_bad="null" if on_bad_meta == "null" else "raise") if meta else None
    indexing = replace(access.indexing, digests=digests, meta=plan, keep=not drop)
    inputs = access.inputs(sources)
    for url in filter(is_stream, inputs.urls):
        raise UsageError(
            "standard input and commands cannot be indexed.", url=url, hint="a file or an object."
        )
    unlisted = not any(isinstance(part, Manifest) for part in inputs.parts)
    default = default_manifest(inputs.urls, sidecars) if unlisted and target is None else None
    target = target or default
    if add and target is None:
        raise UsageError("`add` requires `output`, the manifest to add to.")
    previous = _existing(target, access.storage) if add else None
    if target is not None:
        listed = existing_shards(target, access.storage)  # raises if it is another kind of file
        if default is not None and not add:
            _check_listed(listed or [], inputs.urls, default)
    given = inputs.shards if sidecars is None else inputs.urls
    planned = _planned(previous.shards if previous else [], given, sidecars)
    title = os.path.basename(target or "").partition(".")[0]
    described = previous or inputs.manifest or Manifest([], name=title)
    manifest = Manifest(
        [], described.name if name is None else name, described.info if info is None else info
    )
    report = IndexReport("index", dry_run=run.dry_run, manifest=manifest, output=target)
    if unlisted and target is None:
        report.remarks.append("no manifest: the shards are in several directories; `output` names one")
    if run.dry_run:
        for shard in planned:
            report.add_shard(shard, built=_usable(shard, indexing) is None)
        return report
    task, started = _IndexTask(planned, indexing, dali), time.monotonic()
    if run.share is None:
        report.outcomes = run_job(task, run.make_engine(), policy=run.policy, progress=run.progress).outcomes
    else:
        report.outcomes, absent = _with_others(task, _run_share(task, run, run.share, target))
        if absent:
            target = report.output = None
            report.remarks.append(f"{plural(absent, 'shard')} of other tasks are not indexed yet")
    report.seconds = time.monotonic() - started
    urls = {outcome.details["url"] for outcome in report.outcomes}
    listed = [shard for shard in planned if shard.url in urls]
    for shard, outcome in zip(listed, report.outcomes, strict=True):
        report.add_shard(replace(shard, **outcome.details["shard"]), built=outcome.details["built"])
    report.remarks += _empty_columns(meta, report)
    if target is not None:
        write_manifest(manifest, target, access.storage)
    return report


def _run_share(task: _IndexTask, run: Run, share: Share, target: str | None) -> list[Outcome]:
    """Index the shards of this task, then those of others that have no index and that no task is indexing.

    The leases are beside the manifest. Without one there are none, and the task indexes its share alone.
    """
    indexes, units = _Indexes(task), list(task.plan())
    with contextlib.ExitStack() as stack:
        leases = None
        if target is not None:
            leases = Leases(_lease_directory(target), str(share), task.indexing.storage)
            stack.callback(leases.close)
        pending = iter(share.of(units)) if leases is None else take_share(units, share, indexes, leases, {})
        running = run_until_error(
            run.make_engine(),
            UnitWork(task, policy=run.policy),
            pending,
            run.policy,
            indexes,
            leases,
            total=len(units),
            shared=True,
        )
        count = len(share.of(units))
        return [outcome for _, outcome in track(running, count, task.verb, progress=run.progress)]


class _Indexes(Ledger):
    """The shards that have an index, in the place of a ledger."""

    def __init__(self, task: _IndexTask) -> None:
        super().__init__()
        self._shards = {shard.url: shard for shard in task.shards}
        self._indexing = task.indexing

    def refresh(self, unit: str | None = None) -> None:
        for url in self._shards if unit is None else [unit]:
            if url not in self.done and _usable(self._shards[url], self._indexing) is not None:
                self.done[url] = "", Outcome()


def _lease_directory(manifest: str) -> str:
    return ledger_url(manifest, "index").removesuffix(SUFFIX)  # there is no ledger


def _with_others(task: _IndexTask, own: Sequence[Outcome]) -> tuple[list[Outcome], int]:
    """Return the outcomes of all shards that have an index by now, and the number of the others.

    The last of several tasks finds none missing, and writes the manifest.
    """
    known = {outcome.details["url"]: outcome for outcome in own}
    ready = [
        shard for shard in task.shards if shard.url in known or _usable(shard, task.indexing) is not None
    ]
    outcomes = [known.get(shard.url) or task.run(Unit(shard.url, shard)) for shard in ready]
    return outcomes, len(task.shards) - len(ready)


def default_manifest(urls: Sequence[str], sidecars: str | None = None) -> str | None:
    """Return the name of the manifest beside shards: what their names have in common, without the number.

    Indexes that are in a directory of their own have the manifest there. Shards of several directories have none.
    """
    paths = list(map(without_query, urls))
    directories = {os.path.dirname(path) for path in paths} if sidecars is None else {sidecars}
    if len(directories) > 1:
        return None
    stems = [os.path.basename(path).partition(".tar")[0] for path in paths]
    common = os.path.commonprefix(stems)  # noqa: RUF071 - of names
    title = re.sub(r"[-_. ]*\d*$", "", common) or "index"
    return os.path.join(directories.pop(), f"{title}.json")


def _check_listed(listed: Sequence[Shard], urls: Sequence[str], manifest: str) -> None:
    """Raise if the manifest that would be replaced lists other shards, since the user did not name it."""
    others = {location(shard.url) for shard in listed} - set(map(location, urls))
    if others:
        what = f"the manifest exists and lists {plural(len(others), 'other shard')}."
        raise UsageError(
            what, field="output", url=manifest, hint="`add` to keep them, or `output` to name a manifest."
        )


def _empty_columns(meta: Sequence[str], report: IndexReport) -> Iterator[str]:
    """Yield remarks on requested columns that no sample has, as a misspelt one."""
    for name in dict.fromkeys(map(str.strip, meta)) if report.read else ():
        if not any(name in outcome.details["columns"] for outcome in report.outcomes):
            yield f"no sample has a value in the column {name}"


@dataclass
class _IndexTask(Task):
    """Build the index of each shard. The indexes themselves show what is done, so there is no ledger."""

    shards: Sequence[Shard]
    indexing: IndexOptions
    dali: bool
    verb: str = "indexing"

    def plan(self) -> Iterator[Unit]:
        return (Unit(shard.url, shard) for shard in self.shards)

    def run(self, unit: Unit) -> Outcome:
        shard, options = unit.content, self.indexing
        sidecar = _usable(shard, options)
        built = sidecar is None
        if sidecar is None:
            url, target = shard.url, _index_url(shard)
            # The files of DALI have neither columns nor digests: for those the shard is read.
            complete = with_existing_columns(options, target) if self.dali else options
            bare = self.dali and complete.meta is None and not complete.digests
            content = read_dali(url, options.storage) if bare else index_again(url, options, target)
            _write(target, content, options.storage)
            sidecar = open_sidecar(target, options.storage)
        facts = sidecar.facts
        known = {"samples": facts.samples, "size": facts.size, "fingerprint": facts.fingerprint}
        wanted = [column.name for column in options.meta.columns] if options.meta else []
        columns = [name for name in wanted if not built or sidecar.column(name).null_count < facts.samples]
        details = {"url": shard.url, "shard": known, "built": built, "columns": columns}
        return Outcome(facts.samples, facts.samples, details=details)


def _index_url(shard: Shard) -> str:
    return shard.index or sidecar_url(shard.url)


def _usable(shard: Shard, options: IndexOptions) -> Sidecar | None:
    """Return the index of a shard if it is certainly up to date.

    A shard whose labels were corrected has the same size and most of the same bytes, so `unchanged` compares
    more than a reader does.
    """
    return usable_index(shard.url, _index_url(shard), options, unchanged=True)


def _planned(previous: list[Shard], given: Sequence[str | Shard], sidecars: str | None) -> list[Shard]:
    """Return the shards to index, those of the manifest first; a shard that is given twice is an error."""
    known = _by_identity(previous)
    shards = _by_identity(
        each if isinstance(each, Shard) else Shard(each, 0, index=_sidecar_in(each, sidecars))
        for each in given
    )
    planned = [*previous, *(shard for name, shard in shards.items() if name not in known)]
    owners: dict[str, str] = {}
    for shard in planned:
        if shard.index is not None and owners.setdefault(shard.index, shard.url) != shard.url:
            raise UsageError(
                f"its index would have the same name as the index of {owners[shard.index]}.",
                field="sidecars",
                url=shard.url,
                hint="one directory of indexes for each directory of shards.",
            )
    return planned


def _by_identity(shards: Iterable[Shard]) -> dict[str, Shard]:
    """Return the shards by what identifies them, however their URLs are written."""
    result: dict[str, Shard] = {}
    for shard in shards:
        name = location(shard.url)
        if name in result:
            raise UsageError("duplicate shard: its samples would be counted twice.", url=shard.url)
        result[name] = shard
    return result


def _sidecar_in(url: str, directory: str | None) -> str | None:
    if directory is None:
        return None
    name = os.path.basename(without_query(url))
    return f"{directory.rstrip('/')}/{sidecar_url(name)}"


def _existing(manifest: str | None, storage: StorageOptions) -> Manifest | None:
    try:
        return None if manifest is None else read_manifest(manifest, storage)
    except FileNotFoundError:
        return None


def _write(url: str, content: bytes, storage: StorageOptions) -> None:
    try:
        if is_local(url):
            os.makedirs(os.path.dirname(local_path(url)) or ".", exist_ok=True)
        write_sidecar(url, content, storage)
    except (WriteError, OSError) as error:
        hint = "`sidecars` with a writable directory."
        raise WriteError(f"cannot write the index: {error}", url=url, hint=hint) from error


def stale_shards(
    manifest: str | Manifest, *, storage: StorageOptions = DEFAULT_STORAGE
) -> Iterator[StaleShard]:
    """Yield the shards of a manifest whose index is missing, damaged or out of date."""
    listed = manifest if isinstance(manifest, Manifest) else read_manifest(manifest, storage)
    for shard in listed.shards:
        try:
            sidecar = open_sidecar(_index_url(shard), storage)
            sidecar.check_shard(stat(shard.url, storage), shard.url, storage)
            if sidecar.facts.fingerprint != shard.fingerprint and shard.fingerprint is not None:
                raise IndexDamaged("the index is not the one that the manifest describes.", url=shard.url)
        except TarmacError as error:
            yield StaleShard(shard.url, error)
