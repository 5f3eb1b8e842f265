"""Names that a job may write, claimed while it runs: no other job writes them, whatever its verb.

A claim is a small file in `.tarmac/claims/` of each directory that is written to. Its owner holds a lock on
it. A store has no locks: there claims are numbered, each number is taken once, and of two claims to one name
the lower number counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
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

__all__ = ["Claims", "Names", "overlap"]

Names = tuple[str, ...]
"""A name in pieces, with a number between each two: `("c-", ".tar")` is every `c-{i}.tar`."""
_HOME = ".tarmac/claims"
_GIVEN_UP = b"{}"
_DIGITS = frozenset("0123456789")


def overlap(some: Iterable[Names], others: Iterable[Names]) -> str | None:
    """Return a name or pattern of `some` of which one of `others` has a name, too; None if there is none."""
    mine, theirs = set(some), set(others)
    if same := mine & theirs:
        return "{i}".join(min(same))
    for pieces in mine:
        for each in theirs:
            if len(pieces) + len(each) > 2 and _meet(pieces, each):
                return "{i}".join(pieces)
    return None


def _meet(one: Names, other: Names) -> bool:
    """Whether two patterns have a name in common. Walks through both at once, one letter at a time."""
    a, b = _letters(one), _letters(other)
    seen, waiting = set[tuple[int, int]](), [(0, 0)]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        i, j = at
        if i == len(a) or j == len(b):
            if i == len(a) and j == len(b):
                return True
            continue
        x, y = a[i], b[j]
        if x == y or (x is None and y in _DIGITS) or (y is None and x in _DIGITS):
            # A number may go on after its first digit.
            waiting += [(p, q) for p in ((i, i + 1) if x is None else (i + 1,)) for q in _after(j, y)]
    return False


def _after(place: int, letter: str | None) -> tuple[int, ...]:
    return (place, place + 1) if letter is None else (place + 1,)


def _letters(pieces: Names) -> list[str | None]:
    """The letters of a pattern; None for a number."""
    letters: list[str | None] = list(pieces[0])
    for piece in pieces[1:]:
        letters += [None, *piece]
    return letters


@dataclass(eq=False)
class Claims:
    """The names that one job has claimed; `close` gives them up."""

    verb: str
    job: str = ""
    """What tells it from other jobs: one that was killed is begun again under its own claims in a store."""
    anew: bool = False
    """Whether the user wants to replace what another job left in a store."""
    storage: StorageOptions = DEFAULT_STORAGE
    _held: dict[str, Any] = field(default_factory=dict)
    """The directories, and what holds the claims there."""

    def __post_init__(self) -> None:
        forget_in_children(self)

    def hold(self, names: Iterable[Names]) -> None:
        """Claim names and patterns; those in directories that have claims of this job are claimed already."""
        wanted: dict[str, list[Names]] = {}
        for pieces in names:
            directory, slash, first = pieces[0].rpartition("/")
            if directory + slash not in self._held:
                wanted.setdefault(directory + slash, []).append((first, *pieces[1:]))
        for directory in sorted(wanted):
            if is_local(directory):
                self._held[directory] = self._on_disk(directory, wanted[directory])
            elif can_list(directory):
                self._held[directory] = self._in_store(directory, wanted[directory])

    def check(self) -> None:
        """Stop if somebody has taken the names from this job."""
        for held in self._held.values():
            held.check()

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other jobs write the names."""
        while self._held:
            _, held = self._held.popitem()
            held.release()

    def forget(self) -> None:
        """Give up the locks in a forked process, and nothing else: the claims are its parent's."""
        for held in self._held.values():
            held.forget()
        self._held.clear()

    def _content(self, names: Sequence[Names]) -> bytes:
        told = {"verb": self.verb, "job": self.job, "host": socket.gethostname(), "pid": os.getpid()}
        return json.dumps(told | {"names": list(names)}).encode()

    def _on_disk(self, directory: str, names: Sequence[Names]) -> _Locked:
        place = Path(local_path(directory) or ".")
        try:
            with _alone(place) as home:
                for other in sorted(home.glob("*.json")):
                    _refuse(_living(other), names, directory)
                path = home / f"{uuid.uuid4().hex}.json"
                path.write_bytes(self._content(names))
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                claim(fd)
                return _Locked(place, path, fd)
        except OSError as error:
            if isinstance(error, WriteError):
                raise
            raise WriteError(
                f"the claim to it cannot be written: {error.strerror}.", url=directory
            ) from error

    def _in_store(self, directory: str, names: Sequence[Names]) -> _Numbered:
        held = _Numbered(f"{directory}{_HOME}/", self.storage)
        before = held.others()
        for number, told in before.items():
            if told.get("job") == self.job or (self.anew and _common(told, names)):
                held.give_up(number)
        held.take(max(before, default=0) + 1, self._content(names))
        try:
            for told in held.others().values():
                _refuse(told, names, directory, hint="--overwrite, if that job does not run any more.")
        except JobBusy:
            held.release()
            raise
        return held


def _common(told: dict[str, Any], names: Sequence[Names]) -> str | None:
    try:
        return overlap(names, map(tuple, told.get("names", ())))
    except (TypeError, IndexError):
        return None  # written by something else


def _refuse(told: dict[str, Any], names: Sequence[Names], directory: str, hint: str = "") -> None:
    """Refuse names that another job may write."""
    name = _common(told, names)
    if name is not None:
        who = f"`tarmac {told.get('verb')}` (process {told.get('pid')} of {told.get('host')})"
        hint = " ".join(filter(None, ("wait until it has ended, or write to other names.", hint)))
        raise JobBusy(f"{who} may write this name now.", url=f"{directory}{name}", hint=hint)


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[Path]:
    """The directory of the claims; no other job looks or writes there meanwhile."""
    home = place / _HOME
    while True:
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / "lock")
        with contextlib.suppress(FileNotFoundError):  # the last job that ended removed the directory
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


def _living(path: Path) -> dict[str, Any]:
    """What a claim says whose owner lives; that of a dead one is removed, and says nothing."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if claim(fd):
            path.unlink()
            return {}
        told = json.loads(path.read_bytes())
        return told if isinstance(told, dict) else {}
    except ValueError:
        return {}
    finally:
        os.close(fd)


@dataclass
class _Locked:
    """A claim on a disk."""

    place: Path
    path: Path
    fd: int

    def check(self) -> None:
        """Nobody else can give up what is locked."""

    def release(self) -> None:
        with contextlib.suppress(OSError), _alone(self.place):
            self.path.unlink()
        self.forget()

    def forget(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


@dataclass
class _Numbered:
    """A claim in a store. One that is given up is emptied, not deleted: no number is ever taken twice."""

    home: str
    storage: StorageOptions
    number: int = 0

    def others(self) -> dict[int, dict[str, Any]]:
        """The claims that were there first, by number."""
        found: dict[int, dict[str, Any]] = {}
        with contextlib.suppress(NotFound, AccessDenied):  # one that may write need not be allowed to list
            for url, info in list_objects(self.home, self.storage):
                number = int(url[-13:-5])
                if not self.number or number < self.number:
                    found[number] = {} if info.size <= len(_GIVEN_UP) else self._read(number)
        return found

    def _read(self, number: int) -> dict[str, Any]:
        told = json.loads(read_all(self._url(number), self.storage))
        return told if isinstance(told, dict) else {}

    def take(self, number: int, content: bytes) -> None:
        """Take the first free number from this one on."""
        while not self.number:
            try:
                self._write(number, content, overwrite=False)
                self.number = number
            except CommitFailed:
                number += 1

    def check(self) -> None:
        """Stop a job whose claims another one has given up for it."""
        if self.number and not self._read(self.number):
            raise JobBusy("the same command, or one with --overwrite, was started meanwhile.", url=self.home)

    def give_up(self, number: int) -> None:
        self._write(number, _GIVEN_UP, overwrite=True)

    def release(self) -> None:
        if self.number:
            self.give_up(self.number)

    def forget(self) -> None:
        self.number = 0

    def _write(self, number: int, content: bytes, *, overwrite: bool) -> None:
        write_all(self._url(number), content, self.storage, WriteOptions(overwrite=overwrite))

    def _url(self, number: int) -> str:
        return f"{self.home}{number:08d}.json"
