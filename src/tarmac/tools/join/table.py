"""Tables as a source of fields: CSV, TSV, JSON lines and Parquet, a row for each key.

A column becomes a field of its name where its values fit the extension (`cls` whole numbers, `json` JSON,
`txt` text); else text goes to `name.txt`, binary data to `name`, and anything else to `name.json`.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tarmac.codecs import find_codec, json_loads
from tarmac.errors import DecodeFailed, EncodeFailed, UrlError

__all__ = ["Column", "is_table", "json_bytes", "kind_of", "Row", "Table"]

Row = tuple[str, dict[str, Any]]
"""A key, and values by column."""
_KEYS = ("key", "__key__")
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_LONGEST_CELL = 1 << 30


def is_table(url: str) -> bool:
    """Whether a name is that of a table."""
    return _reader_of(url) is not None


@dataclass
class Column:
    """What the values of a column are, seen one by one, and the field that they become."""

    name: str
    typed: bool
    """Whether values have types of their own; where all is text, text may stand for anything."""
    seen: set[str] = field(default_factory=set)

    def see(self, value: Any) -> None:
        """Take notice of a value."""
        if value is None:
            return
        if isinstance(value, bytes):
            self.seen.add("bytes")
        elif not isinstance(value, str):
            self.seen.add("whole" if isinstance(value, int) and not isinstance(value, bool) else "other")
        elif not value and not self.typed:
            self.seen.add("empty")
        elif _WHOLE.fullmatch(value) and not self.typed:
            self.seen.add("whole text")
        else:
            self.seen.add("json text" if not self.typed and _is_json(value, self.seen) else "text")

    @property
    def field(self) -> str:
        """The name of the field."""
        kind, name = _kind(self.name), self.name
        if self.seen <= {"bytes"}:
            return name
        if kind == "int" and self.seen <= {"whole", "whole text", "empty"}:
            return name
        texts = self.seen <= {"text", "json text", "whole text", "empty"}
        if kind == "text" and texts:
            return name
        if kind == "json" and (self.typed or "text" not in self.seen):
            return name
        return f"{name}.txt" if texts else f"{name}.json"

    def encode(self, value: Any) -> bytes | None:
        """The bytes of a value; None where there is none."""
        if value is None or isinstance(value, bytes):
            return value
        kind = _kind(self.field)
        if kind == "text" and isinstance(value, str):
            return value.encode()
        if not self.typed and isinstance(value, str):  # it is what it stands for already
            return value.strip().encode() or None
        return b"%d" % value if kind == "int" else json_bytes(value)


def _kind(field: str) -> str:
    """Return what a field holds, if values of that kind can be written to it."""
    codec = find_codec(field)
    return "bytes" if codec is None or codec.encode is None else codec.kind


def _is_json(text: str, seen: set[str]) -> bool:
    if "text" in seen:
        return False  # it cannot matter any more
    try:
        json_loads(text.encode())
    except (ValueError, RecursionError):
        return False
    return True


def json_bytes(value: Any) -> bytes:
    """A value as JSON; times as ISO 8601."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        raise EncodeFailed("binary data cannot be part of JSON.", hint="without --as json it is a field.")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


class Table:
    """A table of one or several local files. Rows come from the files each time they are asked for."""

    def __init__(self, paths: Sequence[str], names: Sequence[str], key: str = "") -> None:
        self._files = list(zip(paths, names, strict=True))
        """Where each file is, and what the user calls it."""
        self._key = key
        self.columns: dict[str, Column] = {}

    def look(self) -> None:
        """Go through all values once, to see what the columns are."""
        for _, row in self.rows():
            for name, value in row.items():
                if name not in self.columns:
                    self.columns[name] = Column(name, self._typed)
                self.columns[name].see(value)

    @property
    def _typed(self) -> bool:
        return _reader_of(self._files[0][1]) not in (_read_csv, _read_tsv)

    def rows(self) -> Iterator[Row]:
        """Each row as fields, whose names have no capitals; the column of the key is not among them."""
        for name, column, row in self._found():
            key = str(row.pop(column))
            fields = {each.lower(): value for each, value in row.items()}
            if len(fields) != len(row):
                raise _alike(row, name, key)
            yield key, fields

    def whole(self) -> Iterator[Row]:
        """Each row as it is in the table, the column of the key among the others."""
        for _, column, row in self._found():
            yield str(row[column]), row

    def _found(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """The name of the file, the column of the key, and the row, which has a key."""
        for path, name in self._files:
            reader = _reader_of(name)
            assert reader is not None
            for number, row in enumerate(reader(path, name), 1):
                column = self._key_column(row, name)
                key = row[column]
                if not isinstance(key, str | int) or isinstance(key, bool) or key == "":
                    raise DecodeFailed(f"row {number} has no key in {column!r}, but {key!r}.", url=name)
                yield name, column, row

    def _key_column(self, row: dict[str, Any], name: str) -> str:
        for column in (self._key,) if self._key else _KEYS:
            if column in row:
                return column
        wanted = self._key or " or ".join(_KEYS)
        hint = f"--key COLUMN; there is {', '.join(map(str, row))[:300]}."
        raise UrlError(f"the table has no column {wanted}.", url=name, hint=hint)


def _alike(row: dict[str, Any], url: str, key: str) -> UrlError:
    spelled = Counter(column.lower() for column in row)
    names = ", ".join(column for column in row if spelled[column.lower()] > 1)
    return UrlError(
        f"two columns have the same name but for capitals, and fields have none: {names[:300]}.",
        url=url,
        key=key,
        hint="another name for one of them, or --as json, which keeps them as they are.",
    )


def _check_names(names: Sequence[str], url: str) -> None:
    if len(set(names)) != len(names):
        raise UrlError("two columns of the table have the same name.", url=url)


def _read_csv(path: str, name: str) -> Iterator[dict[str, Any]]:
    yield from _separated(path, name, delimiter=",", strict=True)


def _read_tsv(path: str, name: str) -> Iterator[dict[str, Any]]:
    # Quotation marks are part of the text: only tabs and ends of lines separate.
    yield from _separated(path, name, delimiter="\t", quoting=csv.QUOTE_NONE)


def _separated(path: str, name: str, **dialect: Any) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(_LONGEST_CELL)
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, **dialect)
        try:
            head = next(reader, [])
            _check_names(head, name)
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(head):
                    what = f"line {reader.line_num} has {len(cells)} cells, the first line {len(head)}."
                    raise DecodeFailed(what, url=name)
                yield dict(zip(head, cells, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise DecodeFailed(f"line {reader.line_num + 1}: {error}.", url=name) from None


def _read_lines(path: str, name: str) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json_loads(line.strip())
            except (ValueError, RecursionError) as error:
                raise DecodeFailed(f"line {number} is no JSON: {error}.", url=name) from None
            if not isinstance(row, dict):
                raise DecodeFailed(f"line {number} is no object, but {type(row).__name__}.", url=name)
            yield row


def _read_parquet(path: str, name: str) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_names(file.schema_arrow.names, name)
            for batch in file.iter_batches(batch_size=1000):
                for row in batch.to_pylist():
                    yield {column: _present(value) for column, value in row.items()}
    except (pa.ArrowException, OSError) as error:
        raise DecodeFailed(f"this Parquet file cannot be read: {error}", url=name) from None


def _present(value: Any) -> Any:
    """NaN is how many writers of Parquet say that there is no value."""
    return None if isinstance(value, float) and math.isnan(value) else value


_READERS: dict[str, Callable[[str, str], Iterator[dict[str, Any]]]] = {
    "csv": _read_csv,
    "tsv": _read_tsv,
    "jsonl": _read_lines,
    "ndjson": _read_lines,
    "parquet": _read_parquet,
}


def _reader_of(url: str) -> Callable[[str, str], Iterator[dict[str, Any]]] | None:
    return _READERS.get(kind_of(url))


def kind_of(url: str) -> str:
    """What kind of table a name is that of: its extension, without that of a compression."""
    name = url.partition("?")[0].lower()
    for packed in (".gz", ".zst", ".bz2", ".xz"):
        name = name.removesuffix(packed)
    return name.rpartition(".")[2] if "." in name else ""
