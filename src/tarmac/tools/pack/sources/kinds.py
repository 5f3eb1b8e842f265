"""Which kind of source something is: as the user says, or as its name does where that is safe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from tarmac.display import identity
from tarmac.errors import NotFound, UrlError
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar.compression import format_of_name
from tarmac.tools.pack.sources.columns import Columns
from tarmac.tools.pack.sources.delimited import Csv, Tsv
from tarmac.tools.pack.sources.directory import Directory
from tarmac.tools.pack.sources.imagefolder import ImageFolder
from tarmac.tools.pack.sources.jsonl import JsonLines
from tarmac.tools.pack.sources.lines import Lines
from tarmac.tools.pack.sources.near import bring_near
from tarmac.tools.pack.sources.parquet import Parquet
from tarmac.tools.pack.sources.recipe import Recipe
from tarmac.tools.pack.sources.source import Source

__all__ = ["guess_kind", "Kind", "KINDS", "make_sources", "Reading"]

Kind = Literal["dir", "imagefolder", "recipe", "csv", "tsv", "jsonl", "parquet", "lines"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_ENDINGS: dict[str, Kind] = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".recipe": "recipe",
}  # fmt: skip
_TABLES: dict[str, Any] = {"csv": Csv, "tsv": Tsv, "jsonl": JsonLines, "parquet": Parquet, "lines": Lines}


@dataclass(frozen=True)
class Reading:
    """How sources are to be read."""

    kind: Kind | None = None
    columns: Columns = field(default_factory=Columns)
    base: str = ""
    allow_exec: bool = False
    timeout: float = 600.0
    storage: StorageOptions = DEFAULT_STORAGE

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger."""
        columns = self.columns
        found: dict[str, Any] = {"from": self.kind, "base": identity(self.base), "key": columns.key}
        found |= {"files": dict(columns.files), "columns": dict(columns.plain)}
        return {name: value for name, value in found.items() if value}


def guess_kind(url: str) -> Kind:
    """The kind that a name says."""
    if url.endswith("/") or (is_local(url) and os.path.isdir(local_path(url))):
        return "dir"
    name = (url if is_local(url) else url.partition("?")[0]).lower()
    if format_of_name(name):
        name = name.rpartition(".")[0]
    kind = next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), None)
    if kind is None:
        if url != "-" and is_local(url) and not os.path.exists(local_path(url)):
            raise NotFound("no such file or directory.", url=url)
        if ".tar" in os.path.basename(name):
            raise UrlError(
                "this is a shard already.", url=url, hint="tarmac copy packs samples of shards anew."
            )
        raise UrlError("what kind of source is this?", url=url, hint=f"--from {'|'.join(KINDS)}.")
    return kind


def make_sources(urls: Sequence[str], reading: Reading, directory: str, sized: bool) -> list[Source]:
    """The sources that are meant; `directory` is for copies of what is not near."""
    return [_make(url, reading, directory, sized) for url in urls]


def _make(url: str, reading: Reading, directory: str, sized: bool) -> Source:
    kind, storage = reading.kind or guess_kind(url), reading.storage
    named = reading.columns.key or reading.columns.files or reading.columns.plain
    if named and kind not in _TABLES:
        raise UrlError("this is no table: neither --key nor --files nor --columns.", url=url)
    if kind in ("dir", "imagefolder"):
        if reading.base:
            raise UrlError("--base is for names of files in recipes and tables.", url=url)
        if is_local(url) and not os.path.isdir(local_path(url)):
            raise NotFound("no such directory.", url=url)
        return Directory(url, storage, sized) if kind == "dir" else ImageFolder(url, storage, sized)
    if reading.base and is_local(reading.base) and not os.path.isdir(local_path(reading.base)):
        raise NotFound("no such directory.", url=reading.base)
    near = bring_near(url, directory, storage)
    if kind == "recipe":
        return Recipe(url, near, reading.base, reading.allow_exec, reading.timeout, sized, storage)
    columns = replace(reading.columns, base=reading.base, sized=sized, storage=storage)
    if kind == "lines" and (columns.key or columns.files):
        raise UrlError("lines have no columns, so neither --key nor --files.", url=url)
    table: Source = _TABLES[kind](url, near, columns, storage)
    return table
