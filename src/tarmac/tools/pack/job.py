"""Pack sources into shards: the job."""

from __future__ import annotations

import itertools
import marshal
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import xxhash

from tarmac.display import identity
from tarmac.errors import BadName, DuplicateField, JobError, MissingField, TarmacError, UrlError, UsageError
from tarmac.jobs.statuses import details_of
from tarmac.jobs.task import Outcome, Status, Unit
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import Splitter, check_field, check_key, first_dot
from tarmac.samples.splits import key_hasher, split_bounds
from tarmac.storage import is_local
from tarmac.storage.local import local_path
from tarmac.tools.closing import closing_of
from tarmac.tools.content import Content
from tarmac.tools.output import Output, ShardTask, check_splits, fields_of, same_name, write_shard
from tarmac.tools.pack.sources.files import file_stat, full_stat
from tarmac.tools.pack.sources.source import UNKNOWN, FileStats, Location, Skipped, Source, load_each
from tarmac.tools.select import Select, missing_fields, required_fields

Row = tuple[int, str, Location]
"""A planned sample: the number of its source, its key, and its location in the source."""


@dataclass(frozen=True)
class PackOptions:
    """Which samples are packed, and in which order."""

    shuffle: bool = False
    seed: int = 0
    select: Select = field(default_factory=Select)
    """Its fields and splits apply."""
    require: Collection[str] = ()
    on_error: Literal["abort", "skip"] = "abort"
    split_name: Splitter = first_dot
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the result depends on, for the ledger."""

    def __post_init__(self) -> None:
        _ = self.required

    @cached_property
    def required(self) -> frozenset[str]:
        """The required fields in lower case, or their alternatives."""
        return required_fields(self.require)

    @cached_property
    def needed(self) -> frozenset[str]:
        """The fields that a sample must have: those that are required or selected."""
        rule = self.select.rule
        selected = () if rule is None or rule.missing == "skip" else rule.kept
        return self.required | {"|".join(names) for _, names in selected}

    def choose(self, sample: Sample) -> Sample | None:
        """Return a sample with the selected fields; None if it lacks one and is to be skipped."""
        if self.select.rule is None:
            return sample
        lowered = {name.lower(): value for name, value in sample.items()}
        if len(lowered) != len(sample):
            raise DuplicateField("fields differ only in case.", key=sample["__key__"])
        return self.select.rule(lowered)

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for the ledger."""
        options = self.select.options() | {"require": sorted(self.required)}
        options |= {"seed": self.seed} if self.shuffle else {}
        return {name: value for name, value in options.items() if value or name == "seed"} | self.facts


@dataclass
class _Plan:
    """All samples to pack."""

    rows: dict[str, list[Row]]
    """The samples of each split."""
    sizes: dict[str, list[int]]
    skipped: Skipped
    left_out: int = 0
    """Number of samples in other splits than the selected one."""

    @property
    def samples(self) -> int:
        return sum(map(len, self.rows.values()))


@dataclass
class PackJob(ShardTask):
    """Each unit is a shard, with the list of its samples."""

    sources: list[Source]
    output: Output
    pack: PackOptions = field(default_factory=PackOptions)
    verb = "pack"

    def __post_init__(self) -> None:
        pattern = self.output.pattern
        if self.output.by_shard:
            raise UsageError(
                "{name} is not supported by pack, because sources are not shards.",
                url=pattern,
                hint="x-{i:06d}.tar",
            )
        check_splits(pattern, self.pack.select.shares, self.pack.select.only)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "planned"}

    def options(self) -> dict[str, Any]:
        sources = [[source.format, identity(source.url)] for source in self.sources]
        options = {"sources": sources, "samples": self.planned.samples} | self.output.options()
        return options | self.pack.options()

    def begin(self, units: Sequence[Unit]) -> None:
        self.output.check_new(self.writes(units))
        url, text = self._classes()
        if text and not self.output.overwrite and _content(url) not in (None, text):
            hint = "another name, or `overwrite` to replace it."
            raise UsageError("the existing file lists different classes.", url=url, hint=hint)

    @cached_property
    def planned(self) -> _Plan:
        """All samples, in the order in which they are packed."""
        skipped = Skipped()
        rows: list[Row] = []
        sizes: list[int] = []
        for number, source in enumerate(self.sources):
            items, first = list(source.items(skipped)), len(rows)
            rows += [
                (number, f"{index:09d}" if key is None else key, location)
                for index, (key, _, location) in enumerate(items, first)
            ]
            sizes += [size for _, size, _ in items]
        if not rows:
            because = f" Skipped: {skipped}." if skipped else ""
            raise UrlError(f"no samples were found.{because}", url=self.sources[0].url)
        self._check(rows)
        if self.pack.shuffle:
            order = _shuffled(len(rows), self.pack.seed)
            rows, sizes = [rows[index] for index in order], [sizes[index] for index in order]
        if self.pack.select.shares:
            return self._split(rows, sizes, skipped)
        return _Plan({"": rows}, {"": sizes}, skipped)

    def _check(self, rows: list[Row]) -> None:
        """Raise before anything is written if keys repeat or required fields are missing."""
        output, required = self.output, self.pack.needed
        renumbered = output.rekey and output.key("key", 0) != output.key("key", 1)
        unique = len(self.sources) == 1 and self.sources[0].unique_keys
        if not (unique or renumbered):
            keys: set[str] = set()
            for number, key, _ in rows:
                if key in keys:
                    raise BadName(
                        "another sample has the same key.",
                        url=self.sources[number].url,
                        key=key,
                        hint="`rekey` '{i:09d}', another `key` column, or one source at a time.",
                    )
                keys.add(key)
        if required and self.pack.on_error == "abort":
            for number, key, location in rows:
                names = self.sources[number].field_names(location)
                if names is None:
                    break
                if missing := missing_fields(required, names):
                    raise lacks_fields(missing, url=self.sources[number].url, key=key)

    def _split(self, rows: list[Row], sizes: list[int], skipped: Skipped) -> _Plan:
        select = self.pack.select
        bounds = split_bounds(select.shares)
        if select.only:
            bounds = {select.only: bounds[select.only]}
        plan = _Plan({name: [] for name in bounds}, {name: [] for name in bounds}, skipped)
        hash_key = key_hasher()
        for row, size in zip(rows, sizes, strict=True):
            value = hash_key(row[1])
            for name, (low, high) in bounds.items():
                if low <= value < high:
                    plan.rows[name].append(row)
                    plan.sizes[name].append(size)
                    break
            else:
                plan.left_out += 1
        if not plan.samples:
            raise JobError(f"the split {select.only!r} has none of the {len(rows)} samples.")
        return plan

    def plan(self) -> Iterator[Unit]:
        plan = self.planned
        for split, rows in plan.rows.items():
            edges = _edges(self.output, plan.sizes[split])
            if len(edges) > 2 and not self.output.numbered:
                raise same_name(self.output.pattern)
            for number, (start, stop) in enumerate(itertools.pairwise(edges)):
                yield Unit(self.output.name(number, split=split), (start, rows[start:stop]))

    def inputs(self, unit: Unit) -> str:
        rows = unit.content[1]
        return self._fingerprint(rows, self._source_statuses(), self._stats(rows))

    def earlier_inputs(self, unit: Unit) -> str:
        rows = unit.content[1]
        files = (file for number, _, location in rows for file in self.sources[number].files(location))
        stats = {file[1]: file_stat(file[1]) for file in files if file[3] == UNKNOWN}
        versions = [source.fingerprint() for source in self.sources]
        return _hash((versions, list(rows), list(stats.values())))

    def statuses(self, unit: Unit) -> dict[str, Status]:
        return self._source_statuses() | _by_name(self._stats(unit.content[1]))

    def content(self, unit: Unit) -> str:
        content = Content()
        for _ in content.over(self.samples(unit.content[1], Outcome(), {})):
            pass
        return str(content)

    def _source_statuses(self) -> dict[str, Status]:
        return {url: status for source in self.sources for url, status in source.statuses().items()}

    def _fingerprint(self, rows: Sequence[Row], sources: dict[str, Status], stats: FileStats) -> str:
        """Return a hash of the locations of samples, and of their files as they are or were when read."""
        return _hash((list(sources.items()), list(rows), list(stats.values())))

    def _stats(self, rows: Sequence[Row]) -> FileStats:
        """Return what reading these samples would record, in the same order."""
        files = (file for number, _, location in rows for file in self.sources[number].files(location))
        return {file[1]: full_stat(file[1]) for file in files if type(file[3]) is int}

    def run(self, unit: Unit) -> Outcome:
        start, rows = unit.content
        outcome, stats, content = Outcome(), FileStats(), Content()
        sources, started = self._source_statuses(), time.time_ns()
        samples = content.over(self.samples(rows, outcome, stats))
        write_shard(self.output, unit.name, samples, first=start, outcome=outcome)
        # Some files of failed samples were not read.
        stats = self._stats(rows) | stats if outcome.failed else stats
        outcome.inputs, outcome.content = self._fingerprint(rows, sources, stats), str(content)
        outcome.details |= details_of(sources | _by_name(stats), started)
        return outcome

    def samples(self, rows: Sequence[Row], outcome: Outcome, stats: FileStats) -> Iterator[Sample]:
        """Read samples; count those that fail, or raise."""
        required, skip = self.pack.required, self.pack.on_error == "skip"
        with ExitStack() as stack:
            used = sorted({row[0] for row in rows})
            loads = {
                number: stack.enter_context(
                    self.sources[number].opened([row[2] for row in rows if row[0] == number], stats)
                )
                for number in used
            }
            if len(used) == 1 and not skip and not required and self.pack.select.rule is None:
                outcome.read += len(rows)
                yield from load_each(loads[used[0]], (row[1:] for row in rows))
                return
            for number, key, location in rows:
                outcome.read += 1
                try:
                    sample = loads[number](key, location)
                    names = {name.lower() for name in sample} if required else set()
                    if missing := missing_fields(required, names):
                        raise lacks_fields(missing, skip, url=self.sources[number].url, key=key)
                    chosen = self.pack.choose(sample)
                    if skip and chosen is not None:
                        check_sample(chosen, self.pack.split_name)
                except TarmacError as error:
                    if not skip:
                        raise
                    outcome.fail(str(error.at(key=key)))
                else:
                    if chosen is None:
                        outcome.dropped += 1
                    else:
                        yield chosen

    def ending(self) -> dict[str, Any]:
        url, text = self._classes()
        return closing_of(
            self.output.manifest, overwrite=self.output.overwrite, classes=url, class_names=text
        )

    @property
    def classes_url(self) -> str:
        """The location of the list of class names; empty without classes."""
        url, text = self._classes()
        return url if text else ""

    def _classes(self) -> tuple[str, bytes]:
        """Return the location and the content of the list of class names; no content without classes."""
        lists = [list(source.classes) for source in self.sources if source.classes is not None]
        if any(classes != lists[0] for classes in lists):
            raise UsageError("the folders have different classes, so their numbers would differ, too.")
        fixed = self.output.pattern.partition("{")[0].partition("%")[0]
        directory, slash, name = fixed.rpartition("/")
        text = "".join(f"{name}\n" for name in lists[0]).encode("utf-8", "surrogateescape") if lists else b""
        shared = f"{directory}{slash}classes.txt"
        stem = name.partition(".tar")[0].rstrip("-_.")
        if (
            not stem or _content(shared) == text
        ):  # a list for the whole directory, as earlier versions wrote it
            return shared, text
        return f"{directory}{slash}{stem}.classes.txt", text


def _hash(facts: Any) -> str:
    # Version 2 of the format gives equal values equal bytes: it has no references between objects.
    return xxhash.xxh3_64_hexdigest(marshal.dumps(facts, 2))


def _by_name(stats: FileStats) -> dict[str, Status]:
    return {os.fsdecode(path): list(stat) for path, stat in stats.items()}


def _content(url: str) -> bytes | None:
    """Return the content of a local file that exists."""
    if not is_local(url) or not os.path.isfile(local_path(url)):
        return None
    with open(local_path(url), "rb") as file:
        return file.read()


def _shuffled(size: int, seed: int) -> list[int]:
    import numpy as np

    from tarmac.exact.order.bijection import permute
    from tarmac.runtime.seeds import make_seed

    numbers: list[int] = permute(np.arange(size), size, make_seed("pack", seed)).tolist()
    return numbers


def _edges(output: Output, sizes: list[int]) -> list[int]:
    """Return where shards begin and end."""
    total = len(sizes)
    if not total:
        return [0]
    if output.max_bytes is None:
        return [*range(0, total, output.max_samples or total), total]
    edges, count, size = [0], 0, 0
    for index, coming in enumerate(sizes):
        if output.is_full(count, size, coming):
            edges.append(index)
            count = size = 0
        count, size = count + 1, size + coming
    return [*edges, total]


def check_sample(sample: Sample, split_name: Splitter = first_dot) -> None:
    """Raise if a writer would reject the sample."""
    key = check_key(sample["__key__"], split_name)
    names = [name for name in fields_of(sample) if check_field(name, key, split_name)]
    if not names:
        raise MissingField("the sample has no fields.", key=key)
    if len({name.lower() for name in names}) != len(names):
        raise DuplicateField("fields differ only in case.", key=key)


def lacks_fields(names: Collection[str], skip: bool = False, **location: Any) -> MissingField:
    """Return the error for a sample without required fields; `skip` is whether it is skipped already."""
    hint = None if skip else '`on_error` "skip" skips such samples.'
    return MissingField(f"the sample has no {', '.join(sorted(names))}.", hint=hint, **location)
