"""Export samples to formats that other programs read."""

from __future__ import annotations

from functools import partial

from tarmac.tools.export.directory import DirectoryDestination, DirectoryWriter
from tarmac.tools.export.formats import (
    FORMATS,
    Format,
    RowOptions,
    SinkFile,
    Writer,
    payload,
    register_format,
)
from tarmac.tools.export.hf import HubDestination
from tarmac.tools.export.lmdb import LmdbWriter
from tarmac.tools.export.parquet import ParquetWriter
from tarmac.tools.export.sqlite import SqliteWriter
from tarmac.tools.export.text import TextWriter, join_csv, join_tsv, open_table, to_jsonl, to_yaml
from tarmac.tools.export.tfrecord import TfrecordWriter
from tarmac.tools.export.verb import export

__all__ = [
    "export",
    "Format",
    "FORMATS",
    "payload",
    "register_format",
    "RowOptions",
    "SinkFile",
    "Writer",
]

for _format in (
    Format("dir", DirectoryWriter, destination=DirectoryDestination),
    Format("parquet", ParquetWriter, (".parquet",), table=True),
    Format("hf", partial(ParquetWriter, images=True), (".parquet",), table=True, destination=HubDestination),
    Format("jsonl", partial(TextWriter, text=to_jsonl), (".jsonl", ".ndjson"), text=True),
    Format("lmdb", LmdbWriter, (".lmdb", ".mdb"), by_path=True),
    Format("sqlite", SqliteWriter, (".sqlite", ".db", ".sqlite3"), table=True, by_path=True),
    Format("tfrecord", TfrecordWriter, (".tfrecord",)),
    Format("tsv", partial(open_table, join_tsv), (".tsv",), table=True, text=True),
    Format("csv", partial(open_table, join_csv), (".csv",), table=True, text=True),
    Format("yaml", partial(TextWriter, text=to_yaml), (".yaml", ".yml"), text=True),
):
    register_format(_format)
