"""Combine the parts that `tokenize` wrote into one dataset: each key once, in bounded memory, in several formats."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Literal, Unpack

from tarmac.arguments import check_count
from tarmac.errors import UsageError
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.outputs import UNKNOWN_SIZE, existing_sizes
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.limits import MIB
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tokens.formats import find_format
from tarmac.tokens.formats.base import Target
from tarmac.tokens.rows import Parts, Rows, first_schema
from tarmac.tokens.sequences import PackSettings
from tarmac.tokens.settle import Settlement
from tarmac.tokens.source import TokenJob, find_job
from tarmac.tokens.survey import Survey, survey
from tarmac.tools.closing import exists, real_path
from tarmac.tools.options import Run, RunArgs, bundle, verb
from tarmac.tools.output import directory_name, make_directory, output_directory
from tarmac.tools.workdir import work_directory

FormatName = Literal["tarmac", "npy", "tensordict", "megatron", "sidecar"]
SHARD_ROWS, SHARD_BYTES = 1 << 20, 256 * MIB
RECORD_ROWS, RECORD_BYTES = 1 << 14, 8 * MIB
_LIMITS = ("max_rows", "max_bytes", "record_rows", "record_bytes")
DEFAULT = "combined"
"""The name of the output in the directory of the parts."""
_ONCE = (
    "of samples with the same key the first is kept; if yours are different samples, give them keys of their own "
    "before they are tokenized: tarmac copy --rekey {i:09d}"
)


class CombineArgs(RunArgs, total=False):
    """The shared keyword arguments of `combine`."""

    storage: StorageOptions
    """Credentials, endpoints, timeouts and retries."""


@verb(CombineArgs, Run)
def combine(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    partial: bool = False,
    move: bool = False,
    delete_parts: bool = False,
    format: FormatName = "tarmac",
    order: Literal["shard", "key"] = "shard",
    pack: int | None = None,
    across_documents: bool = False,
    block_size: int | None = None,
    max_rows: int = SHARD_ROWS,
    max_bytes: int = SHARD_BYTES,
    record_rows: int = RECORD_ROWS,
    record_bytes: int = RECORD_BYTES,
    tmp: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    **options: Unpack[CombineArgs],
) -> Report:
    """Combine the parts that `tokenize` wrote to the directory `source`, and write the result to `output`.

    `output` is a directory, by default `combined` in `source`. A key that occurs again is left out, and counted as a
    duplicate. Memory does not grow with the data. The job must be finished; `partial` takes the parts of an
    unfinished one, and what its unfinished units have saved, and does not disturb it.

    Formats: `tarmac` writes shards of records with an index of their rows, and the manifest `tokens.json`. `npy` writes
    arrays, `tensordict` what `TensorDict.load_memmap` opens, `megatron` a pair of `.bin` and `.idx`. `sidecar` writes
    `NAME.tokens.tar` for each input shard, with a sample for each of its samples; there, keys may occur again in
    other shards. Rows keep the order of the shards, or `order` is "key". `block_size` is the length that rows of `npy`
    and `tensordict` are filled up to; the default is that of `tokenize`.

    With `pack`, rows are sequences of up to this many tokens: several samples fill one, best fit; `segments` has the
    length of each. Samples are divided only if they are longer than a sequence; with `across_documents`, they are
    laid end to end. The key of a sequence is that of its first sample.

    When all is written, the rows are counted in the output, and compared with the parts and with the ledger of
    `tokenize`. `delete_parts` deletes the parts and the ledger after that. `move` also moves the result to `source`
    itself, in their place. `max_rows` and `max_bytes` limit shards, `record_rows` and `record_bytes` the records in
    them. `tmp` is the directory for working files, by default beside the output.
    """
    run, storage = bundle(Run, options), options.get("storage", DEFAULT_STORAGE)
    wanted = _Wanted(
        format=format,
        order=order,
        partial=partial,
        move=move,
        delete_parts=delete_parts,
        pack=pack,
        across_documents=across_documents,
        block_size=block_size,
        max_rows=max_rows,
        max_bytes=max_bytes,
        record_rows=record_rows,
        record_bytes=record_bytes,
    )
    home, target = wanted.directories(source, output)
    facts = wanted.facts()
    settlement = Settlement(home, target, facts, move=move, delete=move or delete_parts, storage=storage)
    job = settlement.find(partial=partial)
    if not overwrite and not run.dry_run:
        done = settlement.complete(job)
        if done is not None:
            return done
    if job is None:
        job = find_job(home, partial=partial, storage=storage)  # raises
    job.check()
    schema = first_schema(job.parts, storage)
    if schema is None:
        raise UsageError("there are no rows: every sample failed, or there were none.", url=home)
    if pack is not None:
        PackSettings(pack).schema(schema)
    if is_local(target) and not run.dry_run:
        make_directory(target + "x")
    ledger = ledger_url(target, "combine")
    beside = os.path.dirname(local_path(ledger)) if is_local(target) and not run.dry_run else None
    with work_directory("combine", tmp, beside) as directory:
        task = CombineJob(
            job, Parts(job.parts, schema, storage), target, facts, directory, overwrite, storage
        )
        report = run.run_job(task, ledger, overwrite=overwrite, storage=storage)
    if task.survey is not None and report.done + report.kept == report.units and not run.dry_run:
        rows, report.read = report.written, task.survey.read
        report.dropped = task.survey.left_out + task.survey.empty
        report.written = report.read - report.dropped
        report.notes["duplicates"] = task.survey.left_out
        if pack is not None:
            report.notes |= {"samples_without_tokens": task.survey.empty, "sequences": rows}
        if task.survey.left_out:
            report.remarks.append(_ONCE)
        settlement.settle(job, task, report, rows)
    return report


@dataclass(frozen=True)
class _Wanted:
    """What is written, and what becomes of the parts: the arguments of `combine`."""

    format: FormatName
    order: str
    partial: bool
    move: bool
    delete_parts: bool
    pack: int | None
    across_documents: bool
    block_size: int | None
    max_rows: int
    max_bytes: int
    record_rows: int
    record_bytes: int

    def __post_init__(self) -> None:
        for name in (*_LIMITS, "block_size", "pack"):
            if (value := getattr(self, name)) is not None:
                check_count(name, value, 1)
        if self.order not in ("shard", "key"):
            raise UsageError(f"expected 'shard' or 'key', got {self.order!r}.", field="order")
        if self.across_documents and self.pack is None:
            raise UsageError("`across_documents` needs `pack`.", field="across_documents")
        self._check_format()
        if self.partial and (self.move or self.delete_parts):
            what = "the parts of an unfinished job are needed to finish it."
            field = "move" if self.move else "delete_parts"
            raise UsageError(what, field=field, hint="`partial` alone.")

    def _check_format(self) -> None:
        """Raise if the format has no use for an argument."""
        pieces = find_format(self.format).pieces
        if self.block_size is not None and self.format not in ("npy", "tensordict"):
            raise UsageError("only rows of npy and tensordict have equal lengths.", field="block_size")
        if pieces != "shards" and (self.max_rows, self.max_bytes) != (SHARD_ROWS, SHARD_BYTES):
            field = "max_rows" if self.max_rows != SHARD_ROWS else "max_bytes"
            raise UsageError("only shards of the default format are divided by size.", field=field)
        if pieces == "parts" and self.pack is not None:
            raise UsageError(
                "shards beside the data have a sample for each sample of the data.", field="pack"
            )
        if pieces == "parts" and self.order == "key":
            raise UsageError("shards beside the data keep the order of the data.", field="order")

    def facts(self) -> dict[str, Any]:
        """Return what the result depends on."""
        facts: dict[str, Any] = {"format": self.format, "order": self.order, "partial": self.partial}
        facts |= {name: index(getattr(self, name)) for name in _LIMITS}
        facts |= {"block_size": index(self.block_size)} if self.block_size else {}
        return facts | (
            {"pack": index(self.pack), "across_documents": self.across_documents} if self.pack else {}
        )

    def directories(
        self, source: str | os.PathLike[str], output: str | os.PathLike[str] | None
    ) -> tuple[str, str]:
        """Return the directories of the parts and of the output; raise if these options do not go with them."""
        home = directory_name(source, "source")
        target = f"{home}{DEFAULT}/" if output is None else output_directory(output)
        if self.move and output is not None:
            what = "`move` and `output` exclude each other: `move` names the directory of the parts."
            raise UsageError(what, field="move")
        if real_path(target) == real_path(home):
            what = "the output is the directory of the parts."
            raise UsageError(what, field="output", url=target, hint="`move` replaces the parts.")
        if not is_local(home) and (self.move or self.delete_parts):
            raise UsageError("only local parts can be deleted.", url=home)
        if find_format(self.format).pieces == "whole" and not is_local(target):
            what = "this format is written to a directory of this machine."
            raise UsageError(
                what, field="format", url=target, hint="a directory of this machine as `output`."
            )
        return home, target


@dataclass
class CombineJob(Task):
    """Write rows: a unit for each shard, or one for all."""

    source: TokenJob
    parts: Parts
    directory: str
    """Of the output."""
    facts: dict[str, Any]
    work: str
    """The directory for working files."""
    overwrite: bool = False
    storage: StorageOptions = DEFAULT_STORAGE
    survey: Survey | None = None
    verb: str = field(default="combine", init=False)

    def options(self) -> dict[str, Any]:
        return {"inputs": self.source.identity} | self.facts

    @property
    def target(self) -> Target:
        """Where and what is written; it is known after the survey."""
        assert self.survey is not None
        facts = self.facts
        return Target(
            self.directory,
            self.survey.parts.schema,
            self.survey.summary,
            facts["record_rows"],
            facts["record_bytes"],
            facts.get("block_size"),
            self.overwrite,
            self.storage,
        )

    def plan(self) -> Iterator[Unit]:
        form = find_format(self.facts["format"])
        self.survey = survey(
            self.parts,
            form.pieces,
            self.work,
            max_rows=self.facts["max_rows"],
            max_bytes=self.facts["max_bytes"],
            by_key=self.facts["order"] == "key",
            pack=self._pack,
        )
        form.check(self.target)
        pieces = self.survey.pieces
        for name, piece in zip(form.names(self.target, pieces), pieces, strict=True):
            yield Unit(self.directory + name, piece)

    @property
    def packs(self) -> bool:
        """Whether rows become sequences, so that their number changes."""
        return self._pack is not None

    @property
    def _pack(self) -> PackSettings | None:
        size = self.facts.get("pack")
        return None if size is None else PackSettings(size, self.facts["across_documents"])

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        yield from (unit.name for unit in units)
        for name in find_format(self.facts["format"]).others(self.target):
            yield self.directory + name

    def begin(self, units: Sequence[Unit]) -> None:
        for name, size in existing_sizes(self.writes(units), self.storage).items():
            if size != UNKNOWN_SIZE:
                raise exists(name)

    def run(self, unit: Unit) -> Outcome:
        assert self.survey is not None
        piece, outcome = unit.content, Outcome()
        rows = self.survey.parts.rows(piece.start, piece.stop, self.survey.mask)
        name = unit.name.removeprefix(self.directory)
        find_format(self.facts["format"]).write(self.target, name, _counted(rows, outcome), outcome)
        outcome.read = piece.stop - piece.start.row
        outcome.dropped = outcome.read - outcome.written
        outcome.bytes = sum(outcome.outputs.values())
        return outcome

    def closing(self) -> dict[str, Any] | None:
        return None  # what finishes it needs the columns and the number of rows

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        find_format(self.facts["format"]).finish(self.target, outcomes)

    def names(self) -> list[str]:
        """Return the names of the units."""
        assert self.survey is not None
        return find_format(self.facts["format"]).names(self.target, self.survey.pieces)


def _counted(rows: Iterator[Rows], outcome: Outcome) -> Iterator[Rows]:
    for batch, record in rows:
        outcome.written += len(batch)
        yield batch, record
