"""Parquet: a column per field, written in row groups, of which one is in memory.

Integers are int64, text and JSON are strings, everything else is binary. For Hugging Face, images are
`struct{bytes, path}`, as the `huggingface` metadata of the schema declares.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from tarmac.errors import EncodeFailed
from tarmac.samples.grouping import Sample
from tarmac.tools.export.formats import KEY, RowOptions, SinkFile, Writer, payload

MAX_ROWS = 10_000
"""Rows per group."""
MAX_BYTES = 64 << 20
"""Approximate bytes per group."""
_MAX_VALUE = (1 << 31) - 1
_TYPES = {"int": "int64", "text": "string", "json": "string", "bytes": "binary"}


def features_of(row: RowOptions, *, images: bool) -> dict[str, str]:
    """Return the type of each column: an Arrow type, or `image`."""
    names = {KEY: "string"} if row.key else {}
    for column in row.columns or ():
        kind = row.kinds.of(column)
        image = images and kind == "bytes" and row.kinds.is_image(column)
        names[column] = "image" if image else _TYPES[kind]
    return names


def _schema(features: dict[str, str], *, images: bool) -> Any:
    import pyarrow as pa

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    types = {name: image if kind == "image" else getattr(pa, kind)() for name, kind in features.items()}
    schema = pa.schema(list(types.items()))
    if not images:
        return schema
    declared = {
        name: {"_type": "Image"} if kind == "image" else {"dtype": kind, "_type": "Value"}
        for name, kind in features.items()
    }
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": declared}})})


class ParquetWriter(Writer):
    """Writes row groups; `images` declares images for Hugging Face."""

    def __init__(self, file: SinkFile, row: RowOptions, *, images: bool = False) -> None:
        import pyarrow.parquet as pq

        self._row = row
        features = features_of(row, images=images)
        self._schema = _schema(features, images=images)
        self._images = {index for index, kind in enumerate(features.values()) if kind == "image"}
        plain = [name for name, kind in features.items() if kind not in ("binary", "image")]
        # Payload values are all different, and nothing needs their minimum and maximum.
        self._file = pq.ParquetWriter(file, self._schema, use_dictionary=plain, write_statistics=plain)
        self._rows: list[list[Any]] = []
        self._bytes = 0

    def add(self, sample: Sample) -> int:
        row, size = self._row.row(sample), payload(sample)
        for index, value in enumerate(row):
            if value is not None and not isinstance(value, int) and len(value) > _MAX_VALUE:
                raise EncodeFailed(f"expected a value of at most {_MAX_VALUE} bytes, got {len(value)}.")
            if index in self._images and value is not None:
                row[index] = {"bytes": value, "path": self._path(sample, index)}
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= MAX_ROWS or self._bytes >= MAX_BYTES:
            self._flush()
        return size

    def _path(self, sample: Sample, index: int) -> str:
        key = sample["__key__"].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return f"{key}.{self._schema.names[index]}"

    def _flush(self) -> None:
        import pyarrow as pa

        rows, self._rows, self._bytes = self._rows, [], 0
        columns = zip(*rows, strict=True) if rows else [()] * len(self._schema)
        arrays = [
            pa.array(list(column), each.type) for column, each in zip(columns, self._schema, strict=True)
        ]
        self._file.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def finish(self) -> None:
        if self._rows:
            self._flush()
        self._file.close()

    def close(self) -> None:
        self._rows.clear()
        with contextlib.suppress(Exception):  # the end of an abandoned file does not matter
            self._file.close()
