"""Export samples: which, in which format, and where to; in parallel, and again where it was stopped."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tarmac.errors import CodecError, SampleError, UrlError, WriteError
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.report import Report
from tarmac.jobs.run import run_job
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.runtime.budget import ErrorBudget
from tarmac.samples.grouping import Sample
from tarmac.storage import Cache, is_local, scheme_of
from tarmac.storage.local import local_path
from tarmac.storage.urls import Shards, expand
from tarmac.tar.compression import format_of_name
from tarmac.tools.export.directory import open_directory
from tarmac.tools.export.form import FORMS, Form, Shape, Writer
from tarmac.tools.export.hf import Layout
from tarmac.tools.export.pieces import EVERYTHING, Once, Target, Whole, columns_of, look_at
from tarmac.tools.export.publish import published_path, published_stream
from tarmac.tools.plan import (
    IndexedSamples,
    OutputShard,
    SampleSource,
    StreamedShards,
    any_remote,
    balance,
    can_index,
    open_indexed,
)
from tarmac.tools.rewrite import Run
from tarmac.tools.select import Select
from tarmac.tools.tally import Balance, Tally, judged

__all__ = ["Export", "export"]

ALL_SAMPLES = Select()
PLAIN = Shape()


@dataclass
class Export(Task):
    """Files made of samples."""

    form: Form
    target: Target
    shape: Shape
    on_error: Literal["abort", "skip"] = "abort"
    max_errors: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the result depends on."""
    directory: str = ""
    """Of files as they are in the shards; or of Hugging Face, whose files know how many there are."""
    layout: Layout | None = None
    sources_by_split: dict[str, SampleSource] = field(default_factory=dict)
    """By part; one without a name where there are no parts."""
    balance: Balance = field(default_factory=Balance)
    select: Select | None = None
    """What was chosen, where that shows only when the shards are read."""
    claims: str = ""
    """Where units of a directory that may replace files say which ones are theirs."""

    verb = "export"

    @property
    def several(self) -> bool:
        """Whether each shard is a unit of its own."""
        return bool(self.directory) or self.target.by_shard

    @property
    def home(self) -> str:
        """What the ledger is named after."""
        return (self.directory.rstrip("/") or "/") if self.directory else self.target.pattern

    def options(self) -> dict[str, Any]:
        inputs = {part: sample_source.fingerprint() for part, sample_source in self.sources_by_split.items()}
        told = {"inputs": inputs, "to": self.form.name} | self.target.options() | self.shape.options()
        return told | self.facts | ({"on_error": "skip"} if self.on_error == "skip" else {})

    def begin(self, units: Sequence[Unit]) -> None:
        if self.form.name != "dir":  # which looks at each of its files: what is the same is in nobody's way
            card = []
            if self.layout is not None:
                joins = self.layout.adds_to(self.shape, list(self.sources_by_split), self.target.storage)
                card = [] if joins else [self.layout.card]
            self.target.check_new([*(unit.name for unit in units), *card])

    def plan(self) -> Iterator[Unit]:
        for part, sample_source in self.sources_by_split.items():
            # No samples make a file too: one that says so.
            pieces = list(sample_source.pieces(self.target, part)) or [
                OutputShard(self.target.name(0, part=part), 0, 0)
            ]
            for number, piece in enumerate(pieces):
                name = piece.name if self.layout is None else self.layout.name(part, number, len(pieces))
                yield Unit(name, (part, piece))

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        if self.form.name == "dir":  # its files are claimed one by one, by their names on the disk
            yield self.home
            return
        yield from (unit.name for unit in units)
        if self.layout is not None:
            yield self.layout.card

    def run(self, unit: Unit) -> Outcome:
        part, piece = unit.content
        outcome, tally = Outcome(), Tally()
        samples = self.sources_by_split[part].samples(piece, tally)
        if self.form.name == "dir":
            place, overwrite = local_path(self.directory), self.target.overwrite
            writer = open_directory(place, overwrite=overwrite, claims=self.claims)
            self._fill(writer, samples, outcome)
            outcome.outputs |= writer.extractor.some
            os.sync()  # the ledger must not know of files that the disk does not
        else:
            self.write(unit.name, samples, outcome)
            local = is_local(unit.name)
            outcome.outputs[unit.name] = os.stat(local_path(unit.name)).st_size if local else -1
        tally.book(outcome)
        return outcome

    def write(self, name: str, samples: Iterator[Sample], outcome: Outcome) -> None:
        """Write samples to one file, which appears whole."""
        place: Any = published_path if self.form.by_path else published_stream
        try:
            with place(name, self.target.storage) as file:
                self._fill(self.form.writer(file, self.shape), samples, outcome)
        except WriteError as error:
            error.at(url=name)
            raise

    def _fill(self, writer: Writer, samples: Iterator[Sample], outcome: Outcome) -> None:
        budget = ErrorBudget(self.max_errors)
        with closing(writer):
            for sample in samples:
                try:
                    outcome.bytes += writer.add(sample)
                except (CodecError, SampleError) as error:
                    error.at(url=sample.get("__url__"), key=sample["__key__"])
                    if self.on_error == "abort":
                        raise
                    outcome.fail(str(error))
                    budget.check(outcome.failed, error)
                else:
                    outcome.written += 1
            writer.finish()

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        if self.layout is not None:
            self.layout.finish(self.shape, list(self.sources_by_split), self.target.storage)


def export(
    shards: Shards,
    to: str,
    output: str,
    run: Run,
    *,
    select: Select = ALL_SAMPLES,
    shape: Shape = PLAIN,
    max_samples: int | None = None,
    max_bytes: int | None = None,
    split: str = "train",
    on_error: Literal["abort", "skip"] = "abort",
    overwrite: bool = False,
    cache: Cache | None = None,
) -> Report:
    """Export the samples that are chosen to files of a format (`form.FORMS` lists them).

    `output` is a file, a pattern with `{i}`, `{name}` or `{part}`, a directory (for `dir` and `hf`, or with a
    slash at its end for a file of each shard), or `-`. Files of one job are written in parallel and are
    remembered beside the output, so that running it again does what is missing.
    """
    if to not in FORMS:
        raise UrlError(f"there is no format {to!r}; there are {', '.join(FORMS)}.")
    form, urls = FORMS[to], expand(shards, options=select.storage)
    _check_name(form, output)
    layout = Layout(output.rstrip("/") or "/", split) if to == "hf" else None
    inside = {"dir": "{i:06d}", "hf": "{part}-{i:06d}"}  # names of units, of which no file is called so
    target = Target(
        inside.get(to, output),
        max_samples,
        max_bytes,
        overwrite=overwrite,
        storage=select.storage,
        suffix=form.suffix,
    )
    shape = replace(shape, kinds=shape.kinds.after(select.rule))
    if form.table and select.rule is not None and select.rule.kept:
        shape = replace(shape, columns=tuple(new for new, _ in select.rule.kept))
    facts: dict[str, Any] = {"select": select.options()} | ({"directory": output} if to in inside else {})
    directory = output if to in inside else ""
    task = Export(form, target, shape, on_error, run.max_errors, facts, directory, layout)
    if not can_index(urls) or (any_remote(urls) and _front_to_back(task, select)):
        return _of_streams(task, StreamedShards(urls, select, select.storage, cache), run)

    def one(chosen: Select) -> IndexedSamples:
        return open_indexed(urls, chosen, storage=select.storage, cache=cache, show=run.show)

    rows = dict(_by_part(one, select, task))
    task.sources_by_split, task.balance = dict(rows), balance(select, list(rows.values()))
    if form.table and shape.columns is None:
        task.shape = replace(shape, columns=columns_of(task.sources_by_split.values(), select))
    return _done(task, run, task.home)


def _check_name(form: Form, output: str) -> None:
    scheme = scheme_of(output)
    if scheme == "pipe":
        raise UrlError("files are exported to a disk, a store or standard output, not to a command.")
    if scheme == "-" and not form.text:
        raise UrlError(f"{form.name} has no form as a stream.", hint="-o FILE")
    if form.name == "dir" and not is_local(output):
        raise UrlError("a directory of files is made on this machine only.", url=output)
    if form.name not in ("dir", "hf") and format_of_name(output):
        raise UrlError("files are exported without compression.", url=output, hint="a name without it.")


def _front_to_back(task: Export, select: Select) -> bool:
    """Whether reading shards once, without an index, does: remote ones are then fetched only once."""
    known = not task.form.table or task.shape.columns is not None
    sliced = "-" in select.slice or (select.slice and task.several)
    return known and not (task.target.cut or sliced or (select.part and not select.only))


def _by_part(
    one: Callable[[Select], IndexedSamples], select: Select, task: Export
) -> Iterator[tuple[str, IndexedSamples]]:
    """An arrangement for each part, or one of all."""
    wanted = list(select.shares) if select.shares and not select.only else []
    pattern = task.target.pattern
    if task.layout is None and bool(wanted) != ("{part" in pattern):
        raise UrlError(
            "--part needs {part} in the name of the output, and the other way round.",
            url=pattern,
            hint=f"-o '{{part}}-{{i}}{task.form.suffix}', or --only NAME for one of the parts.",
        )
    if not wanted:
        yield "", one(select)
    for name in wanted:
        yield name, one(replace(select, only=name))


def _of_streams(task: Export, streams: StreamedShards, run: Run) -> Report:
    """Export what is read from front to back: a file for each shard, or one for all."""
    select = streams.select
    if task.target.cut or (select.part and not select.only):
        raise UrlError(
            "standard input, commands and compressed shards are read once, from front to back.",
            hint="--only PART, no --max-samples or --max-bytes; or tarmac copy to shards first.",
        )
    unnamed = any(scheme_of(url) in ("-", "pipe") for url in streams.urls)
    several = task.several and not (select.slice or unnamed)
    if task.several and not several and not task.directory:
        raise UrlError("what is read once makes one file.", url=task.target.pattern, hint="no {i} or {name}.")
    sample_source: SampleSource = streams if several else Whole(streams)
    if task.form.table and task.shape.columns is None:
        tally = Tally()
        samples, columns = look_at(Whole(streams).samples(EVERYTHING, tally))
        task.shape = replace(task.shape, columns=columns)
        sample_source = Once(samples, tally) if unnamed else sample_source
    task.sources_by_split, task.select = {"": sample_source}, select
    return _done(task, run, None if unnamed else task.home)


def _done(task: Export, run: Run, place: str | None) -> Report:
    """Run the job, and say what was left out."""
    report = _run(task, run, place)
    if not run.dry:
        task.balance.book(report)
        report.remarks += judged(task.select, report)
    return report


def _run(task: Export, run: Run, place: str | None) -> Report:
    """Run the job, and remember it beside its place if it has one."""
    if task.target.stream and not run.dry:
        return _to_stream(task)
    if place is None and not task.target.overwrite:
        task.begin(list(task.plan()))
    with ExitStack() as stack:
        if task.form.name == "dir" and task.target.overwrite:
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="tarmac-export-"))
            task.claims = os.path.join(home, "names")
        return run_job(
            task,
            run.engine,
            ledger=None if place is None else ledger_url(place, _ledger(task)),
            overwrite=task.target.overwrite,
            max_errors=run.max_errors,
            dry_run=run.dry,
            storage=task.target.storage,
            progress=run.show,
        )


def _ledger(task: Export) -> str:
    """What its ledger is called: splits that are exported one by one to the same directory have one each."""
    split = "" if task.layout is None or list(task.sources_by_split) != [""] else f"-{task.layout.split}"
    return f"export{split}"


def _to_stream(task: Export) -> Report:
    """Write to standard output, in this process, and remember nothing."""
    (rows,) = task.sources_by_split.values()
    piece = OutputShard("-", 0, rows.size) if isinstance(rows, IndexedSamples) else EVERYTHING
    outcome, tally = Outcome(), Tally()
    task.write(task.target.pattern, rows.samples(piece, tally), outcome)
    tally.book(outcome)
    report = Report(task.verb, 1, 1, outcomes=[outcome])
    report.add(outcome)
    return report
