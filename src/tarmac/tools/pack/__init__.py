"""Pack files, folders, tables and generated samples into shards."""

from __future__ import annotations

from tarmac.tools.pack.sources.source import (
    SOURCES,
    Skipped,
    Source,
    SourceFormat,
    SourceOptions,
    register_source,
)
from tarmac.tools.pack.verb import PackReport, pack

__all__ = [
    "pack",
    "PackReport",
    "register_source",
    "Skipped",
    "Source",
    "SourceFormat",
    "SourceOptions",
    "SOURCES",
]
