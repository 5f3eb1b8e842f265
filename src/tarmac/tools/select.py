"""Select samples and fields: the Select arguments of every verb."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import xxhash

from tarmac.display import examples
from tarmac.errors import JobError, MissingField, UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.selection import by_numbers
from tarmac.indexing.meta import Columns, MetaPlan, meta_plan, names_in
from tarmac.indexing.where import Condition, parse_where
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import plain_key
from tarmac.samples.splits import key_hasher, split_bounds
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import read_keys, reject_command
from tarmac.tools.chunks import chunks
from tarmac.tools.output import fields_of
from tarmac.tools.tally import Balance, Tally

Slice = slice
Fields = Sequence[str] | Mapping[str, str | Sequence[str]]
_CHUNK = 1000
"""Samples of a stream for which a condition is evaluated at a time, ..."""
_CHUNK_BYTES = 4 << 20
"""... and at most about this many bytes of them, since they are all held meanwhile."""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The fields that a sample keeps, and their names."""

    kept: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Pairs of a new name and the old names of which the first existing one is taken. Empty keeps all.

    A new name with a bar, `jpg|png`, stands for the name of the field that is taken.
    """
    dropped: frozenset[str] = frozenset()
    missing: Literal["error", "skip"] = "error"

    def __call__(self, sample: Sample) -> Sample | None:
        """Return the sample with the selected fields; None if it lacks one and is to be skipped."""
        if not self.kept:
            return {name: value for name, value in sample.items() if name not in self.dropped}
        result: Sample = {name: sample[name] for name in ("__key__", "__url__") if name in sample}
        for new, alternatives in self.kept:
            old = next((name for name in alternatives if name in sample), None)
            if old is None:
                if self.missing == "skip":
                    return None
                url, key = sample.get("__url__"), sample.get("__key__")
                what = f"the sample has no field {' or '.join(alternatives)}."
                raise MissingField(what, url=url, key=key, hint='`missing`="skip" skips such samples.')
            result[old if "|" in new else new] = sample[old]
        return result

    @property
    def names(self) -> list[str]:
        """The names of the fields that are kept."""
        return [name for new, _ in self.kept for name in new.split("|")]


def required_fields(names: Collection[str]) -> frozenset[str]:
    """Return the fields that samples must have, in lower case: `jpg`, or alternatives, `jpg|png` or `img=jpg|png`."""
    if isinstance(names, str):
        raise UsageError("expected a list of field names, got a string.", field="require")
    fields = frozenset(name.lower().rpartition("=")[2] for name in names)
    for field in fields:
        if not all(map(str.strip, field.split("|"))):
            raise UsageError(f"expected names such as jpg|png, got {field!r}.", field="require")
    return fields


def missing_fields(required: Collection[str], names: Collection[str]) -> list[str]:
    """Return those of the required fields of which a sample has no alternative."""
    return sorted(each for each in required if not any(name in names for name in each.split("|")))


def _field_rule(
    fields: Fields | None, dropped: Collection[str], missing: Literal["error", "skip"]
) -> FieldRule | None:
    if missing not in ("error", "skip"):
        raise UsageError(f"expected 'error' or 'skip', got {missing!r}.", field="missing")
    if isinstance(fields, str) or isinstance(dropped, str):
        raise UsageError(
            "expected a list of field names, got a string.", field="fields" if fields else "drop_fields"
        )
    if not fields and not dropped:
        return None
    if fields and dropped:
        raise UsageError("`fields` and `drop_fields` are mutually exclusive.")
    pairs = fields.items() if isinstance(fields, Mapping) else [(name, name) for name in fields or ()]
    kept = []
    for new, old in pairs:
        names = tuple(
            name.strip().lower()
            for each in ([old] if isinstance(old, str) else old)
            for name in each.split("|")
        )
        if not new or not names or not all(names):
            raise UsageError(f"invalid field {new!r}: expected names, got {old!r}.", field="fields")
        kept.append((new, names))
    if len({new for new, _ in kept}) != len(kept):
        raise UsageError("two fields have the same name.", field="fields")
    return FieldRule(tuple(kept), frozenset(name.lower() for name in dropped), missing)


def _checked_slice(value: slice | None, field: str) -> None:
    if value is None:
        return
    if not isinstance(value, slice):
        raise UsageError(f"expected a slice, got {value!r}.", field=field)
    if value.step is not None and value.step < 1:
        raise UsageError(
            "expected a positive step.", field=field, hint="`tarmac sort --reverse` reverses the order."
        )


def _checked_shares(split: Mapping[str, float] | None) -> dict[str, float]:
    if split is None:
        return {}
    if not isinstance(split, Mapping):
        raise UsageError(
            f'expected a mapping such as {{"train": 0.9, "val": 0.1}}, got {split!r}.', field="split"
        )
    for name in split:
        if not name.isidentifier():
            raise UsageError(
                f"invalid name {name!r}: expected letters, digits and underscores.", field="split"
            )
    split_bounds(split)
    return dict(split)


def slice_text(value: slice) -> str:
    """Return START:STOP[:STEP]."""
    numbers = ["" if number is None else str(number) for number in (value.start, value.stop, value.step)]
    return ":".join(numbers if numbers[2] else numbers[:2])


@dataclass(frozen=True)
class Select:
    """The samples and fields to keep; `SelectArgs` documents the arguments."""

    fields: Fields | None = None
    drop_fields: Collection[str] = ()
    missing: Literal["error", "skip"] = "error"
    where: str | None = None
    keys: str | os.PathLike[str] | Collection[str] | None = None
    slice: Slice | None = None
    slice_shard: Slice | None = None
    split: Mapping[str, float] | None = None
    only: str | None = None
    storage: StorageOptions = DEFAULT_STORAGE
    allow_exec: bool = True
    indexed_names: tuple[str, ...] = ()
    """Columns of an index, which complete short names before those that samples offer do."""

    def __post_init__(self) -> None:
        _ = self.rule, self.condition, self.bounds  # so that mistakes are reported before any work
        _checked_slice(self.slice, "slice")
        _checked_slice(self.slice_shard, "slice_shard")

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for a ledger."""
        rule = self.rule or FieldRule()
        kept = [new if new.lower() == "|".join(old) else f"{new}={'|'.join(old)}" for new, old in rule.kept]
        dropped = self.drop_fields if isinstance(self.drop_fields, Sequence) else sorted(self.drop_fields)
        texts = {
            "fields": ",".join([*kept, *(f"-{name}" for name in dropped)]),
            "missing": self.missing if self.missing != "error" else "",
            "where": self.where,
            "keys": self._keys_text() if self.keys is not None else "",
            "slice": slice_text(self.slice) if self.slice else "",
            "slice_shard": slice_text(self.slice_shard) if self.slice_shard else "",
            "part": ",".join(
                f"{name}={float(share)!r}".removesuffix(".0") for name, share in self.shares.items()
            ),
            "only": self.only,
        }
        return {name: text for name, text in texts.items() if text}

    def _keys_text(self) -> str:
        listed = "\n".join(sorted(self.listed)).encode("utf-8", "surrogateescape")
        return f"{len(self.listed)} keys, {xxhash.xxh3_64_hexdigest(listed)}"

    @cached_property
    def rule(self) -> FieldRule | None:
        """Return the rule for the fields of each sample; None keeps them all."""
        return _field_rule(self.fields, self.drop_fields, self.missing)

    @cached_property
    def condition(self) -> Condition | None:
        """Return the parsed condition."""
        return parse_where(self.where) if self.where else None

    @cached_property
    def listed(self) -> frozenset[str]:
        """Return the listed keys."""
        listed = self.keys or ()
        if isinstance(listed, str | os.PathLike):
            if not self.allow_exec:
                reject_command(os.fspath(listed))
            listed = read_keys(os.fspath(listed), self.storage)
        return frozenset(map(plain_key, listed))

    @cached_property
    def _spellings(self) -> frozenset[str]:
        """Return the listed keys with and without a leading `./`."""
        return self.listed | {f"./{key}" for key in self.listed}

    @cached_property
    def shares(self) -> dict[str, float]:
        """Return the splits and their shares."""
        return _checked_shares(self.split)

    @cached_property
    def bounds(self) -> tuple[int, int] | None:
        """Return the range of key hashes that are in the selected split."""
        if not self.only:
            return None
        if self.only not in self.shares:
            names = ", ".join(self.shares) or "none"
            raise UsageError(f"unknown split {self.only!r}: `split` has {names}.", field="only")
        return split_bounds(self.shares)[self.only]

    def meta(self, names: Callable[[], Iterable[str]]) -> MetaPlan | None:
        """Return the columns that an index needs to evaluate the condition.

        `names` returns the columns that the samples offer, to complete short names.
        """
        columns = self.condition.metadata(names, self.indexed_names) if self.condition else []
        return meta_plan(columns) if columns else None

    # Indexed shards

    def of_dataset(self, dataset: Dataset) -> Dataset:
        """Return the selected samples, with all their fields."""
        if self.slice_shard:
            dataset = _sliced_shards(dataset, self.slice_shard)
        if self.keys is not None:
            dataset = dataset._with_keys(self._spellings)
        if self.where:
            dataset = dataset.where(self.where)
        if self.only:
            dataset = getattr(dataset.split(salt="", **self.shares), self.only)
        return dataset[self.slice] if self.slice else dataset

    # Streams

    def of_each(self, shards: Iterable[Iterable[Sample]], tally: Tally) -> Iterator[Iterator[Sample]]:
        """Yield the samples of each shard that `slice_shard` selects."""
        seen = map(tally.see, shards)
        if not self.slice_shard:
            return seen
        bounds = _forward(self.slice_shard, "slice_shard")
        return (itertools.islice(shard, *bounds) for shard in seen)

    def of_all(self, samples: Iterable[Sample], tally: Tally) -> Iterator[Sample]:
        """Yield the selected samples of all shards, with all fields."""
        if self.keys is not None:
            samples = _with_keys(samples, self.listed, tally)
        if self.condition is not None:
            samples = _matching(samples, self.condition, self, tally)
        if self.bounds is not None:
            samples = _in_split(samples, self.bounds)
        if self.slice:
            samples = itertools.islice(samples, *_forward(self.slice, "slice"))
        return tally.select(samples)

    def cut(self, samples: Iterable[Sample], tally: Tally | None = None) -> Iterator[Sample]:
        """Yield the samples with the selected fields."""
        complete = iter(samples) if self.rule is None else filter(None, map(self.rule, samples))
        return complete if tally is None else tally.count_complete(complete)

    # Results

    def balance(self, whole: Dataset, selected: int) -> Balance:
        """Return how many samples are left out, and remarks on it; an empty selection is an error."""
        tally = Tally(len(whole), selected)
        if self.keys is not None:
            tally.keys = set(map(plain_key, whole._with_keys(self._spellings).keys()))
            tally.example = next(whole.keys(), "")
        return Balance(tally.seen - selected, self.remarks(tally))

    def remarks(self, tally: Tally, *, empty: bool = False) -> list[str]:
        """Return remarks on a finished selection; an empty one is an error.

        `empty` allows it, but not keys and columns that exist nowhere.
        """
        unknown = self.listed - tally.keys if self.keys is not None else frozenset()
        if tally.seen and not tally.selected:
            if unknown and not tally.keys:
                what = f"none of the {len(unknown)} listed keys exists: {examples(unknown)}."
                hint = f"keys as `tarmac show` prints them, such as {tally.example!r}."
                raise UsageError(what, field="keys", url=self._keys_url, hint=hint)
            if self.condition is not None and tally.columns:  # an index has checked its columns itself
                problem = self.condition.missing_column(tally.columns, tally.seen, tally.names)
                if problem is not None:
                    raise problem
            if empty:
                return []
            given = [f"`{name}` {text}" for name, text in self.options().items()]
            what = f"the selection is empty: {', '.join(given)} matches none of {tally.seen} samples."
            raise JobError(what.replace("`part`", "`split`"))
        missing = f"{len(unknown)} of the listed keys do not exist: {examples(unknown)}"
        return [f"{self._keys_url}: {missing}" if self._keys_url else missing] if unknown else []

    @property
    def _keys_url(self) -> str | None:
        return os.fspath(self.keys) if isinstance(self.keys, str | os.PathLike) else None


def _forward(value: slice, field: str) -> tuple[int | None, int | None, int | None]:
    if (value.start or 0) < 0 or (value.stop or 0) < 0:
        raise UsageError(
            "negative slices need inputs that can be indexed: plain files or objects.", field=field
        )
    return value.start, value.stop, value.step


def _sliced_shards(dataset: Dataset, bounds: slice) -> Dataset:
    parts = []
    for part in dataset._parts:
        for number, length in enumerate(part.lengths.tolist()):
            one = slice(number, number + 1)
            shard = replace(part, numbers=part.numbers[one], lengths=part.lengths[one], rows=part.rows[one])
            parts.append(by_numbers(shard, *bounds.indices(length)))
    return Dataset._of_parts(parts)


def _with_keys(samples: Iterable[Sample], listed: frozenset[str], tally: Tally) -> Iterator[Sample]:
    for sample in samples:
        if (key := plain_key(sample["__key__"])) in listed:
            tally.keys.add(key)
            yield sample


def _matching(
    samples: Iterable[Sample], condition: Condition, select: Select, tally: Tally
) -> Iterator[Sample]:
    import pyarrow as pa

    plan: MetaPlan | None = None
    for chunk in chunks(samples, _CHUNK, _CHUNK_BYTES):
        plan = plan or select.meta(partial(offered_names, chunk)) or MetaPlan()
        columns = Columns(plan)
        for sample in chunk:
            columns.add(fields_of(sample), sample["__key__"])
        arrays = columns.arrays() | {"key": pa.array([_readable(sample["__key__"]) for sample in chunk])}
        for name in condition.columns:
            if name.startswith("has:"):
                arrays[name] = pa.array([name[4:] in sample for sample in chunk])
        resolved = condition.resolve(arrays)
        for name in condition.compared:
            tally.columns[name] += len(chunk) - arrays[resolved[name]].null_count
        mask = condition.mask(pa.table(arrays))
        yield from (sample for sample, true in zip(chunk, mask.tolist(), strict=True) if true)


def offered_names(samples: Iterable[Sample]) -> list[str]:
    """Return the columns that conditions can use for these samples."""
    return list(dict.fromkeys(name for sample in samples for name in names_in(sample)))


def _readable(key: str) -> str:
    """Return a key as conditions see it, as in an index: bytes that are not UTF-8 are written `\\xff`."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _in_split(samples: Iterable[Sample], bounds: tuple[int, int]) -> Iterator[Sample]:
    hash_key, (low, high) = key_hasher(), bounds
    return (sample for sample in samples if low <= hash_key(sample["__key__"]) < high)
