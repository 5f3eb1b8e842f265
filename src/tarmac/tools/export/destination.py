"""Where exported files go. They appear under their names only when they are complete.

Formats that write directories override what differs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tarmac.errors import UsageError, WriteError
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.task import Outcome, Unit
from tarmac.limits import MIB
from tarmac.storage import StorageOptions, WriteOptions, is_local, location, open_write, scheme_of
from tarmac.storage.local import LocalSink, local_path
from tarmac.tar.compression import format_of_name
from tarmac.tools.export.formats import Format, RowOptions, SinkFile, Writer
from tarmac.tools.output import Output, make_directory

_REPLACE = WriteOptions(overwrite=True)


@dataclass(frozen=True, kw_only=True)
class Destination(Output):
    """Files that are named by a pattern. With `{i}` and no maximum size, each input shard makes one file."""

    format: Format
    directory: str = ""
    """The output, if it is one directory, whose files have names that users do not choose."""
    hf_split: str = "train"
    several: bool = False
    """Whether several splits are exported together."""
    lists_outputs: ClassVar[bool] = True
    """Whether outcomes list all files."""
    names_files: ClassVar[bool] = True
    """Whether the names of units are those of files."""
    joined: bool = False
    """Whether one unit takes all samples, because the inputs have no names."""

    @classmethod
    def to(cls, output: str, **options: Any) -> Self:
        """Return the destination for an output as users give it."""
        return cls(output, **options)

    def __post_init__(self) -> None:
        scheme = scheme_of(self.pattern)
        if scheme == "pipe":
            raise UsageError("exports cannot be written to a command.", url=self.pattern)
        if scheme == "-" and not self.format.text:
            raise UsageError(
                f"{self.format.name} cannot be written to a stream.", hint="a file as the output."
            )
        if format_of_name(self.pattern):
            hint = "a name without the compression extension."
            raise UsageError("exports are not compressed.", url=self.pattern, hint=hint)
        super().__post_init__()

    def _check_extension(self) -> None:
        """Accept any name: the format says what it is."""

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
        return (
            f"{self.pattern}{{name}}{self.format.extension}" if self.pattern.endswith("/") else self.pattern
        )

    @property
    def _root(self) -> str:
        return self.directory.rstrip("/") or "/"

    @property
    def ledger(self) -> str:
        """The URL of the ledger."""
        return ledger_url(self.pattern, "export")

    @property
    def home(self) -> str:
        return location(self.ledger.rpartition("/")[0])

    def unit_name(self, name: str, split: str, number: int, count: int) -> str:
        """Return the name of file `number` of `count`; `name` is the name by the pattern."""
        return name

    def begin(self, units: Sequence[Unit], row: RowOptions, splits: Sequence[str]) -> None:
        """Raise if a new job would replace files."""
        self.check_new(unit.name for unit in units)

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        """Yield the names of all files."""
        return (unit.name for unit in units)

    def prepared(self, shared: str | None = None) -> AbstractContextManager[Destination]:
        """Return a context with the destination that all units are written to.

        `shared` is a directory for working files, if the workers do not share that of the system.
        """
        return nullcontext(self)

    @contextmanager
    def opened(self, name: str, row: RowOptions, outcome: Outcome) -> Iterator[Writer]:
        """Open one unit, which appears complete or not at all; add its files and their sizes to the outcome."""
        publish: Any = published_path if self.format.by_path else published_stream
        try:
            with publish(name, self.storage) as file, closing(self.format.open(file, row)) as writer:
                yield writer
                writer.finish()
        except WriteError as error:
            error.at(url=name)
            raise
        if not self.stream:
            outcome.outputs[name] = os.stat(local_path(name)).st_size if is_local(name) else -1

    def complete(self, row: RowOptions, splits: Sequence[str]) -> None:
        """Write what belongs to all units."""


@contextmanager
def published_stream(url: str, storage: StorageOptions) -> Iterator[SinkFile]:
    """Yield a file that is written from start to end, and publish it unless an error occurs."""
    if is_local(url):
        make_directory(url)
    try:
        sink = open_write(url, storage, _REPLACE)
        try:
            yield SinkFile(sink)
        except BaseException:
            sink.abort()
            raise
        sink.commit()
    except WriteError as error:
        if scheme_of(url) == "-" and isinstance(error.__cause__, BrokenPipeError):
            raise error.__cause__ from None  # the reader has read enough
        raise


@contextmanager
def published_path(url: str, storage: StorageOptions) -> Iterator[str]:
    """Yield the path of a hidden file beside the target, or of a temporary one, and publish it."""
    if not is_local(url):
        with tempfile.TemporaryDirectory(prefix="tarmac-") as folder:
            path = os.path.join(folder, "export")
            yield path
            with published_stream(url, storage) as file, open(path, "rb") as written:
                while chunk := written.read(MIB):
                    file.write(chunk)
        return
    make_directory(url)
    sink = _PathSink(url, _REPLACE)
    try:
        yield sink.path
    except BaseException:
        sink.abort()
        raise
    sink.commit()


class _PathSink(LocalSink):
    """A part file that a library writes to, by its path."""

    @property
    def path(self) -> str:
        """Return the path of the incomplete file."""
        return str(self._target.with_name(self._part))

    def commit(self) -> None:
        self._written = os.fstat(self._fd).st_size  # the sink has not seen the writes
        super().commit()
