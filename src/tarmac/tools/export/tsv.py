r"""Tables as text, with a header of column names: tab-separated values, and comma-separated ones.

In tsv a tab, a line break and a backslash inside a value are written `\t`, `\n`, `\r` and `\\`, so that a
line is always a row. In csv such a value stands between quotes, as RFC 4180 says. A missing field is empty.
"""

from __future__ import annotations

import csv
import io
from typing import Any

from tarmac.errors import UrlError
from tarmac.samples.grouping import Sample
from tarmac.tools.export.form import KEY, Shape, SinkFile, Writer, payload

__all__ = ["open_writer"]

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def open_writer(name: str, file: SinkFile, shape: Shape) -> Writer:
    """Begin a table of text."""
    for column in shape.columns or ():
        if shape.kinds.of(column) == "bytes":
            raise UrlError(
                f'the field "{column}" holds bytes, which have no place in a table of text.',
                hint=f"--fields -{column} leaves it out, --as {column}=text if it is text.",
            )
    return _Table(file, shape, _tsv if name == "tsv" else _csv)


class _Table(Writer):
    def __init__(self, file: SinkFile, shape: Shape, line: Any) -> None:
        self._file, self._shape, self._line = file, shape, line
        if shape.header:
            names = [KEY] if shape.key else []
            self._write([*names, *(shape.columns or ())])

    def add(self, sample: Sample) -> int:
        self._write(["" if value is None else str(value) for value in self._shape.row(sample)])
        return payload(sample)

    def _write(self, row: list[str]) -> None:
        self._file.write(self._line(row).encode())


def _tsv(row: list[str]) -> str:
    return "\t".join(value.translate(_ESCAPES) for value in row) + "\n"


def _csv(row: list[str]) -> str:
    stream = io.StringIO()
    # A value is quoted only for what the end of a line is made of, and readers end one at a bare \r, too.
    csv.writer(stream, lineterminator="\r\n").writerow(row)
    return stream.getvalue().removesuffix("\r\n") + "\n"
