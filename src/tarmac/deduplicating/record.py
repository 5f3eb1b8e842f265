"""What a deduplication leaves beside the list of keys: pairs, and the groups of the last threshold."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tarmac.deduplicating.groups import Groups
from tarmac.deduplicating.pairs import write_table
from tarmac.deduplicating.sources import Source
from tarmac.errors import JobBusy, UsageError
from tarmac.storage import is_local
from tarmac.storage.local import local_path
from tarmac.storage.locks import FileLock
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.export.destination import published_path
from tarmac.tools.workdir import disk_errors


@dataclass(frozen=True)
class Record:
    """The files of one output; `keys` is the path of the list."""

    keys: str

    @classmethod
    def of(cls, output: str | os.PathLike[str]) -> Record:
        """Return the record of an output, which must be a local file."""
        name = os.fspath(output)
        if not is_local(name):
            what = "pairs are kept beside the list of keys, in local files."
            raise UsageError(
                what, field="output", url=name, hint="a local file, which can be copied afterwards."
            )
        path = local_path(name)
        if not path or path.endswith("/") or os.path.isdir(path):
            raise UsageError(f"expected the name of a file, got {name!r}.", field="output")
        return cls(path)

    @property
    def directory(self) -> str:
        return f"{self.keys}.dedup"

    @property
    def pairs(self) -> str:
        """The table of all pairs."""
        return os.path.join(self.directory, "pairs.parquet")

    @property
    def groups(self) -> str:
        """The table of the samples in groups: what becomes of each."""
        return os.path.join(self.directory, "groups.parquet")

    @property
    def samples(self) -> str:
        """The table of the keys of shards."""
        return os.path.join(self.directory, "samples.parquet")

    @property
    def work(self) -> str:
        """The directory for working files."""
        return os.path.join(self.directory, "work")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing the same files."""
        with disk_errors(self.directory):
            os.makedirs(self.directory, exist_ok=True)
        lock = FileLock(os.path.join(self.directory, "lock"))
        if not lock.acquire(wait=False):
            raise JobBusy("another process is writing this list of keys.", url=self.keys)
        try:
            yield
        finally:
            lock.remove()
            lock.release()
            with contextlib.suppress(OSError):  # only if nothing was written
                os.rmdir(self.directory)

    def write(self, source: Source, groups: Groups, facts: Mapping[str, Any]) -> None:
        """Write the groups, and at last the keys that stay."""
        write_table(self.groups, _table(source, groups), facts)
        stays, start = groups.stays, 0
        with published_path(self.keys, DEFAULT_STORAGE) as path, open(path, "wb") as file:
            for keys in source.key_blocks():
                chosen = np.flatnonzero(stays[start : start + len(keys)]).tolist()
                lines = "".join([f"{keys[number]}\n" for number in chosen])
                file.write(lines.encode("utf-8", "surrogateescape"))
                start += len(keys)


def shown(key: str) -> str:
    """Return a key as tables can hold it: bytes that are not UTF-8 are escaped."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _table(source: Source, groups: Groups) -> Any:
    """Return a row for each sample in a group, in the order of the groups."""
    import pyarrow as pa

    members = np.flatnonzero(groups.group >= 0)
    members = members[np.argsort(groups.group[members], kind="stable")]
    stays = groups.stays[members]
    kept = [
        None if stay else shown(key)
        for stay, key in zip(stays, source.keys(groups.kept[members]), strict=True)
    ]
    return pa.table(
        {
            "group": groups.group[members],
            "key": pa.array(map(shown, source.keys(members)), pa.string()),
            "number": members,
            "against": members >= source.own,
            "stays": stays,
            "kept": pa.array(kept, pa.string()),
            "score": pa.array(groups.score[members], mask=stays),
            "exact": groups.exact[members],
        }
    )
