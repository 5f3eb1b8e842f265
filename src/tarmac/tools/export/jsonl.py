"""JSON lines: one object for each sample, in one line.

`__key__` comes first. Text is a string, a whole number a number, JSON is itself, and bytes are a string in
base64: which fields those are is told by their names.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from tarmac.samples.grouping import Sample
from tarmac.tools.export.form import Shape, SinkFile, Writer, payload
from tarmac.tools.export.values import Json

__all__ = ["open_writer"]


def open_writer(name: str, file: SinkFile, shape: Shape) -> Writer:
    """Begin a file of JSON lines."""
    del name
    return _Lines(file, shape)


class _Lines(Writer):
    def __init__(self, file: SinkFile, shape: Shape) -> None:
        self._file, self._shape = file, shape

    def add(self, sample: Sample) -> int:
        pairs = (f"{_text(name)}: {_value(value)}" for name, value in self._shape.pairs(sample).items())
        self._file.write(f"{{{', '.join(pairs)}}}\n".encode())
        return payload(sample)


def _value(value: Any) -> str:
    if isinstance(value, Json):
        return value
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    return _text(value) if isinstance(value, str) else str(value)


def _text(value: str) -> str:
    """A string of JSON, readable where it can be: what is half a character is written as its number."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return json.dumps(value, ensure_ascii=False)
