"""What all formats have in common: how samples become rows, and what a writer of rows does."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

from tarmac.errors import SampleError, UrlError
from tarmac.samples.grouping import Sample
from tarmac.storage.types import Sink
from tarmac.tools.export.values import Kinds, text_key, value_of

__all__ = ["Form", "form_of_name", "FORMS", "Shape", "SinkFile", "Writer"]

KEY = "__key__"
EVERY_KIND = Kinds()


@dataclass(frozen=True)
class Shape:
    """How a sample becomes a row."""

    kinds: Kinds = EVERY_KIND
    columns: tuple[str, ...] | None = None
    """The fields that have a column, for tables; other formats take each sample as it is."""
    key: bool = True
    header: bool = True

    def pairs(self, sample: Sample) -> dict[str, Any]:
        """Each field of a sample by its name, the key first if it is wanted."""
        made: dict[str, Any] = {KEY: text_key(sample)} if self.key else {}
        for field, data in sample.items():
            if field[:2] != "__":
                made[field] = value_of(self.kinds, field, data)
        return made

    def row(self, sample: Sample) -> list[Any]:
        """The values of all columns, the key first if it is wanted; None where a field is missing."""
        columns = self.columns or ()
        found = self.pairs(sample)
        row = [found.pop(KEY)] if self.key else []
        row += [found.pop(name, None) for name in columns]
        if found:
            raise SampleError(
                f'the field "{next(iter(found))}" has no column: the samples before it had none.',
                hint=f"--fields {','.join([*columns, *found])}, or the columns that are wanted.",
            )
        return row

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger."""
        columns = {} if self.columns is None else {"columns": list(self.columns)}
        kinds = {"as": dict(self.kinds.named)} if self.kinds.named else {}
        return columns | kinds | {name: False for name in ("key", "header") if not getattr(self, name)}


class Writer(ABC):
    """Writes samples to one file, which is whole after `finish`."""

    @abstractmethod
    def add(self, sample: Sample) -> int:
        """Take in a sample, or raise and be as before; the payload it has, in bytes."""

    def finish(self) -> None:  # noqa: B027 - text has no end mark
        """Write what comes at the end."""

    def close(self) -> None:  # noqa: B027
        """Let go of everything, finished or not."""


def payload(sample: Sample) -> int:
    """How many bytes the fields of a sample have."""
    return sum(len(data) for name, data in sample.items() if name[:2] != "__")


class SinkFile:
    """A sink as libraries want it: a file that is written from front to back."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink, self._position = sink, 0

    def write(self, data: Any) -> int:
        """Take in bytes."""
        content = bytes(data)
        self._sink.write(content)
        self._position += len(content)
        return len(content)

    def tell(self) -> int:
        """How many bytes there were."""
        return self._position

    def flush(self) -> None:
        """Bytes are flushed when the file is published."""

    def close(self) -> None:
        """Whoever made the sink publishes it."""


class Form(NamedTuple):
    """A format: which module writes it, and what it needs."""

    name: str
    suffix: str
    module: str
    table: bool = False
    """Whether it has the same columns in every row."""
    text: bool = False
    """Whether it may go to standard output, and bytes have no column of their own in its table."""
    by_path: bool = False
    """Whether it needs a file on a disk to write to, rather than a stream."""

    def writer(self, file: Any, shape: Shape) -> Writer:
        """Begin a file."""
        module = importlib.import_module(f"tarmac.tools.export.{self.module}")
        return module.open_writer(self.name, file, shape)  # type: ignore[no-any-return]


FORMS = {
    form.name: form
    for form in (
        Form("dir", "", "directory"),
        Form("jsonl", ".jsonl", "jsonl", text=True),
        Form("tsv", ".tsv", "tsv", table=True, text=True),
        Form("csv", ".csv", "tsv", table=True, text=True),
        Form("yaml", ".yaml", "yaml", text=True),
        Form("parquet", ".parquet", "parquet", table=True),
        Form("hf", ".parquet", "parquet", table=True),
        Form("sqlite", ".sqlite", "sqlite", table=True, by_path=True),
        Form("lmdb", ".lmdb", "lmdb", by_path=True),
        Form("tfrecord", ".tfrecord", "tfrecord"),
    )
}
_OTHER_SUFFIXES = {".ndjson": "jsonl", ".yml": "yaml", ".db": "sqlite", ".sqlite3": "sqlite", ".mdb": "lmdb"}


def form_of_name(name: str) -> str:
    """Which format a file of this name has."""
    lowered = name.lower()
    suffixes = {form.suffix: form.name for form in FORMS.values() if form.name not in ("dir", "hf")}
    for suffix, form in (suffixes | _OTHER_SUFFIXES).items():
        if lowered.endswith(suffix):
            return form
    raise UrlError("its name does not say which format it has.", url=name, hint=f"--to {'|'.join(FORMS)}")
