"""Keep what a long unit has done so far, so that a killed one continues there.

A chunk is a data file and a small state, `NUMBER-ATTEMPT.tar` and `.json`, in a directory of the unit beside the
ledger. The state is published after the data and names the chunk before it, so a chain of states is complete. Two
workers that do the same unit write chunks of different names, and a later attempt continues the longest chain.

Chunks only save work: an attempt that finds none, or loses them, does the unit from its start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tarmac.errors import NotFound, TarmacError
from tarmac.jobs.spelling import relative_name
from tarmac.storage import (
    StorageOptions,
    can_list,
    delete,
    is_local,
    list_objects,
    open_write,
    read_all,
    write_all,
)
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE, WriteOptions

FORMAT = "tarmac-chunk-1"
_NAME = re.compile(r"(\d{6,})-[0-9a-f]{16}")
_REPLACE = WriteOptions(overwrite=True)
_ATTEMPTS = 3
"""Attempts to create the directory, whose parent another worker may remove at the same time."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a unit: its data, and the state of the unit at its end."""

    state: dict[str, Any]
    url: str


def chunk_directory(ledger: str, unit: str) -> str:
    """Return the URL of the directory for the chunks of a unit."""
    name = hashlib.sha256(relative_name(ledger, unit).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return f"{ledger}/chunks/{name}"


@dataclass
class Chunks:
    """The chunks of one unit; those with another fingerprint belong to another job and are ignored.

    Without a fingerprint, which only the job knows, the chunks of the longest chain are taken.
    """

    directory: str
    fingerprint: str
    storage: StorageOptions = DEFAULT_STORAGE
    _attempt: str = field(default_factory=lambda: os.urandom(8).hex())
    _last: str = ""
    """The name of the last chunk of this chain."""
    _next: int = 0
    exist: bool = False
    """Whether there are chunks of any attempt, as far as it is known."""

    @property
    def usable(self) -> bool:
        """Return whether the store can list chunks."""
        return can_list(self.directory)

    def load(self) -> list[Chunk]:
        """Return the chunks of the longest complete chain, in order, and continue it; empty if there is none."""
        sizes = self._list()
        self.exist = bool(sizes)
        for name in sorted(filter(_NAME.fullmatch, sizes), key=_order, reverse=True):
            chain = self._chain(name, sizes)
            if chain:
                self._last, self._next = name, len(chain)
                return chain
        return []

    def keep(self, chunks: list[Chunk]) -> None:
        """Continue behind these chunks, the first of those that `load` returned."""
        self._next = len(chunks)
        self._last = chunks[-1].url.rpartition("/")[2].removesuffix(".tar") if chunks else ""

    def _chain(self, name: str, sizes: dict[str, int]) -> list[Chunk]:
        """Return the chunks up to one of them, or nothing if one is missing or belongs to another job."""
        chain: list[Chunk] = []
        fingerprint = self.fingerprint
        while name:
            stored = self._get(name)
            fingerprint = fingerprint or stored.get("fingerprint", "")
            number = _order(name)[0]
            if (
                stored.get("format") != FORMAT
                or stored.get("fingerprint") != fingerprint
                or stored.get("number") != number
                or stored.get("bytes") != sizes.get(f"{name}.tar")
                or (chain and number != _order(chain[-1].url.rpartition("/")[2])[0] - 1)
            ):
                return []
            chain.append(Chunk(stored["state"], f"{self.directory}/{name}.tar"))
            name = stored["previous"]
            if bool(name) != bool(number) or (name and name not in sizes):
                return []
        return chain[::-1]

    def _list(self) -> dict[str, int]:
        """Return the sizes of data by name, and the names of states."""
        sizes: dict[str, int] = {}
        with contextlib.suppress(NotFound):
            for url, info in list_objects(f"{self.directory}/", self.storage):
                name = url.rpartition("/")[2]
                sizes[name.removesuffix(".json")] = info.size
        return sizes

    def _get(self, name: str) -> dict[str, Any]:
        try:
            stored = json.loads(read_all(f"{self.directory}/{name}.json", self.storage))
        except (TarmacError, ValueError):
            return {}
        well_formed = isinstance(stored, dict) and isinstance(stored.get("state"), dict)
        return stored if well_formed and isinstance(stored.get("previous"), str) else {}

    def save(self, state: dict[str, Any], data: Iterable[bytes]) -> None:
        """Store the data since the last chunk, and the state at its end."""
        name = f"{self._next:06d}-{self._attempt}"
        url = f"{self.directory}/{name}"
        self.exist = True
        size = self._write(f"{url}.tar", data)
        stored = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "number": self._next,
            "previous": self._last,
            "bytes": size,
            "state": state,
        }
        write_all(f"{url}.json", json.dumps(stored).encode(), self.storage, _REPLACE)
        self._last, self._next = name, self._next + 1

    def _write(self, url: str, data: Iterable[bytes]) -> int:
        for _ in range(_ATTEMPTS if is_local(url) else 0):
            with contextlib.suppress(FileNotFoundError):
                os.makedirs(local_path(self.directory), exist_ok=True)
                break
        size, sink = 0, open_write(url, self.storage, _REPLACE)
        try:
            for part in data:
                sink.write(part)
                size += len(part)
        except BaseException:
            sink.abort()
            raise
        sink.commit()
        return size

    def clear(self) -> None:
        """Remove all chunks of the unit, of any attempt, as far as the store permits."""
        with contextlib.suppress(TarmacError, OSError):
            for url, _ in list_objects(f"{self.directory}/", self.storage):
                delete(url, self.storage)
            if is_local(self.directory):
                path = local_path(self.directory)
                for directory in (path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
                    os.rmdir(directory)  # fails if it holds anything else


def clear_all(ledger: str, storage: StorageOptions = DEFAULT_STORAGE) -> None:
    """Remove the chunks of all units, as far as the store permits: a killed worker may have left some."""
    directory = f"{ledger}/chunks"
    if is_local(directory):
        shutil.rmtree(local_path(directory), ignore_errors=True)
    elif can_list(directory):
        with contextlib.suppress(TarmacError):
            for url, _ in list_objects(f"{directory}/", storage):
                delete(url, storage)


def _order(name: str) -> tuple[int, str]:
    return int(name.partition("-")[0]), name
