"""Find near duplicates by vectors or texts, and write the keys of the samples that stay."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Unpack

import numpy as np

from tarmac.deduplicating.groups import Groups, decide
from tarmac.deduplicating.options import Keep, Options
from tarmac.deduplicating.pairs import MOST, Pairs, read_facts, read_pairs, write_pairs
from tarmac.deduplicating.record import Record
from tarmac.deduplicating.report import DedupReport
from tarmac.deduplicating.shards import Shards as ShardSource
from tarmac.deduplicating.sources import Directories, Source, open_directories
from tarmac.deduplicating.vectors import Several
from tarmac.embedding.embeddings import Embeddings
from tarmac.errors import JobMismatch, UsageError
from tarmac.indexing.manifest import Manifest
from tarmac.runtime.types import Integers
from tarmac.storage.urls import Shards
from tarmac.tools.closing import exists
from tarmac.tools.options import Access, AccessArgs, bundle, verb

LARGEST = 10
"""Groups that a report lists."""


@verb(AccessArgs, Access)
def dedup(
    sources: Shards | Manifest,
    output: str | os.PathLike[str],
    *,
    threshold: float | None = None,
    keep: Keep | None = None,
    score: str | None = None,
    against: Shards | Manifest | None = None,
    kind: str | None = None,
    text: str | None = None,
    shingle: str | None = None,
    max_pairs: int = MOST,
    overwrite: bool = False,
    progress: bool | None = None,
    **options: Unpack[AccessArgs],
) -> DedupReport:
    """Find samples that are nearly the same, and write the keys of those that stay to the file `output`.

    `sources` is a directory of embeddings, or of an index that `tarmac knn` built from them: samples are near each
    other if the cosine of their vectors is at least `threshold`, by default 0.96. All such pairs are found. `kind`
    chooses the vectors of a directory that has both: "img" or "text".

    With `text`, texts are compared: those of this column of the metadata of embeddings, or of this field of shards.
    Texts that differ only in case, white space and compatible characters are equal; others are near if the Jaccard
    similarity of their pieces is at least `threshold`, by default 0.8. `shingle` says what the pieces are: "chars:5",
    the default, or "words:3". Candidates are found by MinHash with 128 permutations, a pair at the threshold with a
    probability of at least 99.5 %.

    Of samples that are near each other, the `first` stays, the `largest` (most pixels, or the longest text), or that of
    the best `score`, a column of the metadata of embeddings, or one of shards such as json.quality. No two samples
    that stay are near each other, and each that is removed is near one that stays.

    Samples that are near one of `against` are removed, too, and those of `against` are never: so a training set is
    cleaned of its test set.

    The pairs are kept in `output`.dedup, a directory, and used again for another `threshold` that is at least as large.
    `max_pairs` limits them, as each takes some 60 bytes of memory. A killed run continues when it is run again.
    """
    choices = Options(threshold, keep, score, kind, text, shingle, max_pairs)
    record = Record.of(output)
    source = _open(sources, against, choices, bundle(Access, options), record)
    begin = time.perf_counter()
    with record.locked():
        facts = _facts(source, record, choices, overwrite=overwrite)
        reused = facts is not None and facts["threshold"] <= choices.least
        if facts is None or not reused:
            facts = _compute(source, record, choices, progress)
        pairs = read_pairs(record.pairs).at_least(choices.least)
        groups = decide(pairs, _preference(source), source.own)
        described = {
            "inputs": facts["inputs"],
            "threshold": choices.least,
            "keep": choices.preferred,
            "score": score,
        }
        record.write(source, groups, described)
    report = _report(source, groups, pairs, choices, record)
    report.reused, report.unusable, report.seconds = reused, facts["unusable"], time.perf_counter() - begin
    report.remarks = report.lines()
    return report


def _open(
    sources: Shards | Manifest,
    against: Shards | Manifest | None,
    options: Options,
    access: Access,
    record: Record,
) -> Source:
    """Return what the arguments name: directories of embeddings, or shards."""
    own = _directories(sources, options, "sources")
    if own:
        others = [] if against is None else _directories(against, options, "against")
        if against is not None and not others:
            what = "expected a directory of embeddings or of an index, as the source is."
            raise UsageError(what, field="against")
        return Directories(Several([*own, *others], len(own)), options)
    if options.text is None:
        what = "expected a directory of embeddings or of an index."
        hint = "tarmac embed SHARDS -o DIR, or `text` to compare the texts of shards."
        raise UsageError(what, field="sources", url=", ".join(_names(sources)[:1]) or None, hint=hint)
    inputs = access.inputs(sources)
    other = None if against is None else access.inputs(against)
    return ShardSource(inputs, other, options, access, record.samples)


def _directories(sources: Shards | Manifest, options: Options, field: str) -> list[Embeddings]:
    """Return the embeddings that an argument names; none if it names something else."""
    opened = [open_directories(name, options.kind, field) for name in _names(sources)]
    return [each for several in opened for each in several] if all(opened) else []


def _names(sources: Shards | Manifest) -> list[str]:
    """Return the paths that an argument lists; none if it has anything else."""
    names = [sources] if isinstance(sources, str | os.PathLike) else sources
    if not isinstance(names, list | tuple):
        return []
    return [os.fspath(name) for name in names if isinstance(name, str | os.PathLike)]


def _facts(source: Source, record: Record, options: Options, *, overwrite: bool) -> dict[str, Any] | None:
    """Return what is recorded of the pairs of the same inputs; None if there is nothing to use."""
    if overwrite:
        for path in (record.keys, record.groups, record.pairs, record.samples):
            if os.path.exists(path):
                os.unlink(path)
        return None
    facts = read_facts(record.pairs)
    if facts is not None and facts["inputs"] != source.inputs:
        before, now = facts.get("compared", {}), options.compared
        changes = [
            f"{name} {before[name]!r} -> {now[name]!r}" for name in before if before[name] != now[name]
        ]
        what = "from other samples, or the samples have changed since"
        what = f"with other options: {'; '.join(changes)}" if changes else what
        raise JobMismatch(f"the list of keys and its pairs were made {what}.", url=record.keys)
    if facts is None and os.path.exists(record.keys):
        raise exists(record.keys)
    return facts


def _compute(source: Source, record: Record, options: Options, progress: bool | None) -> dict[str, Any]:
    """Compare all samples, and record the pairs."""
    pairs, unusable = source.pairs(record.work, progress)
    facts = {
        "inputs": source.inputs,
        "compared": options.compared,
        "threshold": options.least,
        "unusable": unusable,
    }
    write_pairs(record.pairs, pairs, facts)
    shutil.rmtree(record.work, ignore_errors=True)
    return facts


def _preference(source: Source) -> Integers:
    """Return the rank of each sample: the one of the largest value first, of equal ones the first."""
    values = source.values()
    rank = np.arange(source.count)
    if values is not None:
        order = np.argsort(-np.nan_to_num(values, nan=-np.inf, posinf=np.inf, neginf=-np.inf), kind="stable")
        rank[order] = np.arange(source.own)
    return rank


def _report(source: Source, groups: Groups, pairs: Pairs, options: Options, record: Record) -> DedupReport:
    stays = groups.stays[: source.own]
    removed = np.flatnonzero(~stays)
    exact = int(groups.exact.sum())
    report = DedupReport(
        "dedup", units=1, done=1, read=source.own, written=int(stays.sum()), dropped=len(removed)
    )
    report.threshold, report.output = options.least, record.keys
    report.exact, report.near = exact, len(removed) - exact
    report.leaked = int(np.sum(groups.kept[removed] >= source.own))
    report.pairs = len(pairs)
    members = np.flatnonzero(groups.group >= 0)
    sizes = np.bincount(groups.group[members])
    stay = np.bincount(groups.group[members], weights=groups.stays[members]).astype(np.int64)
    report.groups = len(sizes)
    firsts = members[np.unique(groups.group[members], return_index=True)[1]]
    largest = np.argsort(-sizes, kind="stable")[:LARGEST]
    report.largest_groups = [
        {"key": key, "samples": int(sizes[number]), "stay": int(stay[number])}
        for key, number in zip(source.keys(firsts[largest]), largest.tolist(), strict=True)
    ]
    return report
