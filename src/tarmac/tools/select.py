"""Which samples and which of their fields: what the Select flags mean, on every verb.

They act in this order: `slice_shard` on each shard; `keys`, `where` and `part` on each sample; `slice` on
what is left of all shards together; `fields` on what is in each sample.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import xxhash

from tarmac.errors import JobError, MissingField, UrlError
from tarmac.exact.dataset import Dataset
from tarmac.indexing.meta import Columns, MetaPlan, parse_meta
from tarmac.indexing.where import Condition, parse_where
from tarmac.limits import DEFAULT_LIMITS
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import plain_key
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import read_list
from tarmac.tools.chunks import chunks
from tarmac.tools.tally import Balance, Tally, some_of

__all__ = ["FieldRule", "parse_fields", "parse_part", "parse_slice", "read_keys", "Select"]

_SLICE = re.compile(r"\s*(-?\d*)\s*:\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?")
_AT_ONCE = 1000
"""Samples of a stream for which a condition is answered together, ..."""
_BYTES_AT_ONCE = 4 << 20
"""... unless they have so many bytes before: all of them are held until it is answered."""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """Which fields a sample keeps and what they are called: `img=jpg|png,cls,-json`."""

    kept: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """New name, and the old ones of which the first that is there is taken. None kept by name keeps all."""
    dropped: frozenset[str] = frozenset()
    missing: Literal["error", "skip"] = "error"

    def __call__(self, sample: Sample) -> Sample | None:
        """The sample with the fields it is to have; None if it lacks one and is to be passed over."""
        if not self.kept:
            return {name: value for name, value in sample.items() if name not in self.dropped}
        made: Sample = {name: sample[name] for name in ("__key__", "__url__") if name in sample}
        for new, old in self.kept:
            found = next((name for name in old if name in sample), None)
            if found is None:
                if self.missing == "skip":
                    return None
                url, key = sample.get("__url__"), sample.get("__key__")
                hint = "--missing skip leaves such samples out."
                raise MissingField(f"the sample has no {' or '.join(old)}.", url=url, key=key, hint=hint)
            made[new] = sample[found]
        return made


def parse_fields(text: str, missing: Literal["error", "skip"] = "error") -> FieldRule | None:
    """Understand `--fields`; None when there is nothing to do."""
    kept, dropped = [], set()
    for item in filter(None, (part.strip() for part in text.split(","))):
        if item.startswith("-"):
            dropped.add(item[1:].lower())
            continue
        new, equal, old = item.partition("=")
        names = tuple(name.strip().lower() for name in (old if equal else new).split("|"))
        if not new.strip() or not all(names) or (not equal and len(names) > 1):
            raise UrlError(f"--fields: {item!r} is none of `cls`, `img=jpg|png` and `-json`.")
        kept.append((new.strip(), names))
    if kept and dropped:
        raise UrlError("--fields names what to keep or, with -, what to drop, but not both.")
    if len({new for new, _ in kept}) != len(kept):
        raise UrlError("--fields gives the same name to two fields.")
    return FieldRule(tuple(kept), frozenset(dropped), missing) if kept or dropped else None


def parse_slice(text: str) -> slice:
    """Understand `a:b:c` as Python does; a number alone is that one sample."""
    if re.fullmatch(r"-?\d+", text.strip()):
        number = int(text)
        return slice(number, number + 1 or None)
    match = _SLICE.fullmatch(text)
    if match is None:
        raise UrlError(f"{text!r} is no slice; 100:200 and 1::10 are.")
    start, stop, step = (int(number) if number else None for number in match.groups())
    if step is not None and step < 1:
        raise UrlError("the step of a slice is at least 1; sort --reverse turns the order around.")
    return slice(start, stop, step)


def parse_part(text: str) -> dict[str, float]:
    """Understand `train=0.9,val=0.1`."""
    shares: dict[str, float] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, share = item.partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            raise UrlError(f"--part: {item!r} is no share; train=0.9,val=0.1 are.") from None
        if not name.strip().isidentifier():
            raise UrlError(f"--part: {name!r} cannot be the name of a part.")
    total = round(sum(shares.values()), 9)
    if not shares or min(shares.values()) <= 0 or total != 1:
        rest = "rest" if "rest" not in shares else "others"
        known = bool(shares) and min(shares.values()) > 0 and total < 1
        hint = f"--part {text.strip(' ,')},{rest}={1 - total:.9g}" if known else "--part train=0.9,val=0.1"
        what = f"--part {text}: shares must be positive and add up to 1, they add up to {total:.9g}."
        raise UrlError(what, hint=hint)
    return shares


def read_keys(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> frozenset[str]:
    """The keys that a file lists, one a line."""
    text = read_list(url, DEFAULT_LIMITS, storage).decode("utf-8", "surrogateescape")
    # Other characters that end a line for Python, U+2028 and the like, may be part of a key.
    return frozenset(filter(None, (line.removesuffix("\r") for line in text.split("\n"))))


@dataclass(frozen=True)
class Select:
    """The Select flags."""

    fields: str = ""
    missing: Literal["error", "skip"] = "error"
    where: str = ""
    keys: str = ""
    """A file that lists keys, one a line."""
    slice: str = ""
    slice_shard: str = ""
    part: str = ""
    """Shares of all samples, by a hash of the key: `train=0.9,val=0.1`."""
    only: str = ""
    """Of the parts, this one."""
    storage: StorageOptions = DEFAULT_STORAGE

    def __post_init__(self) -> None:
        _ = self.rule, self.condition, self.bounds  # so that a mistake is noticed before anything is done
        for text in filter(None, (self.slice, self.slice_shard)):
            parse_slice(text)

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger."""
        found = {name: value for name, value in asdict(self).items() if value and name != "storage"}
        if self.keys:
            listed = "\n".join(sorted(self.listed)).encode("utf-8", "surrogateescape")
            found["keys"] = f"{len(self.listed)} keys, {xxhash.xxh3_64_hexdigest(listed)}"
        return {name: value for name, value in found.items() if (name, value) != ("missing", "error")}

    @cached_property
    def rule(self) -> FieldRule | None:
        """What becomes of the fields of each sample."""
        return parse_fields(self.fields, self.missing)

    @cached_property
    def condition(self) -> Condition | None:
        """The condition of `where`."""
        return parse_where(self.where) if self.where else None

    @cached_property
    def listed(self) -> frozenset[str]:
        """The keys that are listed in the file."""
        return frozenset(map(plain_key, read_keys(self.keys, self.storage)))

    @cached_property
    def _spellings(self) -> frozenset[str]:
        """The keys that are listed, as shards may spell them."""
        return self.listed | {f"./{key}" for key in self.listed}

    @cached_property
    def shares(self) -> dict[str, float]:
        """The parts and their shares."""
        return parse_part(self.part) if self.part else {}

    @cached_property
    def bounds(self) -> tuple[int, int] | None:
        """From where to where the hash of a key lies if it is in the part that is wanted."""
        if not self.only:
            return None
        if self.only not in self.shares:
            raise UrlError(f"--only {self.only}: --part has {', '.join(self.shares) or 'no parts'}.")
        edges = [0.0, *itertools.accumulate(self.shares.values())]
        number = list(self.shares).index(self.only)
        low, high = (min(round(edge * 2**64), 2**64) for edge in edges[number : number + 2])
        return low, 2**64 if edges[number + 1] > 1 - 1e-9 else high

    @cached_property
    def meta(self) -> MetaPlan | None:
        """The columns that an index needs to answer `where`."""
        if self.condition is None:
            return None
        names = [name for name in self.condition.columns if name != "key" and not name.startswith("has:")]
        return parse_meta(names) if names else None

    # Of indexed shards

    def of_dataset(self, dataset: Dataset) -> Dataset:
        """The samples that are chosen, with all their fields."""
        if self.slice_shard:
            dataset = _sliced_shards(dataset, parse_slice(self.slice_shard))
        if self.keys:
            dataset = dataset.with_keys(self._spellings)
        if self.where:
            dataset = dataset.where(self.where)
        if self.only:
            dataset = getattr(dataset.split(salt="", **self.shares), self.only)
        return dataset[parse_slice(self.slice)] if self.slice else dataset

    # Of a stream

    def of_each(
        self, shards: Iterable[Iterable[Sample]], tally: Tally | None = None
    ) -> Iterator[Iterator[Sample]]:
        """Of each shard the samples that `slice_shard` chooses."""
        shards = shards if tally is None else map(tally.see, shards)
        if not self.slice_shard:
            return map(iter, shards)
        chosen = _forward(parse_slice(self.slice_shard))
        return (itertools.islice(shard, *chosen) for shard in shards)

    def of_stream(self, shards: Iterable[Iterable[Sample]], tally: Tally | None = None) -> Iterator[Sample]:
        """The samples that are chosen, shard after shard, with all their fields."""
        return self.of_all(itertools.chain.from_iterable(self.of_each(shards, tally)), tally)

    def of_all(self, samples: Iterable[Sample], tally: Tally | None = None) -> Iterator[Sample]:
        """Of the samples of all shards together those that are chosen, with all their fields."""
        tally = Tally() if tally is None else tally
        return tally.choose(self._of_all(samples, tally))

    def _of_all(self, samples: Iterable[Sample], tally: Tally) -> Iterator[Sample]:
        if self.keys:
            samples = _with_keys(samples, self.listed, tally)
        if self.condition is not None:
            samples = _fulfilling(samples, self.condition, self.meta, tally)
        if self.bounds is not None:
            samples = _in_part(samples, self.bounds)
        return itertools.islice(samples, *_forward(parse_slice(self.slice))) if self.slice else iter(samples)

    def cut(self, samples: Iterable[Sample], tally: Tally | None = None) -> Iterator[Sample]:
        """Samples with the fields they are to have."""
        left = iter(samples) if self.rule is None else filter(None, map(self.rule, samples))
        return left if tally is None else tally.let_pass(left)

    # What was chosen

    def balance(self, whole: Dataset, chosen: int) -> Balance:
        """What is left out of all samples, and what to say about it; none chosen is an error."""
        found = Tally(len(whole), chosen)
        if self.keys:
            found.keys = set(map(plain_key, whole.with_keys(self._spellings).keys()))
            found.example = next(whole.keys(), "")
        return Balance(found.seen - chosen, self.judged(found))

    def judged(self, tally: Tally, *, empty: bool = False) -> list[str]:
        """What to say about a selection, at its end; one that chose nothing is an error.

        `empty` allows that, but not what has a slip in it: keys and columns that nowhere exist.
        """
        unknown = self.listed - tally.keys if self.keys else frozenset()
        if tally.seen and not tally.chosen:
            if unknown and not tally.keys:
                what = f"none of the {len(unknown)} keys that are listed is there"
                hint = f"keys as tarmac show prints them, such as {tally.example!r}."
                raise UrlError(f"{what}: {some_of(unknown)}.", url=self.keys, hint=hint)
            if self.condition is not None:
                found = self.condition.nowhere(tally.columns, tally.seen, tally.names)
                problem = found if tally.columns else None  # an index has looked for itself
                if problem is not None:
                    raise problem
            if empty:
                return []
            flags = ("where", "keys", "slice", "slice_shard", "part", "only")
            given = [
                f"--{name.replace('_', '-')} {getattr(self, name)}" for name in flags if getattr(self, name)
            ]
            raise JobError(f"the selection is empty: {' '.join(given)} chooses none of {tally.seen} samples.")
        return [f"{len(unknown)} keys of {self.keys} are not there: {some_of(unknown)}"] if unknown else []


def _forward(found: slice) -> tuple[int | None, int | None, int | None]:
    if (found.start or 0) < 0 or (found.stop or 0) < 0:
        raise UrlError("a stream has no end to count from; negative numbers need files that can be indexed.")
    return found.start, found.stop, found.step


def _sliced_shards(dataset: Dataset, chosen: slice) -> Dataset:
    ends = [0, *itertools.accumulate(dataset.lengths.tolist())]
    pieces = [dataset[begin:end][chosen] for begin, end in itertools.pairwise(ends)]
    return Dataset.of_parts([part for piece in pieces for part in piece.parts])


def _with_keys(samples: Iterable[Sample], listed: frozenset[str], tally: Tally) -> Iterator[Sample]:
    for sample in samples:
        if (key := plain_key(sample["__key__"])) in listed:
            tally.keys.add(key)
            yield sample


def _fulfilling(
    samples: Iterable[Sample], condition: Condition, plan: MetaPlan | None, tally: Tally
) -> Iterator[Sample]:
    import pyarrow as pa

    for some in chunks(samples, _AT_ONCE, _BYTES_AT_ONCE):
        columns = Columns(plan or MetaPlan())
        for sample in some:
            columns.add(
                {name: value for name, value in sample.items() if name[:2] != "__"}, sample["__key__"]
            )
        arrays = columns.arrays() | {"key": pa.array([_readable(sample["__key__"]) for sample in some])}
        for name in condition.columns:
            if name.startswith("has:"):
                arrays[name] = pa.array([name[4:] in sample for sample in some])
        for name in condition.compared:
            tally.columns[name] += len(some) - arrays[name].null_count
        mask = condition.mask(pa.table(arrays))
        yield from (sample for sample, true in zip(some, mask.tolist(), strict=True) if true)


def _readable(key: str) -> str:
    """A key as conditions see it, with an index or without: bytes that are not UTF-8 are written `\\xff`."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _in_part(samples: Iterable[Sample], bounds: tuple[int, int]) -> Iterator[Sample]:
    digest, seed = xxhash.xxh3_64_intdigest, xxhash.xxh3_64_intdigest(b"")
    low, high = bounds
    for sample in samples:
        if low <= digest(sample["__key__"].encode("utf-8", "surrogateescape"), seed) < high:
            yield sample
