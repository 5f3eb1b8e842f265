"""The sources of `pack`: one file per type of source, each of which registers its formats."""

from __future__ import annotations

from tarmac.tools.pack.sources import directory, imagefolder, recipe, table
from tarmac.tools.pack.sources.registry import SOURCES, SourceFormat, open_source, register_source
from tarmac.tools.pack.sources.source import File, Item, Location, Skipped, Source, SourceOptions

__all__ = [
    "directory",
    "File",
    "imagefolder",
    "Item",
    "Location",
    "open_source",
    "recipe",
    "register_source",
    "Skipped",
    "Source",
    "SourceFormat",
    "SourceOptions",
    "SOURCES",
    "table",
]
