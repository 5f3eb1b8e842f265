"""Several datasets in one epoch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, overload

import numpy as np
import xxhash
from numpy.typing import ArrayLike

from tarmac.display import html_table
from tarmac.errors import UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.order.mixture import MixedOrder, counts_of
from tarmac.exact.steps import Steps, describe_step, mapping
from tarmac.exact.types import MapStyle, T_co, U
from tarmac.limits import Limits
from tarmac.runtime.seeds import Seed, make_seed
from tarmac.steps.fields import ToTuple
from tarmac.steps.stage import Each


class Mix(Steps, MapStyle[T_co]):
    """An epoch that draws from several datasets, evenly spread, each in its own order.

    >>> Mix([(web, 0.7), (books, 0.3)])                      # weights; as long as both datasets
    >>> Mix([web.take_per_epoch(1_000_000), books.repeat(3), wiki])    # number of samples of each

    A dataset that is taken in part continues in the next epoch where it stopped, so all its samples are read
    before any is repeated. A dataset that is taken more than once has a new order each time. With weights,
    `samples` sets the length of an epoch.
    """

    def __init__(
        self,
        items: Iterable[Dataset[T_co] | Mix[T_co] | tuple[Dataset[T_co], float]],
        *,
        samples: int | None = None,
    ) -> None:
        listed = list(items)
        weighted = [item for item in listed if isinstance(item, tuple)]
        if not listed or (weighted and len(weighted) != len(listed)):
            raise UsageError("expected datasets, or only pairs (dataset, weight).", field="items")
        if weighted:
            datasets = [_dataset(dataset) for dataset, _ in weighted]
            total = sum(map(len, datasets)) if samples is None else operator.index(samples)
            self._set(datasets, counts_of([weight for _, weight in weighted], total))
        else:
            if samples is not None:
                raise UsageError(
                    "`samples` needs weights.",
                    field="samples",
                    hint="take_per_epoch() and repeat() set counts.",
                )
            counted = [pair for item in listed for pair in _counted(item)]
            self._set([dataset for dataset, _ in counted], [count for _, count in counted])

    @classmethod
    def _of(cls, datasets: Sequence[Dataset[Any]], counts: Sequence[int]) -> Mix[Any]:
        self = cls.__new__(cls)
        self._set(datasets, counts)
        return self

    def _set(self, datasets: Sequence[Dataset[T_co]], counts: Sequence[int]) -> None:
        for dataset, count in zip(datasets, counts, strict=True):
            if count < 0 or (count and not len(dataset)):
                raise UsageError(f"cannot take {count} samples from a dataset of {len(dataset)}.")
        self.datasets: tuple[Dataset[T_co], ...] = tuple(datasets)
        self.counts: tuple[int, ...] = tuple(counts)

    def __getstate__(self) -> dict[str, Any]:
        return {"datasets": self.datasets, "counts": self.counts}

    def __len__(self) -> int:
        return sum(self.counts)

    @cached_property
    def _concatenated(self) -> Dataset[T_co]:
        """All samples of all datasets, one dataset after the other; `key` and `batch` number these."""
        return Dataset._of_parts([part for dataset in self.datasets for part in dataset._parts])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the samples and of how many of each dataset make an epoch."""
        lines = [
            f"{count} {dataset.fingerprint}\n"
            for dataset, count in zip(self.datasets, self.counts, strict=True)
        ]
        return xxhash.xxh3_128("".join(lines).encode()).hexdigest()

    def batch(self, indices: ArrayLike, *, seeds: Sequence[int] | None = None) -> list[T_co]:
        """Return samples by their numbers in the concatenated datasets."""
        return self._concatenated.batch(indices, seeds=seeds)

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """Return a batch; torch's DataLoader calls this. A BatchSampler yields the numbers of an epoch."""
        return self._concatenated.__getitems__(indices)

    def key(self, index: int) -> str:
        """Return the key of a sample by its number in the concatenated datasets."""
        return self._concatenated.key(index)

    @overload
    def map(self, f: Callable[[T_co], U], *, random: Literal[False] | None = None) -> Mix[U]: ...
    @overload
    def map(self, f: Callable[[T_co, np.random.Generator], U], *, random: Literal[True]) -> Mix[U]: ...
    def map(self, f: Callable[..., U], *, random: bool | None = None) -> Mix[U]:
        """Replace each sample with `f(sample)`, or with `f(sample, rng)` if `random`, as `Dataset.map` does."""
        return self._then(mapping(f, random))

    def to_tuple(self, *fields: str) -> Mix[tuple[Any, ...]]:
        """Pick fields into a tuple; `"jpg;png"` takes the first that the sample has."""
        return self._then(ToTuple(*fields))

    def _then(self, step: Each) -> Mix[Any]:
        return self._of([dataset._then(step) for dataset in self.datasets], self.counts)

    @property
    def _limits(self) -> Limits:
        return self.datasets[0]._limits

    def _order(
        self, seed: Seed = 0, *, shuffle: bool = True, streams: int = 64, window: int = 16_384
    ) -> MixedOrder:
        """Return the order of the samples in an epoch, by their numbers in the concatenated datasets."""
        orders = [
            # Each has its own seed; otherwise datasets of equal lengths would be shuffled alike.
            dataset._order(
                make_seed(seed, number) if number else seed, shuffle=shuffle, streams=streams, window=window
            )
            for number, dataset in enumerate(self.datasets)
        ]
        return MixedOrder(orders, self.counts, seed=seed, shuffle=shuffle, streams=streams)

    def close(self) -> None:
        """Close the open shards of all datasets; they are opened again on access."""
        self._concatenated.close()

    def __repr__(self) -> str:
        return f"<Mix: {'; '.join(f'{name} {value}' for name, value in self._facts().items())}>"

    def _repr_html_(self) -> str:
        return html_table("Mix", self._facts())

    def _facts(self) -> dict[str, str]:
        taken = zip(self.counts, map(len, self.datasets), strict=True)
        facts = {
            "samples per epoch": str(len(self)),
            "datasets": ", ".join(f"{count} of {length}" for count, length in taken),
        }
        parts = self.datasets[0]._parts
        if parts and parts[0].steps:
            facts["steps"] = ", ".join(map(describe_step, parts[0].steps))
        return facts


def _dataset(item: object) -> Dataset[Any]:
    if not isinstance(item, Dataset):
        raise UsageError(f"expected datasets, got {type(item).__name__}.", field="items")
    return item


def _counted(item: object) -> Iterable[tuple[Dataset[Any], int]]:
    if isinstance(item, Mix):
        return zip(item.datasets, item.counts, strict=True)
    return [(dataset := _dataset(item), len(dataset))]
