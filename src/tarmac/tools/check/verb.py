"""Check shards: read every byte, report damage, find duplicate keys, and write clean copies."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack

from tarmac.codecs import imagespecs
from tarmac.display import display_url, identity, plural
from tarmac.errors import ErrorBudgetExceeded, TarmacError, UnitTimedOut, UsageError, WorkerDied
from tarmac.indexing.manifest import Manifest, Shard, read_manifest
from tarmac.jobs.engines import Engine, make_engine
from tarmac.jobs.ledger import open_ledger
from tarmac.jobs.outputs import existing_sizes
from tarmac.jobs.report import Report
from tarmac.jobs.run import run_units
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.jobs.work import UnitWork
from tarmac.progress import track
from tarmac.runtime.budget import ErrorBudget
from tarmac.storage import StorageOptions, WriteOptions, scheme_of, stat, write_all
from tarmac.storage.urls import Shards, reject_command
from tarmac.tools.check.repair import SCATTERED
from tarmac.tools.check.repair import repair as write_copies
from tarmac.tools.check.shard import CheckOptions, ShardCheck, check_shard, entries_of
from tarmac.tools.keystore import SharedKeys
from tarmac.tools.options import Access, ReadArgs, Run, RunArgs, bundle, verb
from tarmac.tools.output import Output
from tarmac.tools.select import required_fields


class CheckArgs(RunArgs, ReadArgs, total=False):
    """The shared keyword arguments of `check`."""


@dataclass(slots=True, repr=False)
class CheckReport(Report):
    """The result of checking shards; `outputs` are the clean copies, and `written` are their samples."""

    shards: list[ShardCheck] = field(default_factory=list)
    duplicates: dict[str, list[str]] = field(default_factory=dict)
    """Keys that occur more than once, with their shards."""
    losses: list[dict[str, Any]] = field(default_factory=list)
    """What is missing in the clean copies: samples, bytes, or an uncertain end."""
    repaired: bool = False
    """Whether there are clean copies of the damaged shards."""
    complete: bool = True
    """Whether all shards were checked: more than `max_errors` errors stop the check."""

    def add_shard(self, result: ShardCheck) -> None:
        """Add the result of a shard."""
        self.shards.append(result)
        self.read += result.samples
        self.kept += result.kept
        self.done += not result.kept

    def add_copies(self, job: Report) -> None:
        """Add the clean copies that a job wrote, or would write, and what they lack."""
        if job.dry_run:
            self.notes["to_repair"] = job.units - job.kept
            return
        self.repaired, self.outcomes, self.written, self.bytes = True, job.outcomes, job.written, job.bytes
        self.losses = [loss for outcome in job.outcomes for loss in outcome.details["losses"]]

    @property
    def bad(self) -> list[ShardCheck]:
        """Return the results of the shards that are damaged or could not be read."""
        return [shard for shard in self.shards if not shard.ok]

    @property
    def samples(self) -> int:
        """Return the number of samples."""
        return self.read

    @property
    def ok(self) -> bool:
        """Return whether every shard is intact and no key occurs twice."""
        return self.complete and not self.bad and not self.duplicates

    @property
    def exit_status(self) -> int:
        """Return 0 if all shards are intact or repaired without losses, 3 if some could not be read, else 1."""
        bad = [shard for shard in self.bad if not self.repaired or self.losses or shard.unreachable]
        damaged = any(not shard.unreachable for shard in bad) or self.duplicates or self.losses
        return 1 if damaged or not self.complete else 3 if bad else 0

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        return Report.to_dict(self) | {
            "ok": self.ok,
            "shards": len(self.shards),
            "samples": self.samples,
            "bad": [shard.to_dict() for shard in self.bad],
            "duplicates": {key: list(map(display_url, urls)) for key, urls in self.duplicates.items()},
            "losses": self.losses,
        }

    def __str__(self) -> str:
        twice = f", {plural(len(self.duplicates), 'duplicate key')}" if self.duplicates else ""
        shards, samples = plural(len(self.shards), "shard"), plural(self.samples, "sample")
        text = f"check: {shards}, {samples}, {len(self.bad)} bad{twice}"
        if self.outputs or self.losses:
            lost = sum(loss["what"] == "sample" for loss in self.losses)
            copies, recovered = plural(len(self.outputs), "clean copy"), plural(self.written, "sample")
            text += f"; {copies} of {recovered}, {plural(lost, 'sample')} lost"
        if "to_repair" in self.notes:
            text += f"; {self.notes['to_repair']} to repair"
        return text if self.complete else f"{text}; stopped at `max_errors`"


@verb(CheckArgs, Run, Access)
def check(
    sources: Shards | Manifest,
    *,
    require: Collection[str] = (),
    digests: bool = False,
    manifest: str | os.PathLike[str] | Manifest | None = None,
    decode: bool | str = False,
    duplicates: bool = False,
    all_errors: bool = False,
    max_errors: int | None = None,
    ledger: str | None = None,
    repair: str | None = None,
    losses: str | None = None,
    regroup: bool = False,
    intact: Literal["copy", "link"] | None = None,
    overwrite: bool = False,
    on_shard: Callable[[ShardCheck], None] | None = None,
    **options: Unpack[CheckArgs],
) -> CheckReport:
    """Read shards to their ends and report what is wrong with them; a damaged shard does not stop the others.

    `require` names fields that every sample must have; `"jpg|png"` means one of them. `digests` compares every
    field with the index beside its shard, `manifest` compares with a manifest and its indexes. `decode` decodes
    fields, images as a specification such as "rgb8". `duplicates` finds keys that occur more than once.
    `all_errors` continues after a bad sample; more than `max_errors` errors stop the check. With a `ledger`,
    intact shards are not read again unless they change. `on_shard` is called with each result, in order.

    `repair` is a directory or pattern for clean copies of damaged shards. What they lack is in the report, and
    is written to the file `losses` as JSON lines. `intact` also copies the other shards, or makes hard links to
    them where possible, so that the result is the whole dataset. `regroup` puts samples together whose members are not
    contiguous. With `dry_run` shards are checked, and nothing is written.
    """
    access, run = bundle(Access, options), bundle(Run, options)
    if duplicates and ledger is not None:
        raise UsageError("`duplicates` reads all keys, so it cannot be combined with `ledger`.")
    if (regroup or overwrite or losses or intact) and repair is None:
        raise UsageError("`regroup`, `intact`, `overwrite` and `losses` need `repair`.")
    if intact not in (None, "copy", "link"):
        raise UsageError(f"expected 'copy' or 'link', got {intact!r}.", field="intact")
    if repair is not None and run.share is not None:
        what = "`repair` counts all shards, so that it cannot be divided among tasks."
        raise UsageError(what, field="task")
    if duplicates and run.distributed:
        what = "`duplicates` compares keys in a file of this machine, so it needs the engine local."
        raise UsageError(what, field="engine" if run.task is None else "task")
    inputs = access.inputs(sources)
    if manifest is None or isinstance(manifest, Manifest):
        reference = manifest
    else:
        if not access.allow_exec:
            reject_command(os.fspath(manifest))
        reference = read_manifest(os.fspath(manifest), access.storage)
    checks = CheckOptions(
        require=required_fields(require),
        digests=digests,
        manifest=reference,
        manifest_url=manifest.name if isinstance(manifest, Manifest) else os.fspath(manifest or ""),
        decode=_image_spec(decode),
        all_errors=all_errors,
        max_errors=max_errors if all_errors else None,
        tar=access.tar,
        split_name=access.split_name,
        storage=access.storage,
    )
    urls: list[str] = [*inputs.urls]
    if reference is None:
        entries = [shard if isinstance(shard, Shard) else None for shard in inputs.shards]
    else:
        urls += _absent(reference, urls, access.storage)
        entries = entries_of(reference, urls)
    if run.share is not None:
        urls, entries = list(run.share.of(urls)), list(run.share.of(entries))
    report, started = CheckReport("check", len(urls), dry_run=run.dry_run), time.monotonic()
    with contextlib.ExitStack() as stack:
        keys = (
            SharedKeys(f"{stack.enter_context(tempfile.TemporaryDirectory())}/keys") if duplicates else None
        )
        task = _CheckTask(urls, checks, entries, keys, versions=ledger is not None)
        # The standard input of worker processes is empty.
        engine = make_engine(None, 1) if "-" in map(scheme_of, urls) else run.make_engine()
        checked = stack.enter_context(contextlib.closing(_run(task, engine, ledger, run)))
        results = track(checked, len(urls), "checking", progress=run.progress)
        report.complete = _collect(results, report, ErrorBudget(max_errors), on_shard)
        if keys is not None and report.complete:
            report.duplicates = {key: [urls[n] for n in numbers] for key, numbers in keys.duplicates()}
    if repair is not None and report.complete:
        target = Output(repair, overwrite=overwrite, storage=access.storage)
        written = [each for each in report.shards if not each.unreachable and (intact or not each.ok)]
        known = dict(zip(urls, entries, strict=True))
        job = write_copies(
            [each.url for each in written],
            target,
            run,
            checks,
            [known[each.url] for each in written],
            regroup=regroup,
            intact={each.url: (each.samples, each.payload) for each in written if each.ok},
            link=intact == "link",
        )
        report.add_copies(job)
        if scattered := sum(loss["reason"] == SCATTERED for loss in report.losses):
            report.remarks.append(
                f"`regroup` keeps {plural(scattered, 'sample')} whose members are not contiguous"
            )
        if losses is not None and not run.dry_run:
            lines = "".join(f"{json.dumps(loss, ensure_ascii=True)}\n" for loss in report.losses)
            write_all(losses, lines.encode(), access.storage, WriteOptions(overwrite=True))
    report.seconds = time.monotonic() - started
    return report


def _collect(
    results: Iterable[ShardCheck],
    report: CheckReport,
    budget: ErrorBudget,
    on_shard: Callable[[ShardCheck], None] | None,
) -> bool:
    """Add the results to the report; return whether there were not too many errors."""
    for result in results:
        report.add_shard(result)
        if on_shard is not None:
            on_shard(result)
        try:
            budget.check(budget.failed + result.problems, result.error)
        except ErrorBudgetExceeded:
            return False
    return True


def _image_spec(decode: bool | str) -> str:
    spec = "rgb8" if decode is True else decode or ""
    if spec and spec not in imagespecs:
        raise UsageError(f"expected one of {', '.join(imagespecs)}, got {spec!r}.", field="decode")
    return spec


def _absent(manifest: Manifest, urls: Sequence[str], storage: StorageOptions) -> list[str]:
    """Return the shards of the manifest that do not exist, which a pattern does not match."""
    listed = [shard.url for shard in entries_of(manifest, urls) if shard is not None]
    others = [shard.url for shard in manifest.shards if shard.url not in listed]
    existing = existing_sizes(others, storage)
    return [url for url in others if url not in existing]


@dataclass
class _CheckTask(Task):
    """Check each shard as a unit; the result is in the details of its outcome."""

    urls: Sequence[str]
    checks: CheckOptions
    entries: Sequence[Shard | None]
    """The entries of the shards in the manifest."""
    keys: SharedKeys | None = None
    versions: bool = False
    """Whether to look up the version of each shard, for a ledger."""
    verb = "check"

    def options(self) -> dict[str, Any]:
        return self.checks.ledger_options()

    def plan(self) -> Iterator[Unit]:
        for number, url in enumerate(self.urls):
            yield Unit(identity(url), number, self._fingerprint(number) if self.versions else "")

    def _fingerprint(self, number: int) -> str:
        """Return the version of a shard, and what the manifest says about it."""
        try:
            info = stat(self.urls[number], self.checks.storage)
        except TarmacError:
            return ""
        entry, version = self.entries[number], f"{info.size} {info.version}" if info.version else ""
        described = f" {entry.samples} {entry.index} {entry.fingerprint}" if version and entry else ""
        return version + described

    def run(self, unit: Unit) -> Outcome:
        number = unit.content
        keys: list[str] | None = None if self.keys is None else []
        result = check_shard(self.urls[number], self.checks, self.entries[number], keys)
        if self.keys is not None and keys is not None:
            self.keys.add(number, keys)
        return Outcome(result.samples, bytes=result.payload, details={"result": result})


def _run(task: _CheckTask, engine: Engine, ledger: str | None, run: Run) -> Generator[ShardCheck]:
    """Yield the results in order; those that the ledger has for the same version are not computed again."""
    options, storage, dry_run = task.options() if ledger else {}, task.checks.storage, run.dry_run
    done: dict[int, ShardCheck] = {}
    missing: list[Unit] = []
    with contextlib.ExitStack() as stack:
        shared = run.share is not None
        records = open_ledger(ledger, task.verb, options, dry_run=dry_run, shared=shared, storage=storage)
        stack.callback(records.close)
        if not dry_run:
            records.begin()
        for unit in task.plan():
            inputs, known = records.done.get(unit.name, ("", Outcome()))
            if unit.inputs and inputs == unit.inputs:
                done[unit.content] = ShardCheck(
                    task.urls[unit.content], known.read, known.bytes, **known.details, kept=True
                )
            else:
                missing.append(unit)
        work = UnitWork(task, policy=run.policy)
        finished = stack.enter_context(contextlib.closing(_outcomes(engine, work, missing)))
        for number in range(len(task.urls)):
            while number not in done:
                unit, outcome = next(finished)
                if isinstance(outcome, TarmacError):
                    done[unit.content] = ShardCheck(task.urls[unit.content])
                    done[unit.content].add(outcome)
                    continue
                result = outcome.details["result"]
                if result.ok and unit.inputs and not dry_run:
                    details = {"fields": result.fields, "skipped": result.skipped}
                    records.record(unit, replace(outcome, details=details))
                done[unit.content] = result
            yield done.pop(number)


def _outcomes(
    engine: Engine, work: UnitWork, units: list[Unit]
) -> Generator[tuple[Unit, Outcome | TarmacError]]:
    """Yield the outcomes of the engine, and the errors of units that time out or kill their worker.

    More of these than `max_failed_units` are an error. A generator, so that closing it ends the workers.
    """
    failed = 0
    for unit, outcome in run_units(engine, work, iter(units), work.policy.retries):
        if isinstance(outcome, Exception):
            failed += 1
            if failed > work.policy.max_failed_units or not isinstance(outcome, UnitTimedOut | WorkerDied):
                raise outcome
        yield unit, outcome
