"""`tarmac check`: read shards to their ends and report damage; write clean copies."""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tarmac.cli import flags
from tarmac.cli.output import json_line, say, say_json
from tarmac.display import display_url, visible

if TYPE_CHECKING:
    from tarmac.errors import TarmacError
    from tarmac.tools.check.check import Checks, ShardCheck

__all__ = ["check_command"]

_REPAIR = "Repair"


def check_command(
    shards: flags.Shards,
    require: Annotated[str, typer.Option(help="Fields every sample must have, as jpg,cls.")] = "",
    digests: Annotated[
        bool, typer.Option("--digests", help="Compare every field with the index beside the shard.")
    ] = False,
    against: Annotated[str, typer.Option(help="Compare with this manifest and its indexes.")] = "",
    decode: Annotated[bool, typer.Option("--decode", help="Decode every field whose kind is known.")] = False,
    decode_as: Annotated[str, typer.Option(help="What images are decoded to.")] = "rgb8",
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Find keys that come in several shards.")
    ] = False,
    all_errors: Annotated[
        bool, typer.Option("--all-errors", help="Go on after a bad sample, and list all.")
    ] = False,
    max_errors: flags.MaxErrors = None,
    ledger: Annotated[str, typer.Option(help="File to remember in which shards were found whole.")] = "",
    repair: Annotated[
        bool,
        typer.Option("--repair", rich_help_panel=_REPAIR, help="Write a clean copy of each damaged shard."),
    ] = False,
    output: Annotated[
        str, typer.Option("-o", "--output", rich_help_panel=_REPAIR, help="Where to: DIR/.")
    ] = "",
    report: Annotated[
        str, typer.Option(rich_help_panel=_REPAIR, help="File for what was lost, instead of standard output.")
    ] = "",
    regroup: Annotated[
        bool,
        typer.Option(
            "--regroup", rich_help_panel=_REPAIR, help="Put files of a sample together that lie apart."
        ),
    ] = False,
    overwrite: flags.Overwrite = False,
    jobs: flags.Jobs = flags.CORES,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per shard.")] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Only print shards that are not whole.")
    ] = False,
    allow_exec: flags.AllowExec = False,
) -> None:
    """Read every byte of the shards and say which are whole.

    Exit status: 0 all whole, 1 damaged, 3 some could not be read. Example: tarmac check 'train-*.tar'

    With --repair what was lost is printed as JSON lines; the status is 1 if that is anything.
    """
    from tarmac.codecs import imagespecs
    from tarmac.tools.check.check import Checks, check
    from tarmac.tools.check.duplicates import KeyFiles

    if repair != bool(output):
        raise typer.BadParameter("--repair needs -o DIR/, and the other way round")
    if (report or regroup) and not repair:
        raise typer.BadParameter("--report and --regroup are for --repair")
    if duplicates and ledger:
        raise typer.BadParameter("--duplicates needs all keys, so --ledger would be of no use")
    if decode_as not in imagespecs:
        raise typer.BadParameter(f"--decode-as is one of {', '.join(imagespecs)}")
    required = frozenset(name.strip().lower() for name in require.split(",") if name.strip())
    checks = Checks(
        required,
        digests,
        against,
        decode_as if decode else "",
        all_errors,
        max_errors if all_errors else None,
    )
    flags.manifests([against])
    source = flags.manifest_or_sources(shards, allow_exec)
    urls = flags.sources(shards) if isinstance(source, str) else source
    lines = _Lines(as_json, quiet, to_stderr=repair)
    with contextlib.ExitStack() as stack:
        keys = KeyFiles(stack.enter_context(tempfile.TemporaryDirectory())) if duplicates else None
        for result in check(source, checks=checks, keys=keys, ledger=ledger or None, jobs=jobs, show=None):
            lines.verdict(result)
            if max_errors is not None and lines.problems > max_errors:
                say(f"more than {max_errors} problems; what follows was not checked", err=True)
                raise typer.Exit(1)
        for key, numbers in keys.duplicates() if keys is not None else ():
            lines.duplicate(key, [urls[number] for number in numbers])
    lines.summary()
    if repair:
        damaged = [result.url for result in lines.bad if not result.unreachable]
        manifest = against or (source if isinstance(source, str) else "")
        lost = _repair(damaged, output, report, checks, regroup, overwrite, jobs, manifest)
        lines.bad = [result for result in lines.bad if lost or result.unreachable]
    if lines.bad or lines.doubled:
        raise typer.Exit(3 if all(result.unreachable for result in lines.bad) and not lines.doubled else 1)


class _Lines:
    """What is printed, and what is counted meanwhile."""

    def __init__(self, as_json: bool, quiet: bool, *, to_stderr: bool) -> None:
        self._json, self._quiet, self._stderr = as_json, quiet, to_stderr
        self.shards = self.samples = self.doubled = self.problems = 0
        self.bad: list[ShardCheck] = []

    def verdict(self, result: ShardCheck) -> None:
        self.shards += 1
        self.samples += result.samples
        self.problems += result.problems
        if not result.ok:
            self.bad.append(result)
        if self._json:
            say_json(_as_json(result), err=self._stderr)
        elif not (self._quiet and result.ok):
            for line in _as_lines(result):
                self._print(line)

    def duplicate(self, key: str, urls: list[str]) -> None:
        self.doubled += 1
        urls = [display_url(url) for url in urls]
        if self._json:
            say_json({"duplicate": key, "shards": urls}, err=self._stderr)
        else:
            self._print(f"TWICE {key}: {', '.join(urls)}")

    def summary(self) -> None:
        if not self._json:
            twice = f", {self.doubled} keys in several shards" if self.doubled else ""
            text = f"{self.shards} shards, {self.samples} samples, {len(self.bad)} not whole{twice}"
            say(text, err=True)

    def _print(self, line: str) -> None:
        say(line, err=self._stderr)


def _repair(
    urls: list[str],
    output: str,
    report: str,
    checks: Checks,
    regroup: bool,
    overwrite: bool,
    jobs: int,
    manifest: str,
) -> int:
    """Write clean copies, say what was lost, and return how much that is."""
    from tarmac.indexing.manifest import read_manifest
    from tarmac.jobs.engines import make_engine
    from tarmac.storage import WriteOptions, open_write
    from tarmac.tools.check.compare import entries_of
    from tarmac.tools.check.repair import repair
    from tarmac.tools.output import Output

    told = entries_of(read_manifest(manifest), urls) if manifest else None
    job = repair(
        urls,
        Output(output, overwrite=overwrite),
        make_engine(None, jobs),
        checks=checks,
        told=told,
        regroup=regroup,
        show=None,
    )
    losses = [loss for outcome in job.outcomes for loss in outcome.details["losses"]]
    if report:
        sink = open_write(report, write=WriteOptions(overwrite=True))
        sink.write("".join(f"{json_line(loss)}\n" for loss in losses).encode())
        sink.commit()
    else:
        for loss in losses:
            say_json(loss)
    samples = sum(loss["what"] == "sample" for loss in losses)
    made = sum(len(outcome.outputs) for outcome in job.outcomes)
    kept = f"; {job.kept} were made before" if job.kept else ""
    say(f"{made} clean copies of {job.written} samples, {samples} samples lost{kept}", err=True)
    return len(losses)


def _as_lines(result: ShardCheck) -> list[str]:
    if result.error is not None:
        more = result.problems - len(result.errors)
        lines = [f"BAD   {error}" for error in result.errors]
        return [*lines, f"BAD   {display_url(result.url)}: and {more} more"] if more else lines
    fields = " ".join(f"{visible(name)}:{count}" for name, count in sorted(result.fields.items()))
    skipped = "".join(f", {count} x {reason} skipped" for reason, count in sorted(result.skipped.items()))
    read = f"{result.samples} samples, {result.payload} bytes"
    return [f"ok    {display_url(result.url)}: {read}, {fields}{skipped}"]


def _as_json(result: ShardCheck) -> dict[str, Any]:
    names = ("samples", "payload", "fields", "skipped", "problems")
    return (
        {"url": display_url(result.url)}
        | {name: getattr(result, name) for name in names}
        | {
            "ok": result.ok,
            "error": None if result.error is None else _error(result.error),
            "errors": [_error(error) for error in result.errors],
        }
    )


def _error(error: TarmacError) -> dict[str, Any]:
    found = {"kind": type(error).__name__, "offset": error.offset, "key": error.key, "text": str(error)}
    return {name: value for name, value in found.items() if value is not None or name == "offset"}
