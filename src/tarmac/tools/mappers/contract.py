"""The contract of a mapper: what `tokenize` and `embed` need to know about a tokenizer or a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tarmac.errors import UsageError
from tarmac.samples.grouping import Sample

KEY = "key"
"""The column of a record that no mapper returns."""


@dataclass(frozen=True)
class Column:
    """The type of an output: elements of `dtype`, and the shape of the value of one sample.

    `Column("uint16", (None,))` has values of any length, `Column("float16", (512,))` vectors, and `Column("float32")`
    numbers.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        try:
            kind = np.dtype(self.dtype)
        except TypeError:
            kind = np.dtype(object)
        if kind.kind not in "biuf":
            raise UsageError(f"expected a numeric dtype, got {self.dtype!r}.", field="outputs")
        if len(self.shape) > 1:
            raise UsageError(f"expected a shape of at most one axis, got {self.shape}.", field="outputs")

    @property
    def ragged(self) -> bool:
        """Whether values differ in length."""
        return self.shape == (None,)

    def to_json(self) -> dict[str, Any]:
        """Return the column for metadata."""
        return {"dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Column:
        """Return the column that `to_json` described."""
        return cls(str(values["dtype"]), tuple(values["shape"]))


def check_outputs(outputs: Any) -> dict[str, Column]:
    """Return the columns of a mapper; raise unless they are columns with names that files can have."""
    if not isinstance(outputs, Mapping):
        raise UsageError(f"expected columns by name, got {outputs!r}.", field="outputs")
    for name, column in outputs.items():
        if not isinstance(column, Column):
            what = f'expected a Column as "{name}", got {column!r}.'
            raise UsageError(
                what, field="outputs", hint='tarmac.tools.mappers.Column("uint16", (None,)), for example.'
            )
        if name == KEY or not re.fullmatch(r"\w[\w.-]*", str(name)):
            what = f"expected names of letters, digits, dots and dashes, other than {KEY!r}, got {name!r}."
            raise UsageError(what, field="outputs")
    return dict(outputs)


class Mapper:
    """Turns batches of samples into columns. Subclass it, or write a class with the same names.

    >>> from tarmac.tools.mappers import Column
    >>> class Lengths(tarmac.Mapper):
    ...     version = "1"
    ...     outputs = {"length": Column("uint32")}
    ...     def prepare(self, sample):
    ...         return sample["txt"].decode()
    ...     def __call__(self, texts):
    ...         return {"length": [len(text) for text in texts]}

    A job makes one object in each worker process and calls `setup(device)`, then `prepare` on each sample, the object
    itself on each batch of what `prepare` returned, and at the end `close`. `prepare` may run in several threads. An
    exception in it fails its sample; one for a batch fails those samples of the batch that fail alone, too.
    """

    version: str | None = None
    """Change it when results change for a reason that is not in the source. Without it, the arguments that an object
    keeps under their names are part of the fingerprint of a job, too."""
    outputs: Mapping[str, Column] = {}
    """The columns that a batch returns."""
    info: Mapping[str, Any] = {}
    """What readers of the columns need to know, as JSON: a vocabulary size, for example."""

    def prepare(self, sample: Sample) -> Any:
        """Return what the model needs of a sample, whose fields are bytes: decode it, for example."""
        return sample

    def setup(self, device: str) -> None:
        """Load what stays loaded, on this device: `cpu` or `cuda:0`."""

    def __call__(self, batch: list[Any]) -> Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]:
        """Return each column of `outputs`, with a value for each item of the batch."""
        raise NotImplementedError

    def size(self, item: Any) -> int:
        """Return the length of a prepared item: batches have items of similar length, if a subclass defines this."""
        return 0

    def close(self) -> None:
        """Release what `setup` has loaded."""


def defines(mapper: Any, name: str) -> bool:
    """Return whether a mapper has a method of its own, besides that of `Mapper`."""
    method = getattr(mapper, name, None)
    return callable(method) and getattr(method, "__func__", None) is not getattr(Mapper, name)
