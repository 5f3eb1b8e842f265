"""Join samples with fields from elsewhere that have the same key: other shards, or a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import DuplicateField, JobError, UrlError
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample
from tarmac.storage import Cache
from tarmac.tools.join.keys import KeyTable
from tarmac.tools.join.sources import Source, open_source
from tarmac.tools.output import Output
from tarmac.tools.plan import OutputShard, selects_by_split
from tarmac.tools.rewrite import RewriteJob, Run, rewrite
from tarmac.tools.rewrite_stream import rewrite_stream
from tarmac.tools.select import Select
from tarmac.tools.sort.runs import write_numbers
from tarmac.tools.sort.sources import GatheredSamples, gather, workplace
from tarmac.tools.tally import Tally

__all__ = ["join", "Joining"]

EVERYTHING = Select()
EXAMPLES = 3
"""Keys that are shown of either side when no two are equal."""


@dataclass(frozen=True)
class Joining:
    """How samples and rows come together."""

    how: Literal["left", "inner"] = "left"
    """Whether samples without a partner are kept, or dropped."""
    replace: bool = False
    """Whether fields that are there already may be replaced."""
    prefix: str = ""
    """What the names of the new fields begin with."""
    duplicates: Literal["error", "first"] = "error"
    """What to do when a key comes twice in the source."""
    key: str = ""
    """The column of a table that holds the key."""
    as_: Literal["fields", "json"] = "fields"
    """A table: a field for each column, or one field with the whole row."""

    def options(self, source: Source) -> dict[str, Any]:
        """What the result depends on, for a ledger."""
        names = ("how", "replace", "prefix", "duplicates", "key", "as_")
        return {name: getattr(self, name) for name in names} | {"with": source.fingerprint()}


AS_USUAL = Joining()


@dataclass(frozen=True)
class Joined(GatheredSamples):
    """Samples, each with the fields of its partner."""

    source: Source | None = None
    partners: str = ""
    """A file with the number of each sample's partner; -1 for none."""
    replace: bool = False
    skip: bool = False
    """Whether a sample that cannot be joined is handed on with what is wrong with it, as `__error__`."""

    @cached_property
    def _partners(self) -> Integers:
        found: Integers = np.load(self.partners, mmap_mode="r")
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_partners"}

    def sizes(self, indices: Integers) -> Integers:
        """With what comes from the partners."""
        assert self.source is not None
        found, numbers = super().sizes(indices), np.array(self._partners[indices])
        found[numbers >= 0] += self.source.sizes(numbers[numbers >= 0])
        return found

    def fetch(self, indices: Integers) -> list[Sample]:
        """Samples together with the fields of their partners."""
        assert self.source is not None
        samples, numbers = super().fetch(indices), np.array(self._partners[indices])
        places = np.flatnonzero(numbers >= 0)
        for place, fields in zip(places.tolist(), self.source.fields(numbers[places]), strict=True):
            sample = samples[place]
            both = () if self.replace else sorted(fields.keys() & sample.keys())
            if both:
                error = _both(sample, both[0])
                if not self.skip:
                    raise error
                samples[place] = {"__key__": sample["__key__"], "__error__": error}
            else:
                sample.update(fields)
        return samples

    def samples(self, piece: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        """The samples of a piece, cut to the fields that are wanted after they were joined."""
        if not self.skip:
            return super().samples(piece, tally)
        found = self._good_and_bad(piece, tally)
        return found if tally is None else tally.let_pass(found)

    def _good_and_bad(self, piece: OutputShard, tally: Tally | None) -> Iterator[Sample]:
        for sample in self._counted(piece, tally):
            yield from [sample] if "__error__" in sample else self.select.cut([sample])


def _both(sample: Sample, name: str) -> DuplicateField:
    return DuplicateField(
        f'both have the field "{name}".',
        url=sample["__url__"],
        key=sample["__key__"],
        hint="--replace takes the new one; --prefix P. gives the new ones other names.",
    )


def _without_bad(samples: Iterator[Sample], outcome: Outcome) -> Iterator[Sample]:
    for sample in samples:
        if "__error__" in sample:
            outcome.fail(str(sample["__error__"]))
        else:
            yield sample


def join(
    urls: Sequence[str],
    source: Sequence[str],
    output: Output,
    run: Run,
    *,
    joining: Joining = AS_USUAL,
    select: Select = EVERYTHING,
    tmp: str = "",
    on_error: Literal["abort", "skip"] = "abort",
    cache: Cache | None = None,
) -> Report:
    """Write samples together with the fields that `source` has for their keys.

    The report says how many samples had no partner, and how many rows of the source were not asked for. With
    `on_error` "skip", samples that have a field already are left out and counted as failed.
    """
    if not source:
        raise UrlError("there is nothing to join with.")
    parts = selects_by_split(select, output)
    with workplace("join", tmp) as home:
        right = open_source(
            source,
            f"{home}/with",
            key=joining.key,
            as_=joining.as_,
            prefix=joining.prefix,
            storage=select.storage,
            cache=cache,
            show=run.show,
        )
        left = gather(urls, home, select, cache=cache, show=run.show)
        used, alone, selected = np.zeros(right.size, bool), 0, 0
        rows: dict[str, Joined] = {}
        examples: list[str] = []
        with KeyTable.made(f"{home}/keys.sqlite", right.keys(), joining.duplicates, source[0]) as table:
            for number, (part, chosen) in enumerate(parts.items()):
                dataset = chosen.of_dataset(left.dataset())
                before = len(dataset)
                selected += before
                if joining.how == "inner":
                    dataset = dataset.with_keys(table)
                path = f"{home}/partners-{number}.npy"
                write_numbers(path, _marked(table.numbers(dataset.keys()), used))
                rows[part] = Joined(
                    dataset,
                    chosen,
                    versions=left.versions,
                    source=right,
                    partners=path,
                    replace=joining.replace,
                    skip=on_error == "skip",
                )
                partners = np.load(path, mmap_mode="r")
                alone += before - int((partners >= 0).sum())
                examples += itertools.islice(chosen.of_dataset(left.dataset()).keys(), EXAMPLES)
        balance = select.balance(left.dataset(), selected)
        if not used.any() and examples:
            raise _strangers(examples, right, source[0])
        facts = {"select": select.options(), "join": joining.options(right), "on_error": on_error}
        if output.stream:
            tally = Tally()
            samples = rows[""].samples(OutputShard("-", 0, rows[""].size), tally)
            report = rewrite_stream("join", samples, output, _without_bad, run=run, tally=tally)
        else:
            read = [*urls, *source]
            report = rewrite(RewriteJob("join", output, dict(rows), _without_bad, facts, read), run)
    dropped = joining.how == "inner"
    if not run.dry:
        balance.book(report)
        report.read += alone if dropped else 0
        report.dropped += alone if dropped else 0
    report.notes = {
        "without_a_partner_dropped" if dropped else "without_a_partner": alone,
        "rows_not_used": int(right.size - used.sum()),
    }
    return report


def _strangers(keys: Sequence[str], right: Source, url: str) -> JobError:
    """Show keys of both sides of which no two are equal."""
    theirs = list(itertools.islice(right.keys(), EXAMPLES))
    shown = [", ".join(map(repr, some[:EXAMPLES])) or "no keys at all" for some in (keys, theirs)]
    hint = "--key COLUMN, if another column of the table has the keys; keys are compared as text."
    return JobError(
        f"no sample has a partner here: the samples have {shown[0]}, this has {shown[1]}.", url=url, hint=hint
    )


def _marked(numbers: Iterator[int], used: NDArray[np.bool_]) -> Iterator[int]:
    for number in numbers:
        if number >= 0:
            used[number] = True
        yield number
