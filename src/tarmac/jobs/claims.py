"""Claim the names that a job may write while it runs, so that no other job writes them.

A claim is a small file in `.tarmac/claims/` of each output directory, locked by its owner. A store has no
locks: there claims are numbered, each number is used once, and of two claims to a name the lower number wins.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarmac.errors import AccessDenied, CommitFailed, JobBusy, NotFound, WriteError
from tarmac.storage import StorageOptions, WriteOptions, can_list, is_local, list_objects, read_all, write_all
from tarmac.storage.local import local_path
from tarmac.storage.locks import FileLock, claim, forget_in_children
from tarmac.storage.types import DEFAULT_STORAGE

Names = tuple[str, ...]
"""A name in pieces with a number between each two: `("c-", ".tar")` matches every `c-{i}.tar`."""
_DIRECTORY = ".tarmac/claims"
CHECK_SECONDS = 5.0
"""Time between two looks at the claims of a job in a store."""
_RELEASED = b"{}"
_DIGITS = frozenset("0123456789")


def overlap(names: Iterable[Names], others: Iterable[Names]) -> str | None:
    """Return a name or pattern of `names` that matches a name of `others`; None if there is none."""
    mine, theirs = set(names), set(others)
    if same := mine & theirs:
        return "{i}".join(min(same))
    for pieces in mine:
        for other in theirs:
            if len(pieces) + len(other) > 2 and _intersect(pieces, other):
                return "{i}".join(pieces)
    return None


def _intersect(one: Names, other: Names) -> bool:
    """Return whether two patterns match a common name, by searching both letter by letter."""
    a, b = _letters(one), _letters(other)
    seen, waiting = set[tuple[int, int]](), [(0, 0)]
    while waiting:
        state = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        i, j = state
        if i == len(a) or j == len(b):
            if i == len(a) and j == len(b):
                return True
            continue
        x, y = a[i], b[j]
        if x == y or (x is None and y in _DIGITS) or (y is None and x in _DIGITS):
            waiting += [(p, q) for p in _next(i, x) for q in _next(j, y)]
    return False


def _next(position: int, letter: str | None) -> tuple[int, ...]:
    # A number may continue after its first digit.
    return (position, position + 1) if letter is None else (position + 1,)


def _letters(pieces: Names) -> list[str | None]:
    """Return the letters of a pattern, with None for a number."""
    letters: list[str | None] = list(pieces[0])
    for piece in pieces[1:]:
        letters += [None, *piece]
    return letters


@dataclass(eq=False)
class Claims:
    """The names that one job has claimed; `close` releases them."""

    verb: str
    job: str = ""
    """Identifies the job: a killed job that is run again takes over its own claims in a store, but not those of its
    tasks, which run at the same time."""
    overwrite: bool = False
    """Whether to release claims that another job left in a store."""
    storage: StorageOptions = DEFAULT_STORAGE
    shared: bool = False
    """Whether other tasks of the same job may claim the same names."""
    _held: dict[str, _Locked | _Numbered] = field(default_factory=dict)
    """The claim in each directory."""
    _checked: float = float("-inf")

    def __post_init__(self) -> None:
        forget_in_children(self)

    def hold(self, names: Iterable[Names]) -> None:
        """Claim names and patterns, except in directories where this job has a claim already."""
        wanted: dict[str, list[Names]] = {}
        for pieces in names:
            directory, slash, first = pieces[0].rpartition("/")
            if directory + slash not in self._held:
                wanted.setdefault(directory + slash, []).append((first, *pieces[1:]))
        for directory in sorted(wanted):
            if is_local(directory):
                self._held[directory] = self._claim_on_disk(directory, wanted[directory])
            elif can_list(directory):
                self._held[directory] = self._claim_in_store(directory, wanted[directory])

    def check(self) -> None:
        """Raise JobBusy if another job has taken over the names; look every few seconds."""
        if time.monotonic() - self._checked > CHECK_SECONDS:
            self._checked = time.monotonic()
            for held in self._held.values():
                held.check()

    def close(self) -> None:
        """Release all names."""
        while self._held:
            _, held = self._held.popitem()
            held.release()

    def forget(self) -> None:
        """Close the locks in a forked process; the claims themselves belong to its parent."""
        for held in self._held.values():
            held.forget()
        self._held.clear()

    def _content(self, names: Sequence[Names]) -> bytes:
        owner = {"verb": self.verb, "job": self.job, "host": socket.gethostname(), "pid": os.getpid()}
        shared = {"shared": True} if self.shared else {}
        return json.dumps(owner | shared | {"names": list(names)}).encode()

    def _claim_on_disk(self, directory: str, names: Sequence[Names]) -> _Locked:
        path = Path(local_path(directory) or ".")
        try:
            with _locked_directory(path) as home:
                own = f"{self.job}-" if self.shared else "/"
                for other in sorted(home.glob("*.json")):
                    if not other.name.startswith(own):  # one of a thousand tasks of this job
                        self._reject_overlap(_living_claim(other), names, directory)
                file = home / f"{own.rstrip('/')}{uuid.uuid4().hex}.json"
                file.write_bytes(self._content(names))
                fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
                claim(fd)
                return _Locked(path, file, fd)
        except WriteError:
            raise
        except OSError as error:
            raise WriteError(f"cannot write the claim: {error.strerror}.", url=directory) from error

    def _claim_in_store(self, directory: str, names: Sequence[Names]) -> _Numbered:
        held = _Numbered(f"{directory}{_DIRECTORY}/", self.storage)
        existing = held.others()
        for number, other in existing.items():
            same_job = other.get("job") == self.job and not (self.shared and other.get("shared"))
            if same_job or (self.overwrite and _overlap_with(other, names)):
                held.release_number(number)
        held.take(max(existing, default=0) + 1, self._content(names))
        try:
            for other in held.others().values():
                self._reject_overlap(other, names, directory, may_be_dead=True)
        except JobBusy:
            held.release()
            raise
        return held

    def _reject_overlap(
        self, other: dict[str, Any], names: Sequence[Names], directory: str, *, may_be_dead: bool = False
    ) -> None:
        """Raise JobBusy if the other job may write one of the names."""
        name = _overlap_with(other, names)
        if name is None or (self.shared and other.get("job") == self.job and other.get("shared")):
            return
        owner = f"`tarmac {other.get('verb')}` (process {other.get('pid')} on {other.get('host')})"
        hint = (
            "wait until it has finished, or write to other names; `overwrite`, if it no longer runs."
            if may_be_dead
            else "wait until it has finished, or write to other names."
        )
        raise JobBusy(f"{owner} is running and may write this name.", url=f"{directory}{name}", hint=hint)


def _overlap_with(other: dict[str, Any], names: Sequence[Names]) -> str | None:
    try:
        return overlap(names, map(tuple, other.get("names", ())))
    except (TypeError, IndexError):
        return None  # not written by tarmac


@contextlib.contextmanager
def _locked_directory(path: Path) -> Iterator[Path]:
    """Yield the directory of the claims, locked against other jobs."""
    home = path / _DIRECTORY
    while True:
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / "lock")
        with contextlib.suppress(FileNotFoundError):  # another job has just removed the directory
            lock.acquire()
            break
    try:
        yield home
    finally:
        if any(home.glob("*.json")):
            lock.release()
        else:
            lock.remove()
            for empty in (home, home.parent):
                with contextlib.suppress(OSError):
                    empty.rmdir()


def _living_claim(path: Path) -> dict[str, Any]:
    """Return the content of a claim whose owner runs; remove that of a dead one and return {}."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if claim(fd):
            path.unlink()
            return {}
        content = json.loads(path.read_bytes())
        return content if isinstance(content, dict) else {}
    except ValueError:
        return {}
    finally:
        os.close(fd)


@dataclass
class _Locked:
    """A claim on disk."""

    directory: Path
    file: Path
    fd: int

    def check(self) -> None:
        """Do nothing: a locked claim cannot be taken over."""

    def release(self) -> None:
        with contextlib.suppress(OSError), _locked_directory(self.directory):
            self.file.unlink()
        self.forget()

    def forget(self) -> None:
        os.close(self.fd)


@dataclass
class _Numbered:
    """A claim in a store. A released one is emptied, not deleted, so that no number is used twice."""

    home: str
    storage: StorageOptions
    number: int = 0

    def others(self) -> dict[int, dict[str, Any]]:
        """Return the earlier claims, by number."""
        claims: dict[int, dict[str, Any]] = {}
        with contextlib.suppress(NotFound, AccessDenied):  # credentials that can write cannot always list
            for url, info in list_objects(self.home, self.storage):
                number = int(url[-13:-5])
                if not self.number or number < self.number:
                    claims[number] = {} if info.size <= len(_RELEASED) else self._read(number)
        return claims

    def _read(self, number: int) -> dict[str, Any]:
        content = json.loads(read_all(self._url(number), self.storage))
        return content if isinstance(content, dict) else {}

    def take(self, number: int, content: bytes) -> None:
        """Take the first unused number from this one on."""
        while not self.number:
            try:
                self._write(number, content, overwrite=False)
                self.number = number
            except CommitFailed:
                number += 1

    def check(self) -> None:
        if self.number and not self._read(self.number):
            raise JobBusy(
                "the same job, or one with `overwrite`, was started in the meantime.", url=self.home
            )

    def release_number(self, number: int) -> None:
        self._write(number, _RELEASED, overwrite=True)

    def release(self) -> None:
        if self.number:
            self.release_number(self.number)

    def forget(self) -> None:
        self.number = 0

    def _write(self, number: int, content: bytes, *, overwrite: bool) -> None:
        write_all(self._url(number), content, self.storage, WriteOptions(overwrite=overwrite))

    def _url(self, number: int) -> str:
        return f"{self.home}{number:08d}.json"
