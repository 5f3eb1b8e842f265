"""Convert CSV, TSV and JSON lines to Parquet, so that every engine reads the same rows with the same types.

A first pass writes all cells as text and notes which kinds of values a column has. The kinds of all tables together
decide its type, and a second pass converts the text. Empty cells are nulls. A JSON value that is a list or an object
stays JSON text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarmac.codecs.basic import json_loads
from tarmac.errors import DecodeFailed
from tarmac.selecting.dirt import Dirt, as_text
from tarmac.selecting.schemas import check_distinct

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 16 << 20
"""Bytes that are parsed at a time; no row may be longer."""
LINES = 16_384
"""JSON objects per batch."""
_INTEGER = r"^[+-]?(0|[1-9][0-9]*)$"
_NUMBER = r"^[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(nan|NaN|NAN|inf|Infinity)$"
"""What `007` matches neither of, since it may be a name."""
_LARGEST = 1 << 63
Kinds = dict[str, set[str]]


@dataclass
class TextTable:
    """A table of text, as Parquet with text columns."""

    path: str
    names: list[str]
    kinds: Kinds = field(default_factory=dict)
    """The kinds of values of each column: integer, number, boolean, text."""


def convert_csv(chunks: Iterable[bytes], path: str, *, url: str, delimiter: str, dirt: Dirt) -> TextTable:
    """Write the cells of a CSV or TSV table as text."""
    import pyarrow as pa
    from pyarrow import csv

    def skip(_row: Any) -> str:
        dirt.unreadable_rows += 1
        return "skip"

    source = io.BufferedReader(_Chunks(chunks), BLOCK)
    names = _header(source, url, delimiter)
    parse = csv.ParseOptions(
        delimiter=delimiter,
        quote_char='"' if delimiter == "," else False,
        newlines_in_values=delimiter == ",",
        invalid_row_handler=skip,
    )
    convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()), check_utf8=False)
    read = csv.ReadOptions(block_size=BLOCK, use_threads=False, column_names=names)
    table = TextTable(path, names, {name: set() for name in names})
    try:
        with csv.open_csv(source, read, parse, convert) as reader:
            _write_texts(table, reader, dirt)
    except pa.ArrowInvalid as error:
        if "Empty CSV" not in str(error):  # a table with a header and no rows
            raise DecodeFailed(f"invalid table: {error}.", url=url) from None
        _write_texts(table, (), dirt)
    return table


def _header(source: Any, url: str, delimiter: str) -> list[str]:
    """Read the first line of a table."""
    import csv

    line = source.readline(BLOCK).decode("utf-8-sig", "replace")
    style: dict[str, Any] = {} if delimiter == "," else {"quoting": csv.QUOTE_NONE}
    names = [
        name.strip() for name in next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter, **style), [])
    ]
    if not names or not all(names):
        raise DecodeFailed("line 1: expected the names of columns.", url=url)
    if "\0" in line:
        raise DecodeFailed("line 1: expected the names of columns in UTF-8; is the file UTF-16?", url=url)
    check_distinct(url, names)
    return names


def _write_texts(table: TextTable, batches: Iterable[pa.RecordBatch], dirt: Dirt) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in table.names])
    with pq.ParquetWriter(table.path, schema) as writer:
        for batch in batches:
            columns = []
            for name, cells in zip(table.names, batch.columns, strict=True):
                texts = as_text(cells, dirt)
                texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
                table.kinds[name] |= _kinds_of(texts, table.kinds[name])
                columns.append(texts)
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _kinds_of(texts: pa.Array, known: set[str]) -> set[str]:
    """Return the kinds of values that cells can be read as."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "text" in known or texts.null_count == len(texts):
        return set()
    if pc.all(pc.match_substring_regex(texts, _INTEGER)).as_py():
        try:
            without_plus(texts).cast(pa.int64())
        except pa.ArrowInvalid:  # too large: rather text than a rounded number
            return {"text"}
        return {"integer"}
    return {"number"} if pc.all(pc.match_substring_regex(texts, _NUMBER)).as_py() else {"text"}


def without_plus(texts: pa.Array) -> pa.Array:
    """Return numbers without the sign that Arrow does not parse."""
    import pyarrow.compute as pc

    return pc.replace_substring_regex(texts, r"^\+", "")


def convert_json(chunks: Iterable[bytes], path: str, *, url: str, dirt: Dirt) -> TextTable:
    """Write the members of JSON objects as text, one object per line."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts: list[str] = []
    kinds: Kinds = {}

    def flush(rows: list[dict[str, str | None]]) -> None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        values = {name: pa.array([row.get(name) for row in rows], pa.string()) for name in names}
        parts.append(f"{path}.{len(parts)}")
        pq.write_table(pa.table(values), parts[-1])

    rows: list[dict[str, str | None]] = []
    for line in io.BufferedReader(_Chunks(chunks), BLOCK):
        row = _parse(line, dirt)
        if row is not None:
            rows.append({name: _cell(value, kinds.setdefault(name, set())) for name, value in row.items()})
        if len(rows) == LINES:
            flush(rows)
            rows = []
    if rows or not parts:
        flush(rows)
    if not kinds:
        raise DecodeFailed("expected JSON objects, one per line.", url=url)
    _merge(parts, path, list(kinds))
    return TextTable(path, list(kinds), kinds)


def _merge(parts: Sequence[str], path: str, names: Sequence[str]) -> None:
    """Write batches that have different columns to one file."""
    import os

    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in names])
    with pq.ParquetWriter(path, schema) as writer:
        for part in parts:
            table = pq.read_table(part)
            columns = [
                table[name] if name in table.column_names else pa.nulls(len(table), pa.string())
                for name in names
            ]
            writer.write_table(pa.table(columns, schema=schema))
            os.unlink(part)


def _parse(line: bytes, dirt: Dirt) -> dict[str, Any] | None:
    """Parse a line; None if it is blank or not an object."""
    if not line.strip():
        return None
    try:
        line.decode()
    except UnicodeDecodeError:
        line = line.decode("utf-8", "replace").encode()
        dirt.repaired_values += 1
    try:
        row = json_loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        dirt.unreadable_rows += 1
        return None
    return row


def _cell(value: Any, kinds: set[str]) -> str | None:
    """Return a JSON value as text, and add its kind."""
    if value is None:
        return None
    if isinstance(value, str):
        kinds.add("text")
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, bool):
        kinds.add("boolean")
        return "true" if value else "false"
    if isinstance(value, int):
        kinds.add("integer" if -_LARGEST <= value < _LARGEST else "text")
        return str(value)
    kinds.add("number" if isinstance(value, float) else "text")
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=True, sort_keys=True)


def type_of(kinds: set[str]) -> Any:
    """Return the type of a column that has values of these kinds."""
    import pyarrow as pa

    if kinds == {"boolean"}:
        return pa.bool_()
    if kinds == {"integer"}:
        return pa.int64()
    return pa.float64() if kinds and kinds <= {"integer", "number"} else pa.string()


def convert_types(table: TextTable, kinds: Kinds, path: str) -> None:
    """Write a table again, with the types of columns that have these kinds of values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, type_of(kinds[name])) for name in table.names])
    with pq.ParquetFile(table.path) as source, pq.ParquetWriter(path, schema) as writer:
        for batch in source.iter_batches():
            columns = [
                column if pa.types.is_string(each.type) else without_plus(column).cast(each.type)
                for column, each in zip(batch.columns, schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


class _Chunks(io.RawIOBase):
    """A file of chunks of bytes that arrive one after the other."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
