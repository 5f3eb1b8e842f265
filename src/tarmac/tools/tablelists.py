"""List tables: files, patterns, lists of URLs, and the tables in directories."""

from __future__ import annotations

import os
from typing import Any

from tarmac.errors import NotFound, UsageError
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.storage import StorageOptions, is_local, list_objects
from tarmac.storage.local import local_path
from tarmac.storage.urls import Shards, expand
from tarmac.tools.tables import table_format


def list_tables(
    sources: Shards,
    storage: StorageOptions,
    limits: Limits = DEFAULT_LIMITS,
    *,
    field: str = "sources",
    output: str | None = None,
) -> list[str]:
    """Return the URLs of all tables, those of a directory sorted by name.

    What is in the directory `output` is left out of a directory that contains it: an earlier run has written it.
    """
    given: list[Any] = list(sources) if isinstance(sources, list | tuple) else [sources]
    if not given:
        raise UsageError("expected at least one table.", field=field)
    urls: list[str] = []
    for each in given:
        name = os.fspath(each) if isinstance(each, str | os.PathLike) else each
        if not (isinstance(name, str) and _is_directory(name)):
            urls += expand([each], storage=storage, limits=limits, allow_exec=False)
        elif output is not None and _normalized(name) == _normalized(output):
            what = "the tables are in the output directory itself; expected another output."
            raise UsageError(what, field="output", url=name)
        else:
            urls += _tables_in(name, storage, output)
    return list(map(str, urls))


def is_in(url: str, directory: str) -> bool:
    """Return whether a file is in a directory itself, not in one below it."""
    return _normalized(url).rpartition("/")[0] == _normalized(directory)


def _normalized(url: str) -> str:
    """Return a name that is the same for all spellings of a local path, without a slash at its end."""
    return os.path.realpath(os.path.expanduser(local_path(url))) if is_local(url) else url.rstrip("/")


def _is_directory(name: str) -> bool:
    return name.endswith("/") if not is_local(name) else os.path.isdir(os.path.expanduser(local_path(name)))


def _tables_in(directory: str, storage: StorageOptions, output: str | None) -> list[str]:
    """Return the tables below a directory, without hidden files and those in `output`."""
    if is_local(directory):
        top = os.path.expanduser(local_path(directory))
        names = [os.path.join(folder, name) for folder, _, files in os.walk(top) for name in files]
    else:
        top, names = directory.rstrip("/"), [url for url, _ in list_objects(directory, storage)]
    tables = [
        name
        for name in sorted(names)
        if table_format(name)
        and not any(part[:1] in "._" for part in name[len(top) :].strip("/").split("/"))
        and not (output is not None and is_in(name, output))
    ]
    if not tables:
        raise NotFound("the directory has no tables.", url=directory)
    return tables
