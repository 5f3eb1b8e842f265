"""Collate items into a batch as they arrive, so that nothing is copied at the end."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from tarmac.errors import MismatchedBatch

_HINTS = {
    "length": "pad or cut to one length in a map(), or tokens with tarmac.Tokens(DIR, length=n), use "
    "Loader(collate=list), or replace a few odd samples with Loader(max_bad_samples=n).",
    "shape": "resize (Resize), crop (RandomResizedCrop) or pad to one shape in a map(), use Loader(collate=list), "
    "or replace a few odd samples with Loader(max_bad_samples=n).",
    "fields": 'pick common fields with to_tuple("jpg;png", "cls"), select samples with where("has(txt)"), use '
    "Loader(collate=list), or replace a few odd samples with Loader(max_bad_samples=n).",
}


class BatchBuffer:
    """A batch of `size` items, filled from any thread in any order.

    A `model`, or the first item, decides whether the batch is a dictionary of columns, a tuple of columns, or
    one column. Arrays of the same shape and dtype become one array, numbers become an array, torch tensors are
    stacked, and everything else is a list.
    """

    def __init__(self, size: int, model: Any = None) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._columns: dict[Any, Any] | None = None
        self._shapes: dict[Any, tuple[int, ...]] = {}
        self._type: type = object
        self.first = 0
        """The slot of the item that determined the columns."""
        if model is not None:
            self._begin(*_fields(model))

    def put(self, slot: int, item: Any) -> None:
        """Write an item into its slot."""
        kind, values = _fields(item)
        if self._columns is None:
            with self._lock:
                if self._columns is None:
                    self.first = slot
                    self._begin(kind, values)
        columns = self._columns
        assert columns is not None
        if kind is not self._type or values.keys() != columns.keys():
            odd = ", ".join(sorted(map(str, values.keys() ^ columns.keys()))) or type(item).__name__
            raise MismatchedBatch(
                f"the samples of a batch have different fields: {odd}.", hint=_HINTS["fields"]
            )
        for name, value in values.items():
            column = columns[name]
            if isinstance(column, np.ndarray):
                if not isinstance(value, np.ndarray) or value.shape != column.shape[1:]:
                    other = getattr(value, "shape", type(value).__name__)
                    what = f'field "{name}" has shape {column.shape[1:]} and {other} in one batch.'
                    raise MismatchedBatch(what, hint=_HINTS["length" if column.ndim == 2 else "shape"])
                if value.dtype != column.dtype:
                    what = f'field "{name}" has dtype {column.dtype} and {value.dtype} in one batch.'
                    raise MismatchedBatch(what, hint="convert it in a map() before the Loader.")
                _write(column, slot, value)
            else:
                if name in self._shapes and (shape := _tensor_shape(value)) != self._shapes[name]:
                    other = type(value).__name__ if shape is None else shape
                    what = f'field "{name}" has shape {self._shapes[name]} and {other} in one batch.'
                    raise MismatchedBatch(what, hint=_HINTS["shape"])
                column[slot] = value

    def result(self) -> Any:
        """Return the batch; all slots must be filled."""
        assert self._columns is not None
        columns = {name: _finished(column) for name, column in self._columns.items()}
        if self._type is dict:
            return columns
        return tuple(columns.values()) if self._type is tuple else columns[0]

    def _begin(self, kind: type, values: Mapping[Any, Any]) -> None:
        shapes = {name: _tensor_shape(value) for name, value in values.items()}
        self._type = kind
        self._shapes = {name: shape for name, shape in shapes.items() if shape is not None}
        self._columns = {name: self._column(value) for name, value in values.items()}

    def _column(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype != object:
            return np.empty((self._size, *value.shape), value.dtype)
        return [None] * self._size


def _write(column: np.ndarray[Any, Any], slot: int, value: np.ndarray[Any, Any]) -> None:
    """Copy an array into its slot; a non-contiguous one, such as a mirrored image, by whole pixels."""
    if value.flags.c_contiguous or value.ndim < 2 or value.strides[-1] != value.itemsize:
        column[slot] = value
    else:
        pixel = np.dtype((np.void, value.shape[-1] * value.itemsize))
        column[slot].view(pixel)[...] = value.view(pixel)


def _fields(item: Any) -> tuple[type, Mapping[Any, Any]]:
    """Return the kind of an item (dict, tuple or object), and its values by field."""
    if isinstance(item, Mapping):
        return dict, item
    return (tuple, dict(enumerate(item))) if isinstance(item, tuple | list) else (object, {0: item})


def _tensor_shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a torch tensor, and None for anything else."""
    return tuple(value.shape) if hasattr(value, "detach") and hasattr(value, "shape") else None


def _finished(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return column
    first = column[0]
    if isinstance(first, int | float | np.number | np.bool_):
        return np.array(column)
    if _tensor_shape(first) is not None:
        import torch

        return torch.stack(column)
    return column
