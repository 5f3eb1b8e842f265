"""YAML: one document for each sample, a mapping of `__key__` and the fields; bytes are `!!binary`."""

from __future__ import annotations

from typing import Any

from tarmac.samples.grouping import Sample
from tarmac.tools.export.form import Shape, SinkFile, Writer, payload
from tarmac.tools.export.values import Json

__all__ = ["open_writer"]


def open_writer(name: str, file: SinkFile, shape: Shape) -> Writer:
    """Begin a file of YAML documents."""
    del name
    return _Documents(file, shape)


class _Documents(Writer):
    def __init__(self, file: SinkFile, shape: Shape) -> None:
        import yaml

        self._file, self._shape = file, shape
        self._dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the same text, made faster
        self._dump: Any = yaml.dump

    def add(self, sample: Sample) -> int:
        pairs = self._shape.pairs(sample)
        plain = {name: value.value() if isinstance(value, Json) else value for name, value in pairs.items()}
        text = self._dump(
            plain, Dumper=self._dumper, explicit_start=True, allow_unicode=True, sort_keys=False, width=1000
        )
        self._file.write(text.encode())
        return payload(sample)
