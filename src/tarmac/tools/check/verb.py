"""Check shards: read every byte, report damage, find duplicate keys, and write clean copies."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from tarmac.codecs import imagespecs
from tarmac.display import display_url, identity
from tarmac.errors import TarmacError, UsageError
from tarmac.indexing.manifest import Manifest, Shard, read_manifest
from tarmac.jobs.engines import Engine, make_engine
from tarmac.jobs.ledger import open_ledger
from tarmac.jobs.outputs import existing_sizes
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.progress import track
from tarmac.storage import StorageOptions, WriteOptions, scheme_of, stat, write_all
from tarmac.storage.urls import Shards
from tarmac.tools.check.repair import repair as write_copies
from tarmac.tools.check.shard import CheckOptions, ShardCheck, check_shard, entries_of
from tarmac.tools.keystore import SharedKeys
from tarmac.tools.options import Access, AccessArgs, Run, RunArgs, bundle, verb
from tarmac.tools.output import Output


class CheckArgs(RunArgs, AccessArgs, total=False):
    """The shared keyword arguments of `check`."""


@dataclass(slots=True)
class CheckReport:
    """The result of checking shards."""

    shards: list[ShardCheck] = field(default_factory=list)
    duplicates: dict[str, list[str]] = field(default_factory=dict)
    """Keys that occur more than once, with their shards."""
    losses: list[dict[str, Any]] = field(default_factory=list)
    """What is missing in the clean copies: samples, bytes, or an uncertain end."""
    copies: list[str] = field(default_factory=list)
    """The clean copies that were written or kept."""
    copied: int = 0
    """The number of samples in them."""
    complete: bool = True
    """Whether all shards were checked: more than `max_errors` errors stop the check."""

    @property
    def bad(self) -> list[ShardCheck]:
        """Return the results of the shards that are damaged or could not be read."""
        return [shard for shard in self.shards if not shard.ok]

    @property
    def samples(self) -> int:
        """Return the number of samples."""
        return sum(shard.samples for shard in self.shards)

    @property
    def ok(self) -> bool:
        """Return whether every shard is intact and no key occurs twice."""
        return self.complete and not self.bad and not self.duplicates

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        return {
            "ok": self.ok,
            "shards": len(self.shards),
            "samples": self.samples,
            "bad": [shard.to_dict() for shard in self.bad],
            "duplicates": {key: list(map(display_url, urls)) for key, urls in self.duplicates.items()},
            "losses": self.losses,
        }

    def __str__(self) -> str:
        twice = f", {len(self.duplicates)} duplicate keys" if self.duplicates else ""
        text = f"check: {len(self.shards)} shards, {self.samples} samples, {len(self.bad)} bad{twice}"
        if self.copies or self.losses:
            lost = sum(loss["what"] == "sample" for loss in self.losses)
            text += f"; {len(self.copies)} clean copies of {self.copied} samples, {lost} samples lost"
        return text if self.complete else f"{text}; stopped at `max_errors`"

    def __repr__(self) -> str:
        return f"<{self}>"


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
    overwrite: bool = False,
    on_shard: Callable[[ShardCheck], None] | None = None,
    **options: Unpack[CheckArgs],
) -> CheckReport:
    """Read shards to their ends and report what is wrong with them; a damaged shard does not stop the others.

    `require` names fields that every sample must have. `digests` compares every field with the index beside
    its shard, `manifest` compares with a manifest and its indexes. `decode` decodes fields, images as a
    specification such as "rgb8". `duplicates` finds keys that occur more than once. `all_errors` continues
    after a bad sample; more than `max_errors` errors stop the check. With a `ledger`, intact shards are not
    read again unless they change. `on_shard` is called with each result, in order.

    `repair` is a directory or pattern for clean copies of damaged shards. What they lack is in the report, and
    is written to the file `losses` as JSON lines. `regroup` puts samples together whose members are not
    contiguous.
    """
    access, run = bundle(Access, options), bundle(Run, options)
    if duplicates and ledger is not None:
        raise UsageError("`duplicates` reads all keys, so it cannot be combined with `ledger`.")
    if (regroup or overwrite or losses) and repair is None:
        raise UsageError("`regroup`, `overwrite` and `losses` need `repair`.")
    inputs = access.inputs(sources)
    if manifest is None or isinstance(manifest, Manifest):
        reference = manifest
    else:
        reference = read_manifest(os.fspath(manifest), access.storage)
    checks = CheckOptions(
        require=frozenset(name.lower() for name in require),
        digests=digests,
        manifest=reference,
        manifest_url=manifest.name if isinstance(manifest, Manifest) else os.fspath(manifest or ""),
        decode=_image_spec(decode),
        all_errors=all_errors,
        max_errors=max_errors if all_errors else None,
        tar=access.tar,
        storage=access.storage,
    )
    urls: list[str] = [*inputs.urls]
    if reference is not None:
        urls += _absent(reference, urls, access.storage)
    if reference is not None:
        entries = entries_of(reference, urls)
    else:
        entries = [shard if isinstance(shard, Shard) else None for shard in inputs.shards]
    report = CheckReport()
    with contextlib.ExitStack() as stack:
        keys = (
            SharedKeys(f"{stack.enter_context(tempfile.TemporaryDirectory())}/keys") if duplicates else None
        )
        task = _CheckTask(urls, checks, entries, keys, versions=ledger is not None)
        # The standard input of worker processes is empty.
        engine = make_engine(None, 1) if "-" in map(scheme_of, urls) else run.make_engine()
        results = _run(task, engine, ledger)
        for result in track(results, len(urls), "checking", progress=run.progress):
            report.shards.append(result)
            if on_shard is not None:
                on_shard(result)
            if max_errors is not None and sum(shard.problems for shard in report.shards) > max_errors:
                report.complete = False
                return report
        if keys is not None:
            report.duplicates = {key: [urls[n] for n in numbers] for key, numbers in keys.duplicates()}
    if repair is not None:
        target = Output(repair, overwrite=overwrite, storage=access.storage)
        damaged = [result.url for result in report.bad if not result.unreachable]
        known = dict(zip(urls, entries, strict=True))
        job = write_copies(damaged, target, run, checks, [known[url] for url in damaged], regroup=regroup)
        report.losses = [loss for outcome in job.outcomes for loss in outcome.details["losses"]]
        report.copies, report.copied = job.outputs, job.written
        if losses is not None:
            lines = "".join(f"{json.dumps(loss, ensure_ascii=True)}\n" for loss in report.losses)
            write_all(losses, lines.encode(), access.storage, WriteOptions(overwrite=True))
    return report


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


def _run(task: _CheckTask, engine: Engine, ledger: str | None) -> Iterator[ShardCheck]:
    """Yield the results in order; those that the ledger has for the same version are not computed again."""
    records = open_ledger(ledger, task.verb, task.options() if ledger else {}, storage=task.checks.storage)
    try:
        records.begin()
        done: dict[int, ShardCheck] = {}
        missing: list[Unit] = []
        for unit in task.plan():
            inputs, known = records.done.get(unit.name, ("", Outcome()))
            if unit.inputs and inputs == unit.inputs:
                done[unit.content] = ShardCheck(
                    task.urls[unit.content], known.read, known.bytes, **known.details
                )
            else:
                missing.append(unit)
        finished = iter(engine.run(task.run, missing))
        for number in range(len(task.urls)):
            while number not in done:
                unit, outcome = next(finished)
                if isinstance(outcome, Exception):
                    raise outcome
                result = outcome.details["result"]
                if result.ok and unit.inputs:
                    details = {"fields": result.fields, "skipped": result.skipped}
                    records.record(unit, replace(outcome, details=details))
                done[unit.content] = result
            yield done.pop(number)
    finally:
        records.close()
