"""JSON lines: one object per line and sample, with `__key__` first.

Text is a string, an integer a number, JSON is itself, and bytes are a string in base64.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from tarmac.samples.grouping import Sample
from tarmac.tools.export.formats import Format, RowOptions, SinkFile, Writer, payload, register_format
from tarmac.tools.export.values import Json


class _Lines(Writer):
    def __init__(self, file: SinkFile, row: RowOptions) -> None:
        self._file, self._row = file, row

    def add(self, sample: Sample) -> int:
        pairs = (f"{_text(name)}: {_value(value)}" for name, value in self._row.values(sample).items())
        self._file.write(f"{{{', '.join(pairs)}}}\n".encode())
        return payload(sample)


def _value(value: Any) -> str:
    if isinstance(value, Json):
        return value
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    return _text(value) if isinstance(value, str) else str(value)


def _text(value: str) -> str:
    """Return a JSON string, readable except for lone surrogates, which are escaped."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


register_format(Format("jsonl", _Lines, (".jsonl", ".ndjson"), text=True))
