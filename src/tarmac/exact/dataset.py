"""Random access to indexed shards: samples by number, by key, by condition."""

from __future__ import annotations

import contextlib
import operator
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import xxhash
from numpy.typing import ArrayLike

from tarmac.display import examples, html_table, plural, visible
from tarmac.errors import TarmacError, TarmacWarning, UsageError
from tarmac.exact.fetch import Fetcher
from tarmac.exact.joined import AddFields
from tarmac.exact.order.exact import ExactOrder
from tarmac.exact.selection import Part, by_condition, by_key_hash, by_keys, by_mask, by_numbers, whole
from tarmac.exact.shardset import OpenOptions, ShardSet
from tarmac.exact.steps import Matches, Steps, apply_steps, describe_step, mapping
from tarmac.exact.types import MapStyle, T_co, U
from tarmac.indexing.build import manifest_of
from tarmac.indexing.manifest import Manifest
from tarmac.indexing.meta import meta_plan
from tarmac.indexing.where import parse_where
from tarmac.limits import Limits
from tarmac.progress import track
from tarmac.runtime.cores import usable_cores
from tarmac.runtime.lookahead import in_threads
from tarmac.runtime.seeds import Seed
from tarmac.runtime.types import Integers
from tarmac.samples.naming import Splitter
from tarmac.samples.splits import split_bounds
from tarmac.steps.fields import ToTuple
from tarmac.steps.stage import Each
from tarmac.storage import Cache, StorageOptions, is_local
from tarmac.storage.cache import as_cache
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards, read_keys
from tarmac.tar import Repeated, TarOptions
from tarmac.tar.reader import DEFAULT_OPTIONS

if TYPE_CHECKING:
    from tarmac.exact.mix import Mix


_REQUIRED: Any = object()
_TESTED = 64
"""Samples that a thread of `filter` reads at a time."""


class SeededIndex(int):
    """The number of a sample with the seed of its random steps, as `BatchSampler` yields it."""

    seed: int

    def __new__(cls, index: int, seed: int) -> SeededIndex:
        self = super().__new__(cls, index)
        self.seed = seed
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SeededIndex, (int(self), self.seed)


class Splits(tuple["Dataset[T_co]", ...]):
    """The datasets that `Dataset.split` returns, in order and as attributes: `splits.train`."""

    def __new__(cls, datasets: Iterable[Dataset[T_co]], names: Iterable[str] = ()) -> Splits[T_co]:
        self = super().__new__(cls, datasets)
        self.__dict__.update(zip(names, self, strict=False))
        return self

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Dataset[T_co]: ...

    def __repr__(self) -> str:
        return f"Splits({', '.join(f'{name}={dataset!r}' for name, dataset in self.__dict__.items())})"


class Dataset(Steps, MapStyle[T_co]):
    """The samples of indexed shards, as a sequence.

    >>> ds = tarmac.Dataset("train.json").decode("rgb8").to_tuple("jpg;png", "cls")
    >>> len(ds), ds[0], ds[-1], ds[:1000], ds[[7, 3]], ds["n01440764/n01440764_10026"]

    `source` names manifests (see `tarmac index`) or shards, which are indexed on first use. Every method
    returns a new dataset, and samples are read on access. A dataset pickles small, can be used from several
    threads, and is a map-style dataset for torch.

    `fields` limits what is read. `meta` names columns that the index needs for `where`, such as
    `["jpg.width", "json.caption"]`. `cache`, a Cache or a directory,
    keeps remote shards on disk; without it, they are read by ranges.
    `in_memory` reads each shard once and keeps it. `verify` compares each field with its digest in the index.
    `storage` configures access to stores. `limits`, `tar`, `split_name` and `repeated` apply when shards are indexed;
    `limits` also applies to `decode`. An existing index that was built with another `split_name` is an error.
    `repeated="keep"` indexes whole samples whose key occurs again in a shard; by key, the first of them is returned.
    `progress` shows a progress bar while shards are indexed; by default on terminals and in notebooks.
    """

    def __init__(
        self: Dataset[dict[str, Any]],
        source: Shards | Manifest,
        *,
        fields: Collection[str] | None = None,
        meta: Sequence[str] | None = None,
        cache: Cache | str | os.PathLike[str] | None = None,
        in_memory: bool = False,
        verify: bool = False,
        storage: StorageOptions = DEFAULT_STORAGE,
        limits: Limits | None = None,
        tar: TarOptions = DEFAULT_OPTIONS,
        split_name: Splitter | None = None,
        repeated: Repeated | None = None,
        progress: bool | None = None,
    ) -> None:
        for name, value in (("fields", fields), ("meta", meta)):
            if isinstance(value, str):
                raise UsageError(
                    f'expected a list of names such as ["jpg", "cls"], got {value!r}.', field=name
                )
        tar = tar.override(limits, repeated)
        options = OpenOptions(
            fields=None if fields is None else frozenset(name.lower() for name in fields),
            verify=verify,
            in_memory=in_memory,
            cache=as_cache(cache),
            storage=storage,
            meta=None if meta is None else meta_plan(meta, limits=tar.limits),
            tar=tar,
            split_name=split_name,
        )
        manifest = manifest_of(source, options.indexing, progress=progress)
        self._parts: tuple[Part, ...] = (whole(ShardSet(manifest, options)),)

    @classmethod
    def _of_parts(cls, parts: Iterable[Part]) -> Dataset[Any]:
        self = cls.__new__(cls)
        self._parts = tuple(parts)
        return self

    @cached_property
    def _fetcher(self) -> Fetcher:
        return Fetcher(self._parts)

    # Description

    def __len__(self) -> int:
        return self._fetcher.samples

    @property
    def lengths(self) -> Integers:
        """The number of samples from each shard, in order. The order of an epoch depends on it."""
        return self._fetcher.lengths

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the selected samples, independent of the location of their shards."""
        return xxhash.xxh3_128("".join(part.fingerprint() for part in self._parts).encode()).hexdigest()

    @overload
    def keys(self) -> Iterator[str]: ...
    @overload
    def keys(self, indices: ArrayLike) -> list[str]: ...
    def keys(self, indices: ArrayLike | None = None) -> Iterator[str] | list[str]:
        """Return the keys of all samples, or of those with these numbers, from the index."""
        if indices is None:
            return self._all_keys()
        numbers = self._fetcher.normalized(indices)
        keys = [""] * len(numbers)
        for part, shard, rows, positions in self._fetcher.groups(numbers):
            for position, key in zip(positions.tolist(), part.shards.sidecar(shard).keys(rows), strict=True):
                keys[position] = key
        return keys

    def _all_keys(self) -> Iterator[str]:
        for part in self._parts:
            for _, sidecar, rows in part.indexes():
                yield from sidecar.keys(None if rows is None else rows.astype(np.int64))

    def key(self, index: int) -> str:
        """Return the key of one sample, from the index."""
        part, number, row = self._fetcher.locate(index)
        return part.shards.sidecar(number).key(row)

    def sizes(self, indices: ArrayLike) -> Integers:
        """Return the total size in bytes of the fields of each sample, from the index."""
        numbers = self._fetcher.normalized(indices)
        sizes = np.zeros(len(numbers), np.int64)
        for part, shard, rows, positions in self._fetcher.groups(numbers):
            sizes[positions] = part.shards.sidecar(shard).bytes_of(rows)
        return sizes

    def __repr__(self) -> str:
        facts = self._facts()
        first = f"{facts.pop('samples')} samples in {plural(int(facts.pop('shards')), 'shard')}"
        return visible(
            f"<{type(self).__name__}: {'; '.join([first, *(f'{name} {value}' for name, value in facts.items())])}>"
        )

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self._facts())

    def _facts(self) -> dict[str, str]:
        total = sum(
            shards.manifest.samples for shards in {id(p.shards): p.shards for p in self._parts}.values()
        )
        facts = {
            "samples": f"{len(self)}" if len(self) == total else f"{len(self)} of {total}",
            "shards": f"{len({(id(part.shards), number) for part in self._parts for number in part.used})}",
        }
        part = next((part for part in self._parts if len(part.numbers)), None)
        # Only local indexes are opened for this: printing a dataset sends no request.
        if part is not None and is_local(part.shards.url(int(part.numbers[0]))):
            with contextlib.suppress(TarmacError, OSError):
                sidecar = part.shards.sidecar(int(part.numbers[0]))
                wanted = part.shards.options.fields
                facts["fields"] = ", ".join(f for f in sidecar.fields if wanted is None or f in wanted)
                facts["columns"] = ", ".join(sidecar.metadata)
        facts["steps"] = ", ".join(map(describe_step, self._parts[0].steps if self._parts else ()))
        return {name: value for name, value in facts.items() if value}

    # Reading

    @overload
    def __getitem__(self, index: int | str) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset[T_co]: ...
    @overload
    def __getitem__(self, index: Sequence[int] | Integers) -> list[T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        """Return a sample by number or key, a Dataset for a slice, or a list of samples for several numbers."""
        if isinstance(index, str):
            return self.get(index)
        if isinstance(index, slice):
            return self._sliced(index)
        if not hasattr(index, "__index__") or getattr(index, "ndim", False):
            return self.batch(index)
        part, number, row = self._fetcher.locate(index)
        sample = part.shards.open(number).sample(row)
        return apply_steps(part.steps, sample, None) if part.steps else sample

    def batch(self, indices: ArrayLike, *, seeds: Sequence[int] | None = None) -> list[T_co]:
        """Return several samples, in the order of `indices`; remote ones are fetched with few requests.

        `seeds` holds one seed per sample for steps that draw random numbers.
        """
        samples, steps = self._fetcher.fetch(indices)
        if not any(steps):
            return samples  # type: ignore[return-value]
        drawn: Sequence[int | None] = [None] * len(samples) if seeds is None else seeds
        return [
            apply_steps(todo, sample, seed) for sample, todo, seed in zip(samples, steps, drawn, strict=True)
        ]

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """Return a batch; torch's DataLoader calls this."""
        if len(indices) and isinstance(indices[0], SeededIndex):
            return self.batch(indices, seeds=[getattr(index, "seed", 0) for index in indices])
        return self.batch(indices)

    @overload
    def get(self, key: str) -> T_co: ...
    @overload
    def get(self, key: str, default: U) -> T_co | U: ...
    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return the sample with this key; without one, return `default`, or raise KeyError if there is none."""
        located = self._find(key)
        if located is not None:
            part, number, row = located
            return apply_steps(part.steps, part.shards.open(number).sample(row), None)
        if default is _REQUIRED:
            raise KeyError(key)
        return default

    def __contains__(self, key: object) -> bool:
        """Return whether a sample has this key, from the index."""
        if not isinstance(key, str):
            raise TypeError(f"expected the key of a sample, got {type(key).__name__}")
        return self._find(key) is not None

    def _find(self, key: str) -> tuple[Part, int, int] | None:
        """Return the part, the shard and the row of the first sample with this key."""
        for part in self._parts:
            for number, sidecar, rows in part.indexes():
                for row in sidecar.find(key):
                    if rows is None or row in rows:
                        return part, number, row
        return None

    def __iter__(self) -> Iterator[T_co]:
        for part in self._parts:
            for number, rows in zip(part.numbers.tolist(), part.rows, strict=True):
                samples = part.shards.open(number).some(rows)
                yield from (apply_steps(part.steps, s, None) for s in samples) if part.steps else samples  # type: ignore[misc]

    # Steps that change the type of a sample

    @overload
    def map(self, f: Callable[[T_co], U], *, random: Literal[False] | None = None) -> Dataset[U]: ...
    @overload
    def map(self, f: Callable[[T_co, np.random.Generator], U], *, random: Literal[True]) -> Dataset[U]: ...
    def map(self, f: Callable[..., U], *, random: bool | None = None) -> Dataset[U]:
        """Replace each sample with `f(sample)`.

        With `random`, call `f(sample, rng)`. In a Loader, the numpy generator depends only on seed, epoch and
        position, so a resumed epoch draws the same numbers with any number of workers. By default this is done for
        the random steps of tarmac, such as `RandomResizedCrop`.
        """
        return self._then(mapping(f, random))

    def to_tuple(self, *fields: str) -> Dataset[tuple[Any, ...]]:
        """Pick fields into a tuple; `"jpg;png"` takes the first that the sample has."""
        return self._then(ToTuple(*fields))

    def _then(self, step: Each) -> Dataset[Any]:
        return self._of_parts([replace(part, steps=(*part.steps, step)) for part in self._parts])

    @property
    def _limits(self) -> Limits:
        return self._parts[0].shards.options.tar.limits if self._parts else Limits()

    # Selecting samples

    def where(self, condition: str) -> Dataset[T_co]:
        """Keep the samples that meet a condition on index columns: `where("width >= 512 and lang = 'en'")`."""
        return self._of_parts(by_condition(self._parts, parse_where(condition)))

    def filter(
        self, f: Callable[[T_co], object], *, threads: int | None = None, progress: bool | None = None
    ) -> Dataset[T_co]:
        """Keep the samples for which `f(sample)` is true.

        This reads every sample once, in `threads` threads (by default one per core); `where` needs only the
        index. Random steps before it draw numbers that depend on the position of the sample.
        """
        if isinstance(f, str):
            raise UsageError(f"expected a function, got {f!r}.", field="f", hint="where() takes conditions.")
        tested, total = self._then(Matches(f)), len(self)

        def verdicts(start: int) -> list[bool]:
            numbers = range(start, min(start + _TESTED, total))
            return tested.batch(numbers, seeds=numbers)

        starts = range(0, total, _TESTED)
        chunks = in_threads(verdicts, starts, usable_cores() if threads is None else max(threads, 1))
        kept = [
            each for chunk in track(chunks, len(starts), "filtering", progress=progress) for each in chunk
        ]
        return self._of_parts(by_mask(self._parts, np.array(kept, np.bool_)))

    def select_keys(self, keys: Collection[str] | str | os.PathLike[str]) -> Dataset[T_co]:
        """Keep the samples with these keys, in the order of the shards. A path names a list, one key per line.

        Keys that do not exist are a warning, and an error if all of them are unknown.
        """
        wanted = read_keys(os.fspath(keys)) if isinstance(keys, str | os.PathLike) else frozenset(keys)
        selected = self._with_keys(wanted)
        unknown = wanted.difference(selected.keys())
        if wanted and len(unknown) == len(wanted):
            what = f"none of the {len(wanted)} listed keys exists: {examples(unknown)}."
            raise UsageError(what, field="keys", hint="ds.keys() yields the keys.")
        if unknown:
            warnings.warn(
                f"{len(unknown)} of the listed keys do not exist: {examples(unknown)}.",
                TarmacWarning,
                stacklevel=2,
            )
        return selected

    def _with_keys(self, keys: Collection[str]) -> Dataset[T_co]:
        return self._of_parts([by_keys(part, keys) for part in self._parts])

    def split(self, *, salt: str = "", **shares: float) -> Splits[T_co]:
        """Split by a hash of the key: `train, val = ds.split(train=0.9, val=0.1)`, or `ds.split(…).train`.

        Each sample is in one split: the shares add up to 1.
        A sample stays in its split when the dataset grows or is packed again. Another `salt` gives another
        split.
        """
        bounds = list(split_bounds(shares).values())
        pieces = [by_key_hash(part, bounds, salt) for part in self._parts]
        return Splits([self._of_parts(parts) for parts in zip(*pieces, strict=True)], shares)

    def __add__(self, other: Dataset[U]) -> Dataset[T_co | U]:  # type: ignore[override]
        if not isinstance(other, Dataset):
            return NotImplemented
        return self._of_parts([*self._parts, *other._parts])

    def join(
        self, other: Dataset[Any] | Shards | Manifest, *, missing: Literal["error", "drop"] = "error"
    ) -> Dataset[dict[str, Any]]:
        """Add the fields of the sample with the same key in another dataset: tokens or labels, for example.

        `other` is a dataset, or names shards or manifests. Its samples are read on access; nothing is copied. A sample
        without a counterpart is an error, or is left out with `missing="drop"`. The keys of both are read from the
        indexes and compared now.
        """
        if missing not in ("error", "drop"):
            raise UsageError(f"expected error or drop, got {missing!r}.", field="missing")
        step = AddFields(other if isinstance(other, Dataset) else Dataset(other))
        present = step.find(self.keys()) >= 0
        if not present.all() and (missing == "error" or not present.any()):
            absent = [key for key, known in zip(self.keys(), present.tolist(), strict=True) if not known]
            what = f"{len(absent)} of {plural(len(self), 'sample')} have no counterpart: {examples(absent)}."
            hint = (
                'missing="drop" leaves them out.'
                if present.any()
                else "both need the same keys; see ds.keys()."
            )
            raise UsageError(what, field="other", hint=hint)
        kept = self if present.all() else self._of_parts(by_mask(self._parts, present))
        return kept._then(step)

    def repeat(self, times: float) -> Mix[T_co]:
        """Return a Mix that takes every sample `times` times per epoch, in a new order each time.

        `times` can be a fraction: 2.5 takes every sample twice, and half of them a third time.
        """
        from tarmac.exact.mix import Mix

        return Mix._of([self], [round(len(self) * times)])

    def take_per_epoch(self, n: int) -> Mix[T_co]:
        """Return a Mix that takes `n` samples per epoch; each epoch continues where the previous one stopped."""
        from tarmac.exact.mix import Mix

        return Mix._of([self], [operator.index(n)])

    def _sliced(self, index: slice) -> Dataset[T_co]:
        start, stop, step = index.indices(len(self))
        if step < 0:
            raise UsageError(
                "negative steps are not supported in slices.", hint="batch(indices) takes any order."
            )
        parts, first = [], 0
        for part in self._parts:
            parts.append(by_numbers(part, start - first, stop - first, step))
            first += part.samples
        return self._of_parts(parts)

    def _order(
        self, seed: Seed = 0, *, shuffle: bool = True, streams: int = 64, window: int = 16_384
    ) -> ExactOrder:
        """Return the order of the samples in an epoch."""
        return ExactOrder(self.lengths, seed=seed, shuffle=shuffle, streams=streams, window=window)

    # Resources

    def close(self) -> None:
        """Close the open shards; they are opened again on access."""
        for part in self._parts:
            part.shards.close()

    def _after_fork(self) -> None:
        for part in self._parts:
            part.shards.after_fork()

    def __getstate__(self) -> dict[str, Any]:
        return {"_parts": self._parts}
