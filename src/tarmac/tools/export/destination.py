"""Where exported files go. Formats that write directories override what differs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tarmac.errors import UsageError, WriteError
from tarmac.jobs.task import Unit
from tarmac.storage import is_local, scheme_of
from tarmac.storage.local import local_path
from tarmac.tar.compression import format_of_name
from tarmac.tools.export.formats import Format, RowOptions, Writer
from tarmac.tools.export.publish import published_path, published_stream
from tarmac.tools.output import Output

Fill = Callable[[Writer], None]
"""Writes all samples of a unit to a writer and closes it."""


@dataclass(frozen=True)
class Target(Output):
    """The output pattern. With `{i}` and no maximum size, each input shard makes one file."""

    extension: str = ""
    joined: bool = False
    """Whether one unit takes all samples, because the inputs have no names."""

    @property
    def cut(self) -> bool:
        """Whether files have a maximum size."""
        return self.max_samples is not None or self.max_bytes is not None

    @property
    def by_shard(self) -> bool:
        """Whether each input shard makes a file."""
        return not self.joined and ("{name" in self._full_pattern or (self.numbered and not self.cut))

    @property
    def _full_pattern(self) -> str:
        return f"{self.pattern}{{name}}{self.extension}" if self.pattern.endswith("/") else self.pattern


@dataclass
class Destination:
    """Files that are named by a pattern."""

    format: Format
    output: str
    hf_split: str = "train"
    directory = False
    """Whether the output is one directory, whose files have names that users do not choose."""

    @property
    def pattern(self) -> str:
        """The pattern of the names of units."""
        return self.output

    def with_splits(self) -> Destination:
        """Return the destination of several splits."""
        return self

    @property
    def ledger(self) -> tuple[str, str]:
        """The path that the ledger is beside, and its name."""
        return self.output, "export"

    def check(self) -> None:
        """Raise if the format cannot be written to the output."""
        scheme = scheme_of(self.output)
        if scheme == "pipe":
            raise UsageError("exports cannot be written to a command.", url=self.output)
        if scheme == "-" and not self.format.text:
            raise UsageError(
                f"{self.format.name} cannot be written to a stream.", hint="a file as the output."
            )
        if format_of_name(self.output):
            hint = "a name without the compression extension."
            raise UsageError("exports are not compressed.", url=self.output, hint=hint)

    def options(self) -> dict[str, Any]:
        """Return what else the result depends on, for the ledger."""
        return {}

    def unit_name(self, name: str, split: str, number: int, count: int) -> str:
        """Return the name of a file that the pattern calls `name`, the given one of `count` files."""
        return name

    def begin(self, target: Target, units: Sequence[Unit], row: RowOptions, splits: Sequence[str]) -> None:
        """Raise if a new job would replace files."""
        target.check_new(unit.name for unit in units)

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        """Yield the names of all files."""
        return (unit.name for unit in units)

    def prepared(self, target: Target) -> AbstractContextManager[Any]:
        """Return a context in which all units are written."""
        return nullcontext()

    def write(self, name: str, target: Target, row: RowOptions, fill: Fill) -> dict[str, int]:
        """Write one unit, which appears complete or not at all; return its files and their sizes."""
        publish: Any = published_path if self.format.by_path else published_stream
        try:
            with publish(name, target.storage) as file:
                fill(self.format.open(file, row))
        except WriteError as error:
            error.at(url=name)
            raise
        if target.stream:
            return {}
        return {name: os.stat(local_path(name)).st_size if is_local(name) else -1}

    def finish(self, target: Target, row: RowOptions, splits: Sequence[str]) -> None:
        """Write what belongs to all units."""
