r"""Text: JSON lines, YAML, and tables of tab-separated and comma-separated values.

In jsonl, each sample is an object in one line, with `__key__` first: text is a string, an integer a number, JSON is
itself, and bytes are a string in base64. `__base64__` lists the fields in base64 whose extension does not imply it. In
yaml, a sample is a document, in which bytes are `!!binary`.

Tables have a header of column names, and a missing field is empty. In tsv, tabs, line breaks and backslashes inside a
value are written `\t`, `\n`, `\r` and `\\`, so that each line is a row. In csv, such a value is quoted as in RFC 4180.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tarmac.codecs import is_binary
from tarmac.errors import UsageError
from tarmac.samples.grouping import Sample
from tarmac.tools.export.formats import KEY, RowOptions, SinkFile, Writer, payload
from tarmac.tools.export.values import Json
from tarmac.tools.tables import BASE64

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
Join = Callable[[list[str]], str]
"""Makes a line of cells."""


@dataclass
class TextWriter(Writer):
    """Writes a text for each sample."""

    file: SinkFile
    row: RowOptions
    text: Callable[[RowOptions, Sample], str]
    """Returns the text of a sample."""

    def add(self, sample: Sample) -> int:
        self.file.write(self.text(self.row, sample).encode())
        return payload(sample)


def to_jsonl(row: RowOptions, sample: Sample) -> str:
    """Return a sample as a line of JSON."""
    values = row.values(sample)
    if row.key and (
        marked := [name for name in values if type(values[name]) is bytes and not is_binary(name)]
    ):
        values[BASE64] = Json(json.dumps(marked))
    pairs = (f"{_json_string(name)}: {_json_value(value)}" for name, value in values.items())
    return f"{{{', '.join(pairs)}}}\n"


def _json_value(value: Any) -> str:
    if isinstance(value, Json):
        return value
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    return _json_string(value) if isinstance(value, str) else str(value)


def _json_string(value: str) -> str:
    """Return a JSON string, readable except for lone surrogates, which are escaped."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def to_yaml(row: RowOptions, sample: Sample) -> str:
    """Return a sample as a YAML document."""
    import yaml

    values = row.values(sample)
    plain = {name: value.value() if isinstance(value, Json) else value for name, value in values.items()}
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the same text, but faster
    text: str = yaml.dump(
        plain, Dumper=dumper, explicit_start=True, allow_unicode=True, sort_keys=False, width=1000
    )
    return text


def open_table(join: Join, file: SinkFile, row: RowOptions) -> Writer:
    """Open a table and write its header; raise if a column holds bytes."""
    for column in row.columns or ():
        if row.kinds.of(column) == "bytes":
            raise UsageError(
                f'the field "{column}" holds bytes, which a table of text cannot hold.',
                hint=f"`drop_fields` to drop it, or `kinds` {column}=text if it is text.",
            )
    if row.header:
        file.write(join([*([KEY] if row.key else []), *(row.columns or ())]).encode())
    return TextWriter(file, row, partial(_line, join))


def _line(join: Join, row: RowOptions, sample: Sample) -> str:
    return join(["" if value is None else str(value) for value in row.row(sample)])


def join_tsv(cells: list[str]) -> str:
    """Return a line of tab-separated values."""
    return "\t".join(value.translate(_ESCAPES) for value in cells) + "\n"


def join_csv(cells: list[str]) -> str:
    """Return a line of comma-separated values."""
    stream = io.StringIO()
    # Values are quoted if they contain characters of the line end, and a bare \r ends a line for some readers.
    csv.writer(stream, lineterminator="\r\n").writerow(cells)
    return stream.getvalue().removesuffix("\r\n") + "\n"
