"""Several datasets as one: how many samples of each make an epoch."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Self

import xxhash
from numpy.typing import ArrayLike

from tarmac.exact.dataset import Dataset
from tarmac.exact.order.mixture import counts_of
from tarmac.exact.steps import Steps
from tarmac.samples.grouping import Sample
from tarmac.steps.stage import Each

__all__ = ["Mix"]


class Mix(Steps):
    """An epoch made of several datasets, spread evenly, each in an order of its own.

    >>> Mix([(web, 0.7), (books, 0.3)])            # shares of an epoch as long as both together
    >>> Mix([web.choose(1_000_000), books.repeat(3), wiki])    # so many of each

    A dataset of which an epoch takes only some goes on in the next epoch where it stopped, so that all its
    samples come before any comes again; one that is taken more than once comes in a new order each time.
    With weights, `samples` says how long an epoch is.
    """

    def __init__(
        self, items: Iterable[Dataset | Mix | tuple[Dataset, float]], *, samples: int | None = None
    ) -> None:
        given = list(items)
        weighted = [item for item in given if isinstance(item, tuple)]
        if not given or (weighted and len(weighted) != len(given)):
            raise ValueError("a Mix is made of datasets, or of pairs (dataset, weight) throughout")
        if weighted:
            datasets = [_dataset(dataset) for dataset, _ in weighted]
            total = sum(map(len, datasets)) if samples is None else operator.index(samples)
            self._set(datasets, counts_of([weight for _, weight in weighted], total))
        else:
            if samples is not None:
                raise ValueError("samples= goes with weights; without them use choose() and repeat()")
            shares = [share for item in given for share in _shares(item)]
            self._set([dataset for dataset, _ in shares], [count for _, count in shares])

    @classmethod
    def _of(cls, datasets: Sequence[Dataset], counts: Sequence[int]) -> Self:
        made = cls.__new__(cls)
        made._set(datasets, counts)
        return made

    def _set(self, datasets: Sequence[Dataset], counts: Sequence[int]) -> None:
        for dataset, count in zip(datasets, counts, strict=True):
            if count < 0 or (count and not len(dataset)):
                raise ValueError(f"{count} samples are to come from a dataset of {len(dataset)}")
        self.datasets, self.counts = tuple(datasets), tuple(counts)

    def __getstate__(self) -> dict[str, Any]:
        return {"datasets": self.datasets, "counts": self.counts}

    def __len__(self) -> int:
        return sum(self.counts)

    @cached_property
    def together(self) -> Dataset:
        """All samples of all datasets, one dataset after the other: what `fetch` and `batch` number."""
        return Dataset.of_parts([part for dataset in self.datasets for part in dataset.parts])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of which samples these are, and how many of each dataset make an epoch."""
        each = [
            f"{count} {dataset.fingerprint}\n"
            for dataset, count in zip(self.datasets, self.counts, strict=True)
        ]
        return xxhash.xxh3_128("".join(each).encode()).hexdigest()

    def fetch(self, indices: ArrayLike) -> list[tuple[Sample, tuple[Each, ...]]]:
        """Samples of all datasets together, by number, with the steps that are still to be done."""
        return self.together.fetch(indices)

    def batch(self, indices: ArrayLike, *, seeds: Sequence[int] | None = None) -> list[Any]:
        """Samples of all datasets together, by number."""
        return self.together.batch(indices, seeds=seeds)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """What torch calls to fetch a batch at once; a BatchSampler says which samples make an epoch."""
        return self.together.__getitems__(indices)

    def key_of(self, index: int) -> str:
        """The key of one of the samples of all datasets together."""
        return self.together.key_of(index)

    def _then(self, step: Each) -> Self:
        return self._of([dataset._then(step) for dataset in self.datasets], self.counts)

    def __repr__(self) -> str:
        return f"<Mix of {len(self)} samples an epoch, {' + '.join(map(str, self.counts))}>"


def _dataset(item: object) -> Dataset:
    if not isinstance(item, Dataset):
        raise ValueError(f"a Mix is made of datasets, got {type(item).__name__}")
    return item


def _shares(item: object) -> Iterable[tuple[Dataset, int]]:
    if isinstance(item, Mix):
        return zip(item.datasets, item.counts, strict=True)
    return [(dataset := _dataset(item), len(dataset))]
