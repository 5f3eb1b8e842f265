"""Export samples to formats that other programs read: one file per format, each of which registers itself."""

from __future__ import annotations

from tarmac.tools.export import directory, hf, jsonl, lmdb, parquet, sqlite, tfrecord, tsv, yaml
from tarmac.tools.export.formats import (
    FORMATS,
    Format,
    RowOptions,
    SinkFile,
    Writer,
    payload,
    register_format,
)
from tarmac.tools.export.verb import export

__all__ = [
    "directory",
    "export",
    "Format",
    "FORMATS",
    "hf",
    "jsonl",
    "lmdb",
    "parquet",
    "payload",
    "register_format",
    "RowOptions",
    "SinkFile",
    "sqlite",
    "tfrecord",
    "tsv",
    "Writer",
    "yaml",
]
