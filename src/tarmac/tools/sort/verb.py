"""Sort samples by key, by a value, or at random, in bounded memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Unpack

import numpy as np

from tarmac.errors import BadName, MissingField, SampleError, UsageError
from tarmac.exact.dataset import Dataset
from tarmac.indexing.manifest import Manifest
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.samples.naming import plain_key
from tarmac.storage.urls import Shards
from tarmac.tools.gather import Gathered, gather
from tarmac.tools.options import Access, RewriteArgs, Run, bundle, verb
from tarmac.tools.order import Listed, Shuffled
from tarmac.tools.output import Output
from tarmac.tools.plan import IndexedSamples, OutputShard, Plan, selects_by_split
from tarmac.tools.rewrite import rewrite
from tarmac.tools.select import Select
from tarmac.tools.sort.collect import Collector
from tarmac.tools.sort.runs import Runs
from tarmac.tools.sort.sort_key import SortKey
from tarmac.tools.workdir import disk_errors, work_directory, write_integers

MIN_MEMORY = 1 << 20
BATCH = 8192
"""Samples fetched at a time: more of them visit each shard less often."""


@dataclass
class _Losses(Outcome):
    """Samples that have no position in the order."""

    missing: int = 0
    duplicates: int = 0


@verb(RewriteArgs, Select, Output, Run, Access)
def sort(
    sources: Shards | Manifest,
    output: str | os.PathLike[str],
    *,
    by: str = "key",
    type: Literal["bytes", "int", "float"] | None = None,
    reverse: bool = False,
    unique: Literal["keep", "first", "error"] = "keep",
    seed: int = 0,
    memory: int = 256 << 20,
    tmp: str | os.PathLike[str] | None = None,
    **options: Unpack[RewriteArgs],
) -> Report:
    """Write the samples to new shards in sorted order.

    `by` is "key", "random" (with `seed`), a field (`cls`) or a column (`jpg.width`, `json.score`). By default
    numbers compare as numbers and everything else as bytes; `type` converts text first. The sort is stable:
    samples with equal values keep their order, and `unique` decides whether all or only the first of them are
    kept, or whether they are an error. Samples whose members are not contiguous are put together.

    `memory` bounds the bytes held while sorting; the rest is in a temporary directory in `tmp`. With
    `on_error` "skip", samples whose value does not convert are left out and counted as failed.
    """
    order = SortKey(by, type, reverse, unique, seed)
    if memory < MIN_MEMORY:
        raise UsageError(f"expected at least {MIN_MEMORY} bytes, got {memory}.", field="memory")
    select, run, access = bundle(Select, options), bundle(Run, options), bundle(Access, options)
    target = bundle(Output, {"pattern": os.fspath(output), **options})
    splits = selects_by_split(select, target)
    inputs, losses = access.inputs(sources), _Losses()
    access = access.shared(run, target)
    with work_directory("sort", tmp, run.shared_home(target)) as directory:
        shards = gather(inputs, directory, select, access, progress=run.progress, processes=run.workers)
        samples = {
            name: _sorted(shards, each, order, f"{directory}/order-{number}", memory, run, losses)
            for number, (name, each) in enumerate(splits.items())
        }
        balance = select.balance(shards.dataset(), sum(len(each.dataset) for each in samples.values()))
        plan = Plan(dict(samples), one_pass=target.stream, balance=balance)
        if not target.rekey:
            _check_keys(samples, target, shards)
        facts = {"select": select.options(), "sort": order.options(), "on_error": run.on_error}
        report = rewrite("sort", plan, target, run, options=facts, also_read=inputs.urls)
    if not run.dry_run:
        report.read += losses.failed + losses.missing + losses.duplicates
        report.dropped += losses.missing + losses.duplicates
    report.failed += losses.failed
    report.errors = [*losses.errors, *report.errors]
    report.notes = {"doubles_left_out": losses.duplicates}
    return report


def _sorted(
    shards: Gathered,
    select: Select,
    order: SortKey,
    directory: str,
    memory: int,
    run: Run,
    losses: _Losses,
) -> IndexedSamples:
    """Return the selected samples in order."""
    dataset = select.of_dataset(shards.dataset())
    if order.random:
        shuffled = Shuffled(len(dataset), order.seed)
        return IndexedSamples(dataset, select, shuffled, BATCH, shards.versions, shards.unpacked)
    with disk_errors(directory):
        os.makedirs(directory)
    memory = max(memory // 2, 1 << 16)  # half of it is for what is read and written meanwhile
    runs = Runs(directory, memory, reverse=order.reverse)
    for error in Collector(order, dataset, directory, memory, run.workers).into(runs):
        if isinstance(error, MissingField) and select.missing == "skip":
            losses.missing += 1
        else:
            run.handle(error, losses)
    path = f"{directory}.npy"
    write_integers(path, _unique(runs, order, dataset, shards, losses))
    return IndexedSamples(dataset, select, Listed(path), BATCH, shards.versions, shards.unpacked)


def _unique(runs: Runs, order: SortKey, dataset: Dataset, shards: Gathered, losses: _Losses) -> Iterator[int]:
    """Yield the numbers of the samples in order, without those that `unique` excludes."""
    if order.unique == "keep":
        yield from runs.numbers()
        return
    previous: bytes | None = None
    first = -1
    for value, number in runs:
        if value != previous:
            previous, first = value, number
            yield number
        elif order.unique == "first":
            losses.duplicates += 1
        else:
            raise SampleError(
                f'the sample has the same {order.by} as "{dataset.key(first)}" '
                f"of {shards.url(dataset, first)}.",
                url=shards.url(dataset, number),
                key=dataset.key(number),
                hint='`unique` "keep" keeps both, "first" keeps the first.',
            )


def _check_keys(sources: Mapping[str, IndexedSamples], output: Output, shards: Gathered) -> None:
    """Raise if two samples of an output shard have the same key, before anything is written."""
    for split, source in sources.items():
        for shard in [source.everything] if output.stream else source.shards(output, split):
            hashes = array("q")
            for _, keys in _keys(source, shard):
                hashes.extend(map(hash, keys))
            ordered = np.sort(np.array(hashes, np.int64))
            repeated = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
            seen: dict[str, int] = {}
            pairs = (
                (number, key) for batch in _keys(source, shard) for number, key in zip(*batch, strict=True)
            )
            for number, key in pairs if repeated else ():
                if hash(key) not in repeated:
                    continue
                if key in seen:
                    raise BadName(
                        f"a sample of {shards.url(source.dataset, seen[key])} has the same key; in one "
                        "shard they would be read as one sample.",
                        url=shards.url(source.dataset, number),
                        key=key,
                        hint='`rekey` "{i:09d}" makes new keys; tarmac sort --by key --unique first keeps one.',
                    )
                seen[key] = number


def _keys(source: IndexedSamples, shard: OutputShard) -> Iterator[tuple[list[int], list[str]]]:
    """Yield the numbers and the normalised keys of the samples of a shard, in batches."""
    for start in range(shard.start, shard.stop, BATCH):
        numbers = source.indices(start, min(start + BATCH, shard.stop))
        keys = source.dataset.keys(numbers)
        yield numbers.tolist(), [key if key[:2] != "./" else plain_key(key) for key in keys]
