"""What a job has done, unit by unit, so that running it again does only what is missing.

On a disk it is a file of JSON lines, appended to and locked while a job runs. A store cannot append, so there
it is one small object for each unit. The first entry says which job it is: its options must be the same.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from tarmac.display import identity
from tarmac.errors import JobBusy, JobMismatch, NotFound, TarmacError, WriteError
from tarmac.jobs.outputs import marks_of
from tarmac.jobs.task import Outcome, Unit
from tarmac.limits import DEFAULT_LIMITS
from tarmac.storage import StorageOptions, is_local, read_all, scheme_of, write_all
from tarmac.storage.local import local_path
from tarmac.storage.locks import claim, forget_in_children
from tarmac.storage.types import DEFAULT_STORAGE, WriteOptions

__all__ = ["Entry", "Ledger", "ledger_place", "made_by_others", "open_ledger"]

FORMAT = "tarmac-ledger-1"
Entry = tuple[str, Outcome]
"""The fingerprint of a unit's inputs, and what came of it."""
_FIELDS = frozenset(field.name for field in fields(Outcome)) - {"inputs"}


def ledger_place(output: str, verb: str) -> str:
    """Where the ledger of a job belongs that writes `output`, a file, a pattern or a directory."""
    path = output if is_local(output) else output.partition("?")[0]
    if scheme_of(output) in ("http", "https"):
        path = path.partition("#")[0]
    fixed = path.partition("{")[0].rpartition("/")[0]
    directory, slash = (fixed, "/") if fixed or path.startswith("/") else ("", "")
    name = path[len(directory) + len(slash) :]
    if path != output:  # which tells jobs apart, and may be a secret
        name += f"-{hashlib.sha256(output.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
    return f"{directory}{slash}.tarmac/{verb}{'-' if safe else ''}{safe}.jsonl"


def _written(name: str) -> str:
    """How the name of a unit or an output is written down: without secrets.

    Web servers, whose URLs have them, cannot be listed: nobody reads their ledgers to open such a name.
    """
    return name if is_local(name) else identity(name)


class Ledger:
    """The units that are done; `record` adds one."""

    def __init__(self) -> None:
        self.done: dict[str, Entry] = {}
        self.before: dict[str, Entry] = {}
        """What was done by a job that is begun anew."""
        self.new = True
        """Whether the job was never begun before."""
        self.job = os.urandom(12).hex()
        """What tells the job from others; the same for the same verb and options where a ledger is kept."""

    def begin(self) -> None:
        """Write down that the job is begun."""

    def record(self, unit: Unit, outcome: Outcome) -> None:
        """Remember that a unit is done."""
        inputs = outcome.inputs or unit.inputs
        self.done[unit.name] = inputs, outcome
        line = {"unit": _written(unit.name)} | asdict(outcome) | {"inputs": inputs}
        line["outputs"] = {_written(url): size for url, size in outcome.outputs.items()}
        if beside := outcome.facts.get("beside"):
            line["facts"] = outcome.facts | {"beside": {_written(url): size for url, size in beside.items()}}
        self._keep(unit.name, line)

    def _keep(self, name: str, line: dict[str, Any]) -> None:
        """Write one entry down."""

    def _load(self, line: dict[str, Any]) -> None:
        known = {name: value for name, value in line.items() if name in _FIELDS}
        self.done[line["unit"]] = line["inputs"], Outcome(**known)

    def close(self) -> None:
        """Let others use the ledger."""


def open_ledger(
    place: str | None,
    verb: str,
    options: dict[str, Any],
    *,
    anew: bool = False,
    dry: bool = False,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> Ledger:
    """Open the ledger at a place, or begin it; `anew` forgets what it says. Without a place none is kept.

    `dry` only looks at one that is there.
    """
    if place is None or (dry and (anew or (is_local(place) and not os.path.exists(local_path(place))))):
        return Ledger()
    # Through JSON, as it will be read again: tuples are lists then.
    head = json.loads(json.dumps({"format": FORMAT, "verb": verb, "options": options}))
    book = _File(place, head, anew) if is_local(place) else _Objects(place, head, anew, storage)
    book.job = hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()[:24]
    return book


def made_by_others(place: str | None, names: Iterable[str]) -> dict[str, str]:
    """Those of these files that another job made, as ledgers beside this one say, and its verb."""
    there = marks_of(names) if place is not None and is_local(place) else {}
    if not there or place is None:
        return {}
    made: dict[tuple[str, str], str] = {}
    own = os.path.abspath(local_path(place))
    for path in glob.glob(os.path.join(glob.escape(os.path.dirname(own)), "*.jsonl")):
        if path != own:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
                with open(path, "rb") as file:
                    head, *lines = map(json.loads, file)
                for name, mark in (pair for line in lines for pair in line["facts"]["marks"].items()):
                    made[os.path.basename(name), mark] = head["verb"]
    found = {name: made.get((os.path.basename(name), mark)) for name, mark in there.items()}
    return {name: verb for name, verb in found.items() if verb is not None}


def _check_head(found: dict[str, Any], head: dict[str, Any], place: str) -> None:
    """Refuse to go on with something else than what was begun, and say what is different."""
    if found == head:
        return
    if found.get("format") != FORMAT:
        raise JobMismatch("this is not a ledger of this version of tarmac.", url=place)
    before, now = found.get("options", {}), head["options"]
    names = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if names == ["inputs"]:  # hashes, which say nothing to people
        raise JobMismatch("the inputs are others than those this output was begun with.", url=place)
    changed = [f"{name} {before.get(name)!r} -> {now.get(name)!r}" for name in names if name != "inputs"]
    changed = changed or [f"{found.get('verb')} -> {head['verb']}"]
    raise JobMismatch(f"this output was begun with other options: {'; '.join(changed)}.", url=place)


class _File(Ledger):
    """A ledger on a disk."""

    def __init__(self, place: str, head: dict[str, Any], anew: bool) -> None:
        super().__init__()
        self._place = place
        self._fd = -1
        forget_in_children(self)
        path = local_path(place)
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise WriteError(f"the ledger cannot be written: {error.strerror}.", url=place) from error
        try:
            if not claim(self._fd):
                raise JobBusy("another process is doing this job now.", url=place)
            if anew:
                self._forget(head)
            else:
                self._read(head)
        except BaseException:
            self.close()
            raise

    def _content(self) -> bytes:
        """All whole lines; a process that was killed may have left half a one."""
        size = os.fstat(self._fd).st_size
        content = b""
        while len(content) < size and (part := os.pread(self._fd, 1 << 26, len(content))):
            content += part
        return content[: content.rfind(b"\n") + 1]

    def _forget(self, head: dict[str, Any]) -> None:
        """Begin anew; the file stays as it is until the job is begun, which may be refused."""
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # whatever it was
            for line in self._content().splitlines()[1:]:
                self._load(json.loads(line))
        self.before, self.done = self.done, {}
        self._head = head

    def _read(self, head: dict[str, Any]) -> None:
        whole = self._content()
        os.ftruncate(self._fd, len(whole))
        os.lseek(self._fd, 0, os.SEEK_END)
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            if len(lines) == 1 and lines[0].get("format") == FORMAT and lines[0] != head:
                lines = []  # nothing came of it, so it binds nobody
            if lines:
                _check_head(lines[0], head, self._place)
            for line in lines[1:]:
                self._load(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, JobMismatch):
                raise
            raise JobMismatch(f"the ledger is damaged: {error}.", url=self._place) from None
        self._head, self.new = head, not lines

    def begin(self) -> None:
        if self.new:
            os.ftruncate(self._fd, 0)
            os.lseek(self._fd, 0, os.SEEK_SET)
            self._append(self._head)

    def _keep(self, name: str, line: dict[str, Any]) -> None:
        self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, ensure_ascii=True).encode() + b"\n"
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                raise WriteError("the disk is full.", url=self._place)
            os.fsync(self._fd)
        except OSError as error:
            if isinstance(error, WriteError):
                raise
            raise WriteError(f"the ledger cannot be written: {error.strerror}.", url=self._place) from error

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    forget = close


class _Objects(Ledger):
    """A ledger in a store: `PLACE/head.json`, and an object for each unit."""

    def __init__(self, place: str, head: dict[str, Any], anew: bool, storage: StorageOptions) -> None:
        super().__init__()
        self._place, self._storage = place, storage
        found = None if anew else self._get(f"{place}/head.json")
        if found is not None:
            self._head = found
            self._read()
            told = {name: value for name, value in found.items() if name != "generation"}
            if self.done or told == head or told.get("format") != FORMAT:
                _check_head(told, head, place)
                self.new = False
                return
        # Another beginning is another generation: what was recorded before does not count any more.
        self._head = head | {"generation": os.urandom(8).hex()}

    @property
    def _units(self) -> str:
        return f"{self._place}/{self._head['generation']}"

    def begin(self) -> None:
        if self.new:
            self._put(f"{self._place}/head.json", self._head)

    def _read(self) -> None:
        from tarmac.storage.urls import expand_glob

        with contextlib.suppress(NotFound):
            for url in expand_glob(f"{self._units}/*.json", DEFAULT_LIMITS, self._storage):
                line = self._get(url)
                if line is not None:
                    self._load(line)

    def _keep(self, name: str, line: dict[str, Any]) -> None:
        number = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        self._put(f"{self._units}/{number}.json", line)

    def _get(self, url: str) -> dict[str, Any] | None:
        try:
            found = json.loads(read_all(url, self._storage))
        except NotFound:
            return None
        except ValueError as error:
            if isinstance(error, TarmacError):
                raise
            raise JobMismatch(f"the ledger is damaged: {error}.", url=url) from None
        return found if isinstance(found, dict) else None

    def _put(self, url: str, line: dict[str, Any]) -> None:
        content = json.dumps(line, ensure_ascii=True).encode()
        write_all(url, content, self._storage, WriteOptions(overwrite=True))
