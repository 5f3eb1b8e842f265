"""The registry of export formats, and what their writers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarmac.errors import SampleError, UsageError
from tarmac.samples.grouping import Sample
from tarmac.storage.types import Sink
from tarmac.tools.export.values import Kinds, text_key, value_of
from tarmac.tools.output import fields_of

if TYPE_CHECKING:
    from tarmac.tools.export.destination import Destination

KEY = "__key__"


@dataclass(frozen=True)
class RowOptions:
    """How a sample becomes a row."""

    kinds: Kinds = field(default_factory=Kinds)
    columns: tuple[str, ...] | None = None
    """The fields that have a column, in tables; other formats take each sample as it is."""
    key: bool = True
    header: bool = True

    def values(self, sample: Sample) -> dict[str, Any]:
        """Return the value of each field by name, with the key first if it is wanted."""
        values: dict[str, Any] = {KEY: text_key(sample)} if self.key else {}
        for name, data in fields_of(sample).items():
            values[name] = value_of(self.kinds, name, data)
        return values

    def row(self, sample: Sample) -> list[Any]:
        """Return the values of all columns, with the key first if it is wanted; None for a missing field."""
        columns = self.columns or ()
        values = self.values(sample)
        row = [values.pop(KEY)] if self.key else []
        row += [values.pop(name, None) for name in columns]
        if values:
            raise SampleError(
                f'the field "{next(iter(values))}" has no column: no earlier sample had it.',
                hint=f"`drop_fields` {','.join(values)}; or tarmac copy, to plain shards, whose fields are known.",
            )
        return row

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for the ledger."""
        columns = {} if self.columns is None else {"columns": list(self.columns)}
        kinds = {"as": dict(self.kinds.given)} if self.kinds.given else {}
        return columns | kinds | {name: False for name in ("key", "header") if not getattr(self, name)}


class Writer(ABC):
    """Writes samples to one file, which is complete after `finish`."""

    @abstractmethod
    def add(self, sample: Sample) -> int:
        """Write a sample and return its payload in bytes, or raise and change nothing."""

    def finish(self) -> None:  # noqa: B027 - text files need no end
        """Complete the file."""

    def close(self) -> None:  # noqa: B027
        """Release all resources, whether the file is complete or not."""


def payload(sample: Sample) -> int:
    """Return the number of bytes in the fields of a sample."""
    return sum(map(len, fields_of(sample).values()))


class SinkFile:
    """A sink as a binary file that is written from start to end, as libraries expect."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink, self._position = sink, 0

    def write(self, data: Any) -> int:
        """Write bytes."""
        content = bytes(data)
        self._sink.write(content)
        self._position += len(content)
        return len(content)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._position

    def flush(self) -> None:
        """Do nothing: bytes are flushed when the file is published."""

    def close(self) -> None:
        """Do nothing: the owner of the sink publishes it."""


@dataclass(frozen=True)
class Format:
    """An export format."""

    name: str
    open: Callable[[Any, RowOptions], Writer]
    """Opens a writer to a `SinkFile`, or to a path with `by_path`."""
    extensions: tuple[str, ...] = ()
    """Extensions of its files; the first is added to the names of shards."""
    table: bool = False
    """Whether all rows have the same columns."""
    text: bool = False
    """Whether it may be written to standard output."""
    by_path: bool = False
    """Whether it needs a path on a disk to write to."""
    destination: type[Destination] | None = None
    """Where its files go; by default to files named by a pattern."""

    @property
    def extension(self) -> str:
        """The extension of new files."""
        return self.extensions[0] if self.extensions else ""


FORMATS: dict[str, Format] = {}
"""The export formats, by name."""


def register_format(format: Format) -> None:
    """Register a format that `tarmac.export` writes."""
    FORMATS[format.name] = format


def guess_format(name: str) -> str:
    """Return the format of a file by its extension."""
    for known in FORMATS.values():
        if known.extensions and known.destination is None and name.lower().endswith(known.extensions):
            return known.name
    raise UsageError(
        "cannot infer the format from the name.",
        field="format",
        url=name,
        hint=f"one of {', '.join(FORMATS)}.",
    )
