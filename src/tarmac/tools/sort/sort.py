"""Sort samples: by key, by what is in them, or at random; as many as fit on the disk, in bounded memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tarmac.errors import BadName, MissingField, SampleError, TarmacError
from tarmac.exact.dataset import Dataset
from tarmac.jobs.report import Report
from tarmac.jobs.task import MAX_REASONS, Outcome, Unit
from tarmac.runtime.budget import ErrorBudget
from tarmac.storage import Cache
from tarmac.tools.output import Output
from tarmac.tools.permutations import Listed, Shuffled
from tarmac.tools.plan import IndexedSamples, OutputShard, selects_by_split
from tarmac.tools.rewrite import RewriteJob, Run, rewrite
from tarmac.tools.rewrite_stream import rewrite_stream
from tarmac.tools.select import Select
from tarmac.tools.sort.runs import Runs, write_numbers
from tarmac.tools.sort.sources import Gathered, GatheredSamples, disk_errors, gather, workplace
from tarmac.tools.sort.values import By
from tarmac.tools.tally import Tally

__all__ = ["By", "sort"]

MEMORY = 256 << 20
AT_ONCE = 8192
"""Samples that are fetched together: the more, the fewer times each shard is gone to."""
BY_KEY = By()
EVERYTHING = Select()


@dataclass
class _Lost:
    """Samples that do not come out, and why."""

    reasons: list[str] = field(default_factory=list)
    bad: int = 0
    """Those without a value that can be compared, ..."""
    missing: int = 0
    """... without the field, where such are to be passed over, ..."""
    doubles: int = 0
    """... and those with a value that came before, where only the first is wanted."""


def sort(
    urls: Sequence[str],
    output: Output,
    run: Run,
    *,
    by: By = BY_KEY,
    select: Select = EVERYTHING,
    memory: int = MEMORY,
    tmp: str = "",
    on_error: Literal["abort", "skip"] = "abort",
    cache: Cache | None = None,
) -> Report:
    """Write the samples of shards in order.

    Samples with equal values are all kept, in the order in which they come. Samples whose files lie apart are
    put together. `memory` bounds what sorting holds at a time; what does not fit goes into a new directory in
    `tmp`, which is removed at the end. With `on_error` "skip", samples that cannot be compared are left out
    and counted as failed.
    """
    parts = selects_by_split(select, output)
    lost = _Lost()
    with workplace("sort", tmp) as home:
        found = gather(urls, home, select, cache=cache, show=run.show)
        rows = {
            part: _sorted(found, chosen, by, f"{home}/order-{number}", memory, run, on_error, lost)
            for number, (part, chosen) in enumerate(parts.items())
        }
        facts = {"select": select.options(), "sort": by.options(), "on_error": on_error}
        left = select.balance(found.dataset(), sum(len(each.dataset) for each in rows.values()))
        if output.stream:
            report = _stream(rows[""], output, found, run)
        else:
            report = rewrite(
                Sorting("sort", output, dict(rows), facts=facts, also_read=urls, found=found), run
            )
    if not run.dry:
        left.book(report)
        report.read += lost.bad + lost.missing + lost.doubles
        report.dropped += lost.missing + lost.doubles
    report.failed += lost.bad
    report.errors = [*lost.reasons, *report.errors]
    report.notes = {"doubles_left_out": lost.doubles}
    return report


def _sorted(
    found: Gathered,
    select: Select,
    by: By,
    home: str,
    memory: int,
    run: Run,
    on_error: Literal["abort", "skip"],
    lost: _Lost,
) -> IndexedSamples:
    """The samples of a part, in order."""
    dataset = select.of_dataset(found.dataset())
    if by.random:
        order = Shuffled(len(dataset), by.seed)
        return GatheredSamples(dataset, select, order, AT_ONCE, versions=found.versions)
    with disk_errors(home):
        os.makedirs(home)
    # Half of the memory is for what is read and written meanwhile.
    runs = Runs(home, max(memory // 2, 1 << 16), reverse=by.reverse)
    for number, value in enumerate(by.values(dataset)):
        if isinstance(value, bytes):
            runs.add(value, number)
        elif isinstance(value, MissingField) and select.missing == "skip":
            lost.missing += 1
        else:
            _lose(value, lost, on_error, run.max_errors)
    path = f"{home}.npy"
    write_numbers(path, _chosen(runs, by, dataset, found, lost))
    return GatheredSamples(dataset, select, Listed(path), AT_ONCE, versions=found.versions)


def _lose(error: TarmacError, lost: _Lost, on_error: str, most: int | None) -> None:
    if on_error == "abort":
        raise error
    lost.bad += 1
    if len(lost.reasons) < MAX_REASONS:
        lost.reasons.append(str(error))
    ErrorBudget(most).check(lost.bad, error)


def _chosen(runs: Runs, by: By, dataset: Dataset, found: Gathered, lost: _Lost) -> Iterator[int]:
    """The numbers of the samples in order; of those with equal values as many as are wanted."""
    before: bytes | None = None
    first = -1
    for value, number in runs:
        if by.unique == "keep" or value != before:
            before, first = value, number
            yield number
        elif by.unique == "first":
            lost.doubles += 1
        else:
            raise SampleError(
                f"it has the same {by.what} as {_name(dataset, first, found)}.",
                url=_url(dataset, number, found),
                key=dataset.key_of(number),
                hint="--unique keep keeps both, --unique first the first.",
            )


@dataclass
class Sorting(RewriteJob):
    """The job: samples in their order to shards; it says which samples have the same key."""

    found: Gathered | None = None

    def begin(self, units: Sequence[Unit]) -> None:
        """Also refuse samples of one key that would meet in one shard, before anything is written."""
        super().begin(units)
        for unit in units if not self.output.rekey else ():
            part, piece = unit.content
            rows = self.sources_by_split[part]
            if self.found is not None and isinstance(rows, IndexedSamples):
                _check_keys(rows, piece, self.found)

    def run(self, unit: Unit) -> Outcome:
        part, piece = unit.content
        try:
            return super().run(unit)
        except BadName as error:
            rows = self.sources_by_split[part]
            if self.found is None or not isinstance(rows, IndexedSamples):
                raise
            raise _clash(rows, piece, error, self.found) from None


def _stream(rows: IndexedSamples, output: Output, found: Gathered, run: Run) -> Report:
    piece, tally = OutputShard("-", 0, rows.size), Tally()
    try:
        return rewrite_stream("sort", rows.samples(piece, tally), output, run=run, tally=tally)
    except BadName as error:
        raise _clash(rows, piece, error, found) from None


def _check_keys(rows: IndexedSamples, piece: OutputShard, found: Gathered) -> None:
    marks = array("q")
    for start in range(piece.start, piece.stop, AT_ONCE):
        keys = rows.dataset.keys_of(rows.indices(start, min(start + AT_ONCE, piece.stop)))
        marks.extend(map(hash, keys))
    marked = np.sort(np.array(marks, np.int64))
    same = marked[1:][marked[1:] == marked[:-1]]
    if not len(same):
        return
    seen = set(same.tolist())
    for start in range(piece.start, piece.stop, AT_ONCE):
        for key in rows.dataset.keys_of(rows.indices(start, min(start + AT_ONCE, piece.stop))):
            if hash(key) in seen:
                error = BadName("", key=key)
                if (told := _clash(rows, piece, error, found)) is not error:
                    raise told


def _clash(rows: IndexedSamples, piece: OutputShard, error: BadName, found: Gathered) -> BadName:
    """Name both samples that have the same key and would be in one shard."""
    same: list[int] = []
    for start in range(piece.start, piece.stop, AT_ONCE):
        numbers = rows.indices(start, min(start + AT_ONCE, piece.stop))
        keys = rows.dataset.keys_of(numbers)
        same += [number for number, key in zip(numbers.tolist(), keys, strict=True) if key == error.key]
    if len(same) < 2:
        return error
    return BadName(
        f"a sample of {_url(rows.dataset, same[0], found)} has the same key; in one shard they would be read "
        "as one.",
        url=_url(rows.dataset, same[1], found),
        key=error.key,
        hint="--rekey '{i:09d}' gives every sample a key of its own; --by key --unique first keeps one.",
    )


def _url(dataset: Dataset, number: int, found: Gathered) -> str:
    part, shard = dataset.shard_of(int(dataset.segments_of(np.array([number]))[0]))
    url = part.shards.url(shard)
    return found.origins.get(url, url)


def _name(dataset: Dataset, number: int, found: Gathered) -> str:
    return f'"{dataset.key_of(number)}" of {_url(dataset, number, found)}'
