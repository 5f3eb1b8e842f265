"""YAML: one document per sample, a mapping of `__key__` and the fields; bytes are `!!binary`."""

from __future__ import annotations

from typing import Any

from tarmac.samples.grouping import Sample
from tarmac.tools.export.formats import Format, RowOptions, SinkFile, Writer, payload, register_format
from tarmac.tools.export.values import Json


class _Documents(Writer):
    def __init__(self, file: SinkFile, row: RowOptions) -> None:
        import yaml

        self._file, self._row = file, row
        self._dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the same text, but faster
        self._dump: Any = yaml.dump

    def add(self, sample: Sample) -> int:
        values = self._row.values(sample)
        plain = {name: value.value() if isinstance(value, Json) else value for name, value in values.items()}
        text = self._dump(
            plain, Dumper=self._dumper, explicit_start=True, allow_unicode=True, sort_keys=False, width=1000
        )
        self._file.write(text.encode())
        return payload(sample)


register_format(Format("yaml", _Documents, (".yaml", ".yml"), text=True))
