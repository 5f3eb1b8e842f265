r"""Tables of text with a header of column names: tab-separated and comma-separated values.

In tsv, tabs, line breaks and backslashes inside a value are written `\t`, `\n`, `\r` and `\\`, so that each line is
a row. In csv, such a value is quoted as in RFC 4180. A missing field is empty.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from functools import partial

from tarmac.errors import UsageError
from tarmac.samples.grouping import Sample
from tarmac.tools.export.formats import KEY, Format, RowOptions, SinkFile, Writer, payload, register_format

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
Line = Callable[[list[str]], str]


def _open(line: Line, file: SinkFile, row: RowOptions) -> Writer:
    for column in row.columns or ():
        if row.kinds.of(column) == "bytes":
            raise UsageError(
                f'the field "{column}" holds bytes, which a table of text cannot hold.',
                hint=f"`drop_fields` to drop it, or `kinds` {column}=text if it is text.",
            )
    return _Table(file, row, line)


class _Table(Writer):
    def __init__(self, file: SinkFile, row: RowOptions, line: Line) -> None:
        self._file, self._row, self._line = file, row, line
        if row.header:
            names = [KEY] if row.key else []
            self._write([*names, *(row.columns or ())])

    def add(self, sample: Sample) -> int:
        self._write(["" if value is None else str(value) for value in self._row.row(sample)])
        return payload(sample)

    def _write(self, cells: list[str]) -> None:
        self._file.write(self._line(cells).encode())


def _tsv(cells: list[str]) -> str:
    return "\t".join(value.translate(_ESCAPES) for value in cells) + "\n"


def _csv(cells: list[str]) -> str:
    stream = io.StringIO()
    # Values are quoted if they contain characters of the line end, and a bare \r ends a line for some readers.
    csv.writer(stream, lineterminator="\r\n").writerow(cells)
    return stream.getvalue().removesuffix("\r\n") + "\n"


register_format(Format("tsv", partial(_open, _tsv), (".tsv",), table=True, text=True))
register_format(Format("csv", partial(_open, _csv), (".csv",), table=True, text=True))
