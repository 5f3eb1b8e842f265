"""The registry of source formats: what `pack` reads, by name or extension."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from tarmac.errors import NotFound, UrlError, UsageError
from tarmac.storage import is_local
from tarmac.storage.local import local_path
from tarmac.tar.compression import format_of_name
from tarmac.tools.pack.sources.source import Source, SourceOptions


@dataclass(frozen=True)
class SourceFormat:
    """A format of sources."""

    name: str
    open: Callable[[str, SourceOptions], Source]
    """Called with the URL and the options."""
    extensions: tuple[str, ...] = ()
    """Extensions by which it is recognised: `(".csv",)`. Compression extensions may follow."""
    has_columns: bool = False
    """Whether `key`, `columns` and `files` apply to it."""
    lists_files: bool = False
    """Whether it names files, which may be relative to `base`."""


SOURCES: dict[str, SourceFormat] = {}
"""The source formats, by name."""


def register_source(source: SourceFormat) -> None:
    """Register a format that `tarmac.pack` reads."""
    SOURCES[source.name] = source


def guess_format(url: str) -> str:
    """Return the format of a source by its name."""
    if url.endswith("/") or (is_local(url) and os.path.isdir(local_path(url))):
        return "dir"
    name = (url if is_local(url) else url.partition("?")[0]).lower()
    if format_of_name(name):
        name = name.rpartition(".")[0]
    for source in SOURCES.values():
        if name.endswith(source.extensions):
            return source.name
    if url != "-" and is_local(url) and not os.path.exists(local_path(url)):
        raise NotFound("no such file or directory.", url=url)
    if ".tar" in os.path.basename(name):
        raise UrlError("this is already a shard.", url=url, hint="tarmac copy repacks shards.")
    raise UsageError(
        "the name does not tell the format.", field="format", url=url, hint=f"one of {_names()}."
    )


def open_source(url: str, format: str | None, options: SourceOptions) -> Source:
    """Open a source of a format, or of the one that its name tells."""
    if format is not None and format not in SOURCES:
        raise UsageError(f"expected one of {_names()}, got {format!r}.", field="format")
    source = SOURCES[format or guess_format(url)]
    columns = options.columns
    if (columns.key or columns.files or columns.fields) and not source.has_columns:
        raise UsageError("`key`, `files` and `columns` apply to tables only.", url=url)
    if options.base:
        if not source.lists_files:
            raise UsageError("`base` applies to recipes and tables only.", url=url)
        if is_local(options.base) and not os.path.isdir(local_path(options.base)):
            raise NotFound("no such directory.", url=options.base)
    return source.open(url, options)


def _names() -> str:
    return ", ".join(SOURCES)
