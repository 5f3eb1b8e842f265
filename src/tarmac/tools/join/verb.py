"""Join samples with the fields of a table or of other shards, by key."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import DuplicateField, JobError, UsageError
from tarmac.exact.shardset import ShardSet
from tarmac.indexing.manifest import Manifest
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample
from tarmac.storage.urls import Shards
from tarmac.tools.columns import Columns
from tarmac.tools.gather import gather
from tarmac.tools.join.sources import Source, open_source
from tarmac.tools.keystore import KeyNumbers
from tarmac.tools.options import Access, RewriteArgs, Run, bundle, verb
from tarmac.tools.output import Output
from tarmac.tools.plan import IndexedSamples, OutputShard, Plan, selects_by_split
from tarmac.tools.rewrite import rewrite
from tarmac.tools.select import Select
from tarmac.tools.tally import Tally
from tarmac.tools.workdir import work_directory, write_integers

_EXAMPLES = 3
"""Keys of either side that an error shows if none match."""


@verb(RewriteArgs, Select, Output, Run, Access)
def join(
    sources: Shards | Manifest,
    other: Shards | Manifest,
    output: str | os.PathLike[str],
    *,
    how: Literal["left", "inner"] = "left",
    key: str | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    rows: Literal["fields", "json"] = "fields",
    prefix: str = "",
    replace: bool = False,
    on_duplicate: Literal["error", "first"] = "error",
    tmp: str | os.PathLike[str] | None = None,
    **options: Unpack[RewriteArgs],
) -> Report:
    """Add the fields that `other` has for the same key, and write the samples to new shards.

    `other` is a table (csv, tsv, jsonl or parquet) or shards. The keys of a table are in the column `key`, by
    default `__key__` or `key`. Each other column becomes the field of the same name, as in `pack`; `columns`
    selects columns, and a mapping renames them from column to field. With `rows` "json", each row becomes one
    field `json`. The names of new fields begin with `prefix`: `"clip"`, or `"clip."`, makes `clip.json`.

    `how` "left" keeps samples without a match, "inner" drops them. A field that exists already is an error,
    unless `replace` is set; with `on_error` "skip" its sample is left out and counted as failed. A key that
    occurs twice in `other` is an error, or its first occurrence counts (`on_duplicate`). `fields` selects from
    the joined fields. The report counts samples without a match and rows that match no sample.
    """
    for name, value, known in (
        ("how", how, ("left", "inner")),
        ("rows", rows, ("fields", "json")),
        ("on_duplicate", on_duplicate, ("error", "first")),
    ):
        if value not in known:
            raise UsageError(f"expected one of {', '.join(map(repr, known))}, got {value!r}.", field=name)
    if prefix[-1:].isalnum():
        prefix += "."  # so that the extension stays that of the field
    select, run, access = bundle(Select, options), bundle(Run, options), bundle(Access, options)
    target = bundle(Output, {"pattern": os.fspath(output), **options})
    splits = selects_by_split(select, target)
    if not isinstance(columns, Mapping):
        columns = {name: name for name in columns or ()}
    layout = Columns(key or "", columns)
    inputs, others = access.inputs(sources), access.inputs(other)
    access = access.shared(run, target)
    with work_directory("join", tmp, run.shared_home(target)) as directory:
        right = open_source(others, f"{directory}/with", layout, rows, prefix, access, progress=run.progress)
        left = gather(inputs, directory, select, access, progress=run.progress, processes=run.workers)
        used, unmatched, selected = np.zeros(right.size, bool), 0, 0
        joined: dict[str, IndexedSamples] = {}
        examples: list[str] = []
        with KeyNumbers(
            f"{directory}/keys.sqlite", right.keys(), on_duplicate=on_duplicate, url=others.urls[0]
        ) as numbers:
            for number, (split, each) in enumerate(splits.items()):
                dataset = each.of_dataset(left.dataset())
                examples += itertools.islice(dataset.keys(), _EXAMPLES)
                selected += len(dataset)
                unmatched += len(dataset)
                if how == "inner":
                    dataset = dataset._with_keys(numbers)
                path = f"{directory}/matches-{number}.npy"
                write_integers(path, _mark_used(numbers.numbers(dataset.keys()), used))
                unmatched -= int((np.load(path, mmap_mode="r") >= 0).sum())
                joined[split] = _Joined(
                    dataset,
                    each,
                    versions=left.versions,
                    unpacked={**left.unpacked, **right.unpacked},
                    right=right,
                    matches=path,
                    replace=replace,
                )
        balance = select.balance(left.dataset(), selected)
        if not used.any() and examples:
            raise _no_match(examples, right, others.urls[0])
        facts: dict[str, Any] = {"how": how, "replace": replace, "prefix": prefix}
        facts |= {"duplicates": on_duplicate, "key": key or "", "as_": rows, "with": right.fingerprint()}
        facts |= {"columns": dict(columns)} if columns else {}
        earlier = {"join": facts | {"with": right.earlier_fingerprint()}}
        facts = {"select": select.options(), "join": facts, "on_error": run.on_error}
        report = rewrite(
            "join",
            Plan(dict(joined), one_pass=target.stream, balance=balance),
            target,
            run,
            change=partial(_without_conflicts, run),
            options=facts,
            earlier_options=earlier,
            also_read=[*inputs.urls, *others.urls],
        )
    dropped = how == "inner"
    if dropped and not run.dry_run:
        report.read += unmatched
        report.dropped += unmatched
    report.notes = {
        "without_a_partner_dropped" if dropped else "without_a_partner": unmatched,
        "rows_not_used": int(right.size - used.sum()),
    }
    return report


@dataclass(frozen=True, kw_only=True)
class _Joined(IndexedSamples):
    """Samples with the fields of their matches."""

    right: Source
    matches: str
    """A file with the number of the match of each sample; -1 for none."""
    replace: bool

    @cached_property
    def _matches(self) -> Integers:
        matches: Integers = np.load(self.matches, mmap_mode="r")
        return matches

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_matches"}

    def sizes(self, indices: Integers) -> Integers:
        sizes, numbers = super().sizes(indices), np.array(self._matches[indices])
        sizes[numbers >= 0] += self.right.sizes(numbers[numbers >= 0])
        return sizes

    def fetch(self, indices: Integers) -> list[Sample]:
        """Return samples with the fields of their matches; a sample in conflict holds `__error__`."""
        samples, numbers = super().fetch(indices), np.array(self._matches[indices])
        positions = np.flatnonzero(numbers >= 0)
        for position, fields in zip(positions.tolist(), self.right.fields(numbers[positions]), strict=True):
            sample = samples[position]
            conflicts = [] if self.replace else sorted(fields.keys() & sample.keys())
            if conflicts:
                error = DuplicateField(
                    f'both sides have the field "{conflicts[0]}".',
                    url=sample["__url__"],
                    key=sample["__key__"],
                    hint="`replace` takes the new field; `prefix` renames the new fields.",
                )
                samples[position] = sample | {"__error__": error}
            else:
                sample.update(fields)
        return samples

    def inputs_of(self, shard: OutputShard) -> list[tuple[ShardSet, int]]:
        """Return the shards of both sides; matches may come from any shard of the other side."""
        return [*super().inputs_of(shard), *self.right.inputs()]

    def samples(self, shard: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        """Yield the samples of a shard, with the fields selected after joining."""
        samples = self._cut(self._counted(shard, tally))
        return samples if tally is None else tally.count_complete(samples)

    def _cut(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            yield from [sample] if "__error__" in sample else self.select.cut([sample])


def _without_conflicts(run: Run, samples: Iterator[Sample], outcome: Outcome) -> Iterator[list[Sample]]:
    for sample in samples:
        conflict = "__error__" in sample
        if conflict:
            run.handle(sample["__error__"], outcome)
        yield [] if conflict else [sample]


def _no_match(keys: Sequence[str], right: Source, url: str) -> JobError:
    others = list(itertools.islice(right.keys(), _EXAMPLES))
    shown = [", ".join(map(repr, some[:_EXAMPLES])) or "no keys" for some in (keys, others)]
    return JobError(
        f"no key matches: the samples have {shown[0]}, this has {shown[1]}.",
        url=url,
        hint="`key`, if another column of the table has the keys; keys are compared as text.",
    )


def _mark_used(numbers: Iterator[int], used: NDArray[np.bool_]) -> Iterator[int]:
    for number in numbers:
        if number >= 0:
            used[number] = True
        yield number
