"""Parquet: a column for each field, some thousand rows together, one group in memory at a time.

Whole numbers are int64, text and JSON are strings, everything else is binary. For Hugging Face (`--to hf`)
images are `struct{bytes, path}`, and the schema says so in its `huggingface` metadata.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from tarmac.errors import EncodeFailed
from tarmac.samples.grouping import Sample
from tarmac.tools.export.form import KEY, Shape, SinkFile, Writer, payload

__all__ = ["features_of", "open_writer"]

ROWS = 10_000
"""Rows of a group, at most, ..."""
BYTES = 64 << 20
"""... and about how many bytes."""
_LARGEST = (1 << 31) - 1
_TYPES = {"int": "int64", "text": "string", "json": "string", "bytes": "binary"}


def open_writer(name: str, file: SinkFile, shape: Shape) -> Writer:
    """Begin a Parquet file, for Hugging Face or for everybody."""
    return _Groups(file, shape, images=name == "hf")


def features_of(shape: Shape, *, images: bool) -> dict[str, str]:
    """What each column is: a type of Arrow, or `image`."""
    names = {KEY: "string"} if shape.key else {}
    for column in shape.columns or ():
        kind = shape.kinds.of(column)
        image = images and kind == "bytes" and shape.kinds.is_image(column)
        names[column] = "image" if image else _TYPES[kind]
    return names


def _schema(features: dict[str, str], *, images: bool) -> Any:
    import pyarrow as pa

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    types = {name: image if kind == "image" else getattr(pa, kind)() for name, kind in features.items()}
    schema = pa.schema(list(types.items()))
    if not images:
        return schema
    told = {
        name: {"_type": "Image"} if kind == "image" else {"dtype": kind, "_type": "Value"}
        for name, kind in features.items()
    }
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": told}})})


class _Groups(Writer):
    def __init__(self, file: SinkFile, shape: Shape, *, images: bool) -> None:
        import pyarrow.parquet as pq

        self._shape = shape
        features = features_of(shape, images=images)
        self._schema = _schema(features, images=images)
        self._images = {place for place, kind in enumerate(features.values()) if kind == "image"}
        plain = [name for name, kind in features.items() if kind not in ("binary", "image")]
        # Payload has no two values alike, and its smallest and largest tell nobody anything.
        self._file = pq.ParquetWriter(file, self._schema, use_dictionary=plain, write_statistics=plain)
        self._rows: list[list[Any]] = []
        self._bytes = 0

    def add(self, sample: Sample) -> int:
        row, size = self._shape.row(sample), payload(sample)
        for place, value in enumerate(row):
            if value is not None and not isinstance(value, int) and len(value) > _LARGEST:
                raise EncodeFailed(f"a value of {len(value)} bytes; Parquet readers take {_LARGEST}.")
            if place in self._images and value is not None:
                row[place] = {"bytes": value, "path": self._path(sample, place)}
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= ROWS or self._bytes >= BYTES:
            self._flush()
        return size

    def _path(self, sample: Sample, place: int) -> str:
        key = sample["__key__"].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return f"{key}.{self._schema.names[place]}"

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
        with contextlib.suppress(Exception):  # what was given up has an end that nobody needs
            self._file.close()
