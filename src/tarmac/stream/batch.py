"""Stages that collect items into batches or lists, split those, and slice the stream."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tarmac.errors import MismatchedBatch, NoBatches, UsageError
from tarmac.steps.stage import PipelineStage, located, pipelinefilter

if TYPE_CHECKING:
    import numpy as np

_HINTS = {
    "shape": "resize or pad before batched(), or make lists with batched(collation_fn=None).",
    "fields": 'pick common fields with to_tuple("jpg;png", "cls") before batched(), or select() samples.',
}
Collate = Callable[[list[Any]], Any]


def default_collation_fn(
    samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
    """Turn a list of samples into one batch of columns: numbers and arrays are stacked, other values listed.

    The samples are tuples (or lists) of one length, or dictionaries with the same fields.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        names = first.keys()
        for sample in samples:
            if sample.keys() != names:
                odd = ", ".join(sorted(map(str, sample.keys() ^ names)))
                what = f"the samples of one batch have different fields: {odd}."
                raise located(MismatchedBatch(what, hint=_HINTS["fields"]), sample)
        columns = [(name, [sample[name] for sample in samples]) for name in names]
        return {
            name: _combine(column, name, samples, combine_tensors, combine_scalars)
            for name, column in columns
        }
    for sample in samples:
        if len(sample) != len(first):
            raise MismatchedBatch(f"the samples of one batch have {len(first)} and {len(sample)} fields.")
    return tuple(
        _combine(list(column), number, samples, combine_tensors, combine_scalars)
        for number, column in enumerate(zip(*samples, strict=True))
    )


def _combine(column: list[Any], name: object, samples: Sequence[Any], tensors: bool, scalars: bool) -> Any:
    first = column[0]
    if isinstance(first, int | float):
        return _array(column) if scalars else column
    shape = getattr(first, "shape", None)
    if shape is None or not tensors or not hasattr(first, "dtype"):
        return column
    for value, sample in zip(column, samples, strict=True):
        if getattr(value, "shape", None) != shape:
            other = getattr(value, "shape", type(value).__name__)
            what = f'field "{name}" has the shapes {tuple(shape)} and {other} in one batch.'
            raise located(MismatchedBatch(what, hint=_HINTS["shape"]), sample)
    if hasattr(first, "detach"):
        import torch

        return torch.stack(column)
    return _array(column)


def _array(values: list[Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.array(values)


class Batched(PipelineStage):
    """Collect items into batches; `partial` keeps a last batch that is not full.

    `collation_fn` makes a batch out of a list of samples; None keeps the list.
    """

    stateless = True

    def __init__(
        self, batchsize: int = 20, collation_fn: Collate | None = default_collation_fn, partial: bool = True
    ) -> None:
        if batchsize < 1:
            raise UsageError(f"expected 1 or more, got {batchsize}.", field="batchsize")
        self.batchsize: int = batchsize
        self.collation_fn: Collate | None = collation_fn
        self.partial: bool = partial

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        items, first = iter(source), True
        collate = self.collation_fn
        while batch := list(itertools.islice(items, self.batchsize)):
            if len(batch) < self.batchsize and not self.partial:
                if first:
                    warn_no_batches(f"{len(batch)} samples do not fill a batch of {self.batchsize}")
                return
            yield batch if collate is None else collate(batch)
            first = False


def warn_no_batches(reason: str) -> None:
    """Warn about an epoch without batches, which a training loop would take for a finished one."""
    warnings.warn(
        f"{reason}, and partial batches are dropped, so this reader yields nothing.", NoBatches, stacklevel=2
    )


@pipelinefilter
def unlisted(data: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of lists."""
    for batch in data:
        if not isinstance(batch, list | tuple):
            raise MismatchedBatch(f"unlisted() expected a list, got {type(batch).__name__}.")
        yield from batch


@pipelinefilter
def unbatched(data: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples of batches: the inverse of batched()."""
    for batch in data:
        yield from _rows(batch)


def _rows(batch: Any) -> Iterator[Any]:
    """Yield the rows of a batch, whose columns may be dictionaries of columns themselves."""
    if not isinstance(batch, Mapping | list | tuple):
        raise MismatchedBatch(
            f"unbatched() expected a tuple or dictionary of columns, got {type(batch).__name__}."
        )
    values = batch.values() if isinstance(batch, Mapping) else batch
    columns = [list(_rows(column)) if isinstance(column, Mapping) else column for column in values]
    if len({len(column) for column in columns}) != 1:
        raise MismatchedBatch(f"the columns of a batch have lengths {[len(column) for column in columns]}.")
    for row in zip(*columns, strict=True):
        yield dict(zip(batch, row, strict=True)) if isinstance(batch, Mapping) else row


@pipelinefilter
def slice_stage(data: Iterable[Any], *args: int | None) -> Iterator[Any]:
    """Yield some of the items: `stop`, or `start, stop, step`, as itertools.islice does."""
    return itertools.islice(data, *args)
