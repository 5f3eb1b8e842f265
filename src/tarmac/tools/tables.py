"""Read rows of tables: CSV, TSV, JSON lines, Parquet and plain lines.

Tables are scanned once, row by row. Each row has a position, at which it can be read again in any
order, so a plan of millions of rows holds no values.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import itertools
import json
import os
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tarmac.codecs import kind_of
from tarmac.codecs.basic import json_loads
from tarmac.errors import DecodeFailed, ObjectChanged, UrlError
from tarmac.storage import without_query
from tarmac.tar.compression import format_of_name
from tarmac.tools.localcopy import LocalCopy

Row = Mapping[str, Any]
Position = tuple[int, ...]
"""Where a row is: its number, and what else its table needs to find it."""
_MAX_CELL = (1 << 31) - 1
"""Characters per cell; real captions and masks exceed the 128 Ki that the csv module allows."""
_ESCAPE = re.compile(r"\\([tnr\\])")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
EXPORTED_KEY = "__key__"
"""The column by which tables that `export` wrote are recognised."""
BASE64 = "__base64__"
"""The member of a JSON object that lists those of its members that are bytes, unless their names show it."""
_BATCH = 1024
"""Rows per Parquet batch."""


@dataclass(frozen=True)
class Table(ABC):
    """A table in a local file; `url` is its original location."""

    url: str
    local: LocalCopy
    extensions: ClassVar[tuple[str, ...]] = ()
    row_name: ClassVar[str] = "row"
    typed: ClassVar[bool] = True
    """Whether cells have types: an empty cell of text may stand for a missing value."""

    def label(self, position: Position) -> str:
        """Return the name of a row for messages: `row 3`, `line 3`."""
        return f"{self.row_name} {position[0]}"

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The names of all columns."""

    @property
    def types(self) -> Mapping[str, str]:
        """The Arrow types of the columns, if the table states them."""
        return {}

    @property
    def exported(self) -> bool:
        """Whether `export` wrote the table, as a column `__key__` shows."""
        return EXPORTED_KEY in self.names

    @abstractmethod
    def rows(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Position, Row]]:
        """Yield all rows in order, with at least these columns; by default with all."""

    @abstractmethod
    def reader(
        self, positions: Sequence[Position], columns: Sequence[str]
    ) -> AbstractContextManager[Callable[[Position], Row]]:
        """Return a function that reads rows, to be called with these positions in this order."""

    def starts(self, first: int, step: int) -> tuple[list[Position], int]:
        """Return the positions of the rows `first`, `first + step`, …, and the number of rows."""
        starts, count = [], 0
        for count, position in enumerate(self._positions(), 1):
            if count > first and (count - 1 - first) % step == 0:
                starts.append(position)
        return starts, count

    def _positions(self) -> Iterator[Position]:
        return (position for position, _ in self.rows(()))

    def span(self, start: Position, count: int, columns: Sequence[str]) -> Iterator[Row]:
        """Yield `count` rows, from the one at a position on, with at least these columns."""
        rows = itertools.dropwhile(lambda row: row[0] != start, self.rows(columns))
        return itertools.islice((row for _, row in rows), count)

    def _changed(self) -> ObjectChanged:
        return ObjectChanged("the table changed while it was being read.", url=self.url)


class _TextTable(Table):
    """A text file. A position is the number of the row, its offset and its length in bytes."""

    row_name = "line"

    @abstractmethod
    def parse(self, text: bytes, number: int) -> Row | None:
        """Parse the bytes of one row; None if they hold none."""

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Position, Row]]:
        """Yield a row for each line that holds one."""
        offset = 0
        with open(self.local.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if (row := self.parse(line, number)) is not None:
                    yield (number, offset, len(line)), row
                offset += len(line)

    def span(self, start: Position, count: int, columns: Sequence[str]) -> Iterator[Row]:
        with self.local.opened(self.url) as fd, open(fd, "rb", closefd=False) as file:
            file.seek(start[1])
            for row in itertools.islice(self._from(file, start[0]), count):
                count -= 1
                yield row
            if count:
                raise self._changed()

    def _from(self, file: Any, number: int) -> Iterator[Row]:
        """Yield the rows from the position of a file on, which is that of a row."""
        for line_number, line in enumerate(file, number):
            if (row := self.parse(line, line_number)) is not None:
                yield row

    @contextlib.contextmanager
    def reader(
        self, positions: Sequence[Position], columns: Sequence[str]
    ) -> Iterator[Callable[[Position], Row]]:
        with self.local.opened(self.url) as fd:

            def read(position: Position) -> Row:
                number, offset, length = position
                text = os.pread(fd, length, offset)
                row = self.parse(text, number) if len(text) == length else None
                if row is None:
                    raise self._changed()
                return row

            yield read


class Csv(_TextTable):
    """Comma-separated values with quotes. Cells are text and stay as written: `007` is not a number."""

    extensions = (".csv",)
    row_name = "row"
    typed = False
    style: ClassVar[Mapping[str, Any]] = {"delimiter": ","}

    @cached_property
    def names(self) -> list[str]:
        first = next(self._scan(), None)
        if first is None:
            raise UrlError("the table is empty: expected a first row with column names.", url=self.url)
        return first[1]

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Position, Row]]:
        scanned = self._scan()
        next(scanned, None)
        for position, cells, line in scanned:
            yield position, self._row(cells, f"line {line}")

    def parse(self, text: bytes, number: int) -> Row | None:
        for _, cells, _ in self._split(io.BytesIO(text), number):
            return self._row(cells, f"row {number}")
        return None

    def _positions(self) -> Iterator[Position]:
        scanned = self._scan()
        next(scanned, None)
        return (position for position, _, _ in scanned)

    def _from(self, file: Any, number: int) -> Iterator[Row]:
        return (self._row(cells, f"row {at[0]}") for at, cells, _ in self._split(file, number))

    def _scan(self) -> Iterator[tuple[Position, list[str], int]]:
        with open(self.local.path, "rb") as file:
            yield from self._split(file, 0)

    def _split(self, file: Any, number: int) -> Iterator[tuple[Position, list[str], int]]:
        """Yield the position, the cells and the last line number of each row."""
        csv.field_size_limit(_MAX_CELL)
        end = offset = line_number = 0

        def lines() -> Iterator[str]:  # the csv module takes no line before it needs it
            nonlocal end, line_number
            for line in file:
                line_number += 1
                text = line.decode("utf-8-sig" if number == end == 0 else "utf-8")
                end += len(line)
                yield text

        reader = csv.reader(lines(), strict=True, **self.style)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except (csv.Error, UnicodeDecodeError) as error:
                raise DecodeFailed(f"line {line_number}: {error}.", url=self.url) from None
            if cells:
                yield (number, offset, end - offset), cells, line_number
                number += 1
            offset = end

    def _row(self, cells: list[str], label: str) -> Row:
        if len(cells) != len(self.names):
            what = f"{label}: expected {len(self.names)} cells, got {len(cells)}."
            raise DecodeFailed(what, url=self.url)
        return dict(zip(self.names, cells, strict=True))


class Tsv(Csv):
    r"""Tab-separated values; quotes are ordinary characters.

    `\t`, `\n`, `\r` and `\\` are escapes only in a table with the column `__key__`, as `export` writes it: in others,
    a backslash may belong to a path.
    """

    extensions = (".tsv",)
    style: ClassVar[Mapping[str, Any]] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}

    def _row(self, cells: list[str], label: str) -> Row:
        if EXPORTED_KEY in self.names:
            cells = [_ESCAPE.sub(lambda match: _ESCAPED[match[1]], cell) for cell in cells]
        return super()._row(cells, label)


def names_in(rows: Iterable[tuple[Position, Row]]) -> list[str]:
    """Return the columns of rows that may differ, in the order of their first appearance."""
    return list(dict.fromkeys(name for _, row in rows for name in row))


class JsonLines(_TextTable):
    """One JSON object per line. Objects may have different members.

    In an object with the member `__key__`, as `export` writes it, `__base64__` lists members that are bytes, and a
    `json` member is the value itself, even if that is text or null.
    """

    extensions = (".jsonl", ".ndjson")

    @cached_property
    def names(self) -> list[str]:
        names = names_in(self.rows())
        if not names:
            raise UrlError("the table is empty: expected JSON objects.", url=self.url)
        return names

    def parse(self, text: bytes, number: int) -> Row | None:
        content = text.strip()
        if not content:
            return None
        try:
            row = json_loads(content)
        except (ValueError, RecursionError) as error:
            raise DecodeFailed(f"line {number}: invalid JSON: {error}.", url=self.url) from None
        if not isinstance(row, dict):
            what = f"line {number}: expected a JSON object, got {type(row).__name__}."
            raise DecodeFailed(what, url=self.url)
        return self._exported(row, number) if EXPORTED_KEY in row else row

    def _exported(self, row: dict[str, Any], number: int) -> Row:
        for name in row.pop(BASE64, ()):
            try:
                row[name] = base64.b64decode(row[name], validate=True)
            except (KeyError, TypeError, ValueError):
                raise DecodeFailed(f"line {number}: {name!r} is not base64.", url=self.url) from None
        for name, value in row.items():
            if (value is None or type(value) is str) and kind_of(name) == "json":
                row[name] = json.dumps(value).encode()
        return row


class Lines(_TextTable):
    """Lines of text, including blank ones, without their line ends, in the one column `txt`."""

    names: ClassVar[list[str]] = ["txt"]

    def parse(self, text: bytes, number: int) -> Row:
        return {"txt": text.removesuffix(b"\n").removesuffix(b"\r")}


class Parquet(Table):
    """A Parquet file, read in batches. A position is the number of the row, from 0."""

    extensions = (".parquet",)

    def label(self, position: Position) -> str:
        return f"row {position[0] + 1}"

    @contextlib.contextmanager
    def _file(self) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self.local.opened(self.url), pq.ParquetFile(self.local.path) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, ObjectChanged):
                raise
            raise DecodeFailed(f"invalid Parquet file: {error}.", url=self.url) from None
        except DecodeFailed as error:
            raise error.at(url=self.url) from None

    @cached_property
    def names(self) -> list[str]:
        with self._file() as file:
            names: list[str] = file.schema_arrow.names
            return names

    @property
    def types(self) -> Mapping[str, str]:
        with self._file() as file:
            return {each.name: str(each.type) for each in file.schema_arrow}

    def starts(self, first: int, step: int) -> tuple[list[Position], int]:
        with self._file() as file:
            count: int = file.metadata.num_rows
        return [(number,) for number in range(first, count, step)], count

    def span(self, start: Position, count: int, columns: Sequence[str]) -> Iterator[Row]:
        """Read the row groups that hold the rows, in batches, of which other rows are not converted."""
        with self._file() as file:
            first, stop = start[0], start[0] + count
            groups, number = _groups(file, first, stop)
            for batch in file.iter_batches(_BATCH, row_groups=groups, columns=list(columns)):
                low, high = max(first - number, 0), min(stop - number, batch.num_rows)
                if low < high:
                    yield from _rows_of(batch.slice(low, high - low))
                    count -= high - low
                number += batch.num_rows
            if count:
                raise self._changed()

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Position, Row]]:
        with self._file() as file:
            if columns is not None and not columns:
                yield from (((number,), {}) for number in range(file.metadata.num_rows))
                return
            for number, row in _batches(file, columns, range(file.num_row_groups)):
                yield (number,), row

    @contextlib.contextmanager
    def reader(
        self, positions: Sequence[Position], columns: Sequence[str]
    ) -> Iterator[Callable[[Position], Row]]:
        """Stream rows in ascending order; in any other order, read all of them first, each batch once."""
        numbers = [position[0] for position in positions]
        ascending = sorted(numbers)
        with self._file() as file:
            stream = _selected(file, columns, ascending)
            ready: dict[int, Row] = {} if numbers == ascending else dict(stream)

            def read(position: Position) -> Row:
                row = ready.pop(position[0], None)
                while row is None:
                    number, row = next(stream, (-1, None))
                    if row is None:
                        raise self._changed()
                    row = row if number == position[0] else None
                return row

            yield read


def _batches(file: Any, columns: Sequence[str] | None, groups: range) -> Iterator[tuple[int, Row]]:
    number = sum(file.metadata.row_group(group).num_rows for group in range(groups.start))
    selected = None if columns is None else list(columns)
    for batch in file.iter_batches(_BATCH, row_groups=list(groups), columns=selected):
        for row in _rows_of(batch):
            yield number, row
            number += 1


def _rows_of(batch: Any) -> list[Row]:
    """Return the rows of a batch. Text that is not UTF-8, which some programs write, is returned as bytes."""
    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError:
        names = batch.schema.names
        columns = [_values(name, column) for name, column in zip(names, batch.columns, strict=True)]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(name: str, column: Any) -> list[Any]:
    import pyarrow as pa

    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        if pa.types.is_nested(column.type):
            raise DecodeFailed(f"the column {name!r} has text that is not UTF-8.") from None
        plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        return [each if each is None else _as_text(each) for each in plain.cast(pa.binary()).to_pylist()]


def _as_text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _groups(file: Any, first: int, stop: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows of a range, and the number of the first row in them."""
    groups: list[int] = []
    begin = number = 0
    for group in range(file.num_row_groups):
        end = number + file.metadata.row_group(group).num_rows
        if number < stop and first < end:
            begin = begin if groups else number
            groups.append(group)
        number = end
    return groups, begin


def _selected(file: Any, columns: Sequence[str], numbers: list[int]) -> Iterator[tuple[int, Row]]:
    """Yield the rows with these ascending numbers, reading only the row groups that hold them."""
    wanted, start = set(numbers), 0
    for group in range(file.num_row_groups):
        stop = start + file.metadata.row_group(group).num_rows
        if bisect_left(numbers, start) < bisect_left(numbers, stop):
            rows = _batches(file, columns, range(group, group + 1))
            yield from ((number, row) for number, row in rows if number in wanted)
        start = stop


TABLES: dict[str, type[Table]] = {
    "csv": Csv,
    "tsv": Tsv,
    "jsonl": JsonLines,
    "parquet": Parquet,
    "lines": Lines,
}
"""The table formats, by name."""


def table_format(url: str) -> str | None:
    """Return the format of the table that a URL names, by its extension; None if it names no table."""
    name = without_query(url).lower()
    if format_of_name(name):
        name = name.rpartition(".")[0]
    return next((known for known, table in TABLES.items() if name.endswith(table.extensions)), None)
