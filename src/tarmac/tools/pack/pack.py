"""Make shards from what is not shards: files, folders of classes, recipes and tables."""

from __future__ import annotations

import gc
import itertools
import marshal
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import xxhash

from tarmac.display import identity
from tarmac.errors import BadName, DuplicateField, JobError, MissingField, TarmacError, UrlError
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import check_field, check_key
from tarmac.samples.splits import key_hasher, split_bounds
from tarmac.storage import WriteOptions, is_local, open_write
from tarmac.storage.local import local_path
from tarmac.tools.output import Output, fields_of, same_name, write_shard
from tarmac.tools.pack.sources import Skipped, Source, Where
from tarmac.tools.pack.sources.files import look_at
from tarmac.tools.pack.sources.imagefolder import ImageFolder
from tarmac.tools.pack.sources.kinds import Reading, make_sources
from tarmac.tools.pack.sources.source import UNSEEN, Seen, load_each
from tarmac.tools.rewrite import Run, run_writing
from tarmac.tools.rewrite_stream import rewrite_stream
from tarmac.tools.select import Select
from tarmac.tools.tally import Balance

__all__ = ["check_sample", "Making", "pack", "Pack", "Packed"]

Row = tuple[int, str, Where]
"""A planned sample: the number of its source, its key, and where it is in there."""
MAX_SAMPLES = 10_000
"""Samples of a shard, if the user says nothing about its size."""


@dataclass(frozen=True)
class Making:
    """How samples become shards, besides what the Write flags say."""

    shuffle: bool = False
    seed: int = 0
    part: str = ""
    only: str = ""
    require: frozenset[str] = frozenset()
    """Fields that every sample must have."""
    on_error: Literal["abort", "skip"] = "abort"
    shard_id: int = 0
    total_shards: int = 1
    """Make only the shards whose number leaves `shard_id` when divided by this."""

    def __post_init__(self) -> None:
        if not 0 <= self.shard_id < self.total_shards:
            raise UrlError(f"--shard-id {self.shard_id} is not one of 0 to {self.total_shards - 1}.")
        if self.only and not self.part:
            raise UrlError(f"--only {self.only}: --part has no parts.", hint="--part train=0.9,val=0.1")

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger."""
        found: dict[str, Any] = {"part": self.part, "only": self.only, "require": sorted(self.require)}
        found |= {"seed": self.seed} if self.shuffle else {}
        found |= {"of": [self.shard_id, self.total_shards]} if self.total_shards > 1 else {}
        return {name: value for name, value in found.items() if value or name == "seed"}

    @property
    def verb(self) -> str:
        """What the ledger is called: each of several invocations has its own."""
        return f"pack-{self.shard_id}-of-{self.total_shards}" if self.total_shards > 1 else "pack"


@dataclass
class Packed:
    """What packing did, and what was found and left out."""

    job: Report
    skipped: Skipped = field(default_factory=Skipped)


@dataclass
class _Plan:
    """Every sample of every shard."""

    rows: dict[str, list[Row]]
    """By part."""
    sizes: dict[str, list[int]]
    skipped: Skipped
    left_out: int = 0
    """Samples of other parts than the one that is wanted."""

    @property
    def samples(self) -> int:
        return sum(map(len, self.rows.values()))


@dataclass
class Pack(Task):
    """The job: each unit is a shard, with the list of its samples."""

    sources: list[Source]
    output: Output
    making: Making = field(default_factory=Making)
    reading: Reading = field(default_factory=Reading)
    verb = "pack"

    def __post_init__(self) -> None:
        pattern = self.output.pattern
        if self.output.by_shard:
            raise UrlError("there are no shards to take names from.", url=pattern, hint="x-{i:06d}.tar")
        if self.making.part and not self.making.only and "{part" not in pattern:
            raise UrlError("each part needs a name of its own.", url=pattern, hint="{part}-{i:06d}.tar")
        if self.making.total_shards > 1 and self.output.stream:
            raise UrlError("one stream has no shards to share: --shard-id needs x-{i:06d}.tar.")
        if self.making.total_shards > 1 and self.output.manifest:
            raise UrlError("--manifest needs all shards; make it with `tarmac index` when they are there.")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "planned"}

    def options(self) -> dict[str, Any]:
        sources = [[source.kind, identity(source.name)] for source in self.sources]
        found = {"sources": sources, "samples": self.planned.samples} | self.output.options()
        return found | self.making.options() | self.reading.options()

    def begin(self, units: Sequence[Unit]) -> None:
        self.output.check_new(self.writes(units))
        place, text = self._classes()
        if text and is_local(place) and not self.output.overwrite and os.path.exists(local_path(place)):
            with open(local_path(place), "rb") as file:
                if file.read() != text:
                    hint = "another directory, or --overwrite to replace it."
                    raise UrlError("this file lists other classes.", url=place, hint=hint)

    @cached_property
    def planned(self) -> _Plan:
        """All samples, in the order in which they are packed."""
        skipped = Skipped()
        rows: list[Row] = []
        sizes: list[int] = []
        for number, source in enumerate(self.sources):
            found, first = list(source.items(skipped)), len(rows)
            rows += [
                (number, f"{place:09d}" if key is None else key, where)
                for place, (key, _, where) in enumerate(found, first)
            ]
            sizes += [size for _, size, _ in found]
        if not rows:
            left_out = f" Left out: {skipped}." if skipped else ""
            raise UrlError(f"no sample was found.{left_out}", url=self.sources[0].name)
        self._check(rows)
        if self.making.shuffle:
            order = _shuffled(len(rows), self.making.seed)
            rows, sizes = [rows[place] for place in order], [sizes[place] for place in order]
        if self.making.part:
            return self._parted(rows, sizes, skipped)
        return _Plan({"": rows}, {"": sizes}, skipped)

    def _check(self, rows: list[Row]) -> None:
        """Refuse what cannot come to a good end before anything is written."""
        output = self.output
        renumbered = output.rekey and output.key("key", 0) != output.key("key", 1)
        keyed = any(source.kind not in ("dir", "imagefolder", "recipe", "lines") for source in self.sources)
        if (len(self.sources) > 1 or keyed) and not renumbered:
            seen: set[str] = set()
            for number, key, _ in rows:
                if key in seen:
                    hint = "--rekey '{i:09d}', another --key, or one source at a time."
                    raise BadName(
                        "another sample has the same key.", url=self.sources[number].name, key=key, hint=hint
                    )
                seen.add(key)
        if self.making.require and self.making.on_error == "abort":
            for number, key, where in rows:
                there = self.sources[number].has(where)
                if there is None:
                    break
                if not self.making.require <= there:
                    raise self._lacking(there, number, key)

    def _lacking(self, there: set[str], source: int, key: str) -> MissingField:
        lacking = ", ".join(sorted(self.making.require - there))
        hint = "--on-error skip leaves such samples out."
        return MissingField(
            f"the sample has no {lacking}.", url=self.sources[source].name, key=key, hint=hint
        )

    def _parted(self, rows: list[Row], sizes: list[int], skipped: Skipped) -> _Plan:
        making = self.making
        bounds = split_bounds(Select(part=making.part, only=making.only).shares)
        names = [making.only] if making.only else list(bounds)
        plan = _Plan({name: [] for name in names}, {name: [] for name in names}, skipped)
        hash_key = key_hasher()
        for row, size in zip(rows, sizes, strict=True):
            place = hash_key(row[1])
            for name in names:
                if bounds[name][0] <= place < bounds[name][1]:
                    plan.rows[name].append(row)
                    plan.sizes[name].append(size)
                    break
            else:
                plan.left_out += 1
        if not plan.samples:
            raise JobError(f"--part {making.part} --only {making.only} chooses none of {len(rows)} samples.")
        return plan

    def plan(self) -> Iterator[Unit]:
        plan, making = self.planned, self.making
        for part, rows in plan.rows.items():
            edges = _edges(self.output, plan.sizes[part])
            if len(edges) > 2 and not self.output.numbered:
                raise same_name(self.output.pattern)
            for number, (start, stop) in enumerate(itertools.pairwise(edges)):
                if number % making.total_shards != making.shard_id:
                    continue
                yield Unit(self.output.name(number, part=part), (start, rows[start:stop]))

    def inputs(self, unit: Unit) -> str:
        rows = unit.content[1]
        return self._fingerprint(rows, self._look_at(rows))

    def _fingerprint(self, rows: Sequence[Row], seen: Seen) -> str:
        """What changes when samples do: where they are, and what files are like, or were when read."""
        marks = [source.fingerprint() for source in self.sources]
        # Of the same values the same bytes: version 2 knows no references between objects.
        return xxhash.xxh3_64_hexdigest(marshal.dumps((marks, list(rows), list(seen.values())), 2))

    def _look_at(self, rows: Sequence[Row]) -> Seen:
        """What reading these samples would see, in the same order."""
        files = (file for number, _, where in rows for file in self.sources[number].files(where))
        return {file[1]: look_at(file[1]) for file in files if file[3] == UNSEEN}

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        return self.output.names(unit.name for unit in units)

    def run(self, unit: Unit) -> Outcome:
        start, rows = unit.content
        outcome, seen = Outcome(), Seen()
        samples = self.samples(rows, outcome, seen)
        write_shard(self.output, unit.name, samples, first=start, outcome=outcome)
        # Of samples that could not be read some files were not seen.
        outcome.inputs = self._fingerprint(rows, self._look_at(rows) | seen if outcome.failed else seen)
        return outcome

    def samples(self, rows: Sequence[Row], outcome: Outcome, seen: Seen) -> Iterator[Sample]:
        """Read samples; what is lost is an error, or counted."""
        with ExitStack() as stack:
            used = sorted({row[0] for row in rows})
            loads = {
                number: stack.enter_context(
                    self.sources[number].opened(
                        [where for source, _, where in rows if source == number], seen
                    )
                )
                for number in used
            }
            if len(used) == 1 and self.making.on_error == "abort" and not self.making.require:
                outcome.read += len(rows)
                yield from load_each(loads[used[0]], (row[1:] for row in rows))
                return
            for number, key, where in rows:
                outcome.read += 1
                try:
                    sample = loads[number](key, where)
                    if self.making.require:
                        there = {name.lower() for name in sample}
                        if not self.making.require <= there:
                            raise self._lacking(there, number, key)
                    if self.making.on_error == "skip":
                        check_sample(sample)
                except TarmacError as error:
                    if self.making.on_error == "abort":
                        raise
                    outcome.fail(str(error.at(key=key)))
                else:
                    yield sample

    def commit(self, unit: Unit, outcome: Outcome) -> None:
        self.output.run_post_cmd(outcome)

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        self.output.finish(outcomes)
        place, text = self._classes()
        if text:
            sink = open_write(place, self.output.storage, WriteOptions(overwrite=True))
            sink.write(text)
            sink.commit()

    def _classes(self) -> tuple[str, bytes]:
        """Where the names of the classes go, one a line, and what they are."""
        found = [source.classes for source in self.sources if isinstance(source, ImageFolder)]
        if any(classes != found[0] for classes in found):
            raise UrlError("the folders have different classes, so their numbers would differ, too.")
        pattern = self.output.pattern
        fixed = pattern.partition("{")[0].partition("%")[0]
        directory, slash, _ = fixed.rpartition("/")
        text = "".join(f"{name}\n" for name in found[0]) if found else ""
        return f"{directory}{slash}classes.txt", text.encode("utf-8", "surrogateescape")


def _shuffled(size: int, seed: int) -> list[int]:
    import numpy as np

    from tarmac.exact.order.bijection import permute
    from tarmac.runtime.seeds import make_seed

    numbers: list[int] = permute(np.arange(size), size, make_seed("pack", seed)).tolist()
    return numbers


def _edges(output: Output, sizes: list[int]) -> list[int]:
    """Where one shard ends and the next begins."""
    total = len(sizes)
    if not total:
        return [0]
    if output.max_bytes is None:
        return [*range(0, total, output.max_samples or total), total]
    edges, count, size = [0], 0, 0
    for place, coming in enumerate(sizes):
        if output.is_full(count, size, coming):
            edges.append(place)
            count = size = 0
        count, size = count + 1, size + coming
    return [*edges, total]


def check_sample(sample: Sample) -> None:
    """Refuse a sample that cannot be written, as a writer would."""
    key = check_key(sample["__key__"])
    names = [name for name in fields_of(sample) if check_field(name, key)]
    if not names:
        raise MissingField("a sample needs at least one field; this one would vanish.", key=key)
    if len({name.lower() for name in names}) != len(names):
        raise DuplicateField("fields differ only in case.", key=key)


def with_default_size(output: Output) -> Output:
    """Shards of a bearable size where there may be several and nobody has said how large."""
    if output.numbered and not output.stream and output.max_samples is None and output.max_bytes is None:
        return replace(output, max_samples=MAX_SAMPLES)
    return output


@contextmanager
def _not_collecting() -> Iterator[None]:
    """A plan is millions of small tuples that all stay: looking for garbage among them takes too long."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _refuse_own_output(urls: Sequence[str], output: Output) -> None:
    """What is written must not be found by the next run of the same command as something to pack."""
    if not is_local(output.pattern) or output.stream:
        return
    target = os.path.realpath(os.path.dirname(local_path(output.name(0, "x", "x"))) or ".")
    for url in urls:
        if is_local(url) and os.path.isdir(local_path(url)):
            root = os.path.realpath(local_path(url))
            if target == root or target.startswith(root.rstrip("/") + "/"):
                hint = "a directory beside it, such as -o ../x-{i:06d}.tar."
                raise UrlError(f"the shards would be inside of {url}, and be packed, too.", hint=hint)


def pack(
    urls: Sequence[str],
    output: Output,
    run: Run,
    *,
    making: Making | None = None,
    reading: Reading | None = None,
) -> Packed:
    """Pack sources into shards. Running it again makes what is missing; what was made is not made again."""
    making, reading = making or Making(), reading or Reading()
    output = with_default_size(output)
    _refuse_own_output(urls, output)
    with _not_collecting(), tempfile.TemporaryDirectory(prefix="tarmac-pack-") as directory:
        sources = make_sources(urls, reading, directory, output.max_bytes is not None)
        task = Pack(sources, output, making, reading)
        if output.stream:
            rows = list(itertools.chain.from_iterable(task.planned.rows.values()))
            job = rewrite_stream(
                "pack", iter(()), output, lambda _, outcome: task.samples(rows, outcome, {}), run=run
            )
        else:
            job = run_writing(task, output, run, making.verb)
        if not run.dry:
            Balance(task.planned.left_out).book(job)
        return Packed(job, task.planned.skipped)
