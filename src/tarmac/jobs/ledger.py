"""Record which units of a job are done, so that a later run does only the rest.

On disk a ledger is a file of JSON lines, appended to and locked while the job runs. A store cannot append, so
there each unit has an object of its own. The head identifies the job: its options must stay the same. A job that
overwrites another appends its own head: what the other wrote stays recorded until `settle`, also if this run is killed.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from tarmac.display import identity
from tarmac.errors import JobBusy, JobMismatch, NotFound, TarmacError, WriteError
from tarmac.jobs.outputs import sampled_digests
from tarmac.jobs.task import Outcome, Unit
from tarmac.limits import DEFAULT_LIMITS
from tarmac.storage import StorageOptions, is_local, read_all, without_query, write_all
from tarmac.storage.local import local_path
from tarmac.storage.locks import claim, forget_in_children
from tarmac.storage.types import DEFAULT_STORAGE, WriteOptions

FORMAT = "tarmac-ledger-1"
Entry: TypeAlias = tuple[str, Outcome]
"""The fingerprint of a unit's inputs, and its outcome."""
_IN_FACTS = {"companions": "beside", "removed": "removed", "sampled_digests": "marks"}
"""Fields of an outcome that the file format keeps in `facts`, and their names there; `details` is the rest."""
_COLUMNS = frozenset(field.name for field in fields(Outcome)) - {"inputs", "details", *_IN_FACTS}


def ledger_url(output: str, verb: str) -> str:
    """Return the URL of the ledger for a job that writes `output`: a file, a pattern or a directory."""
    path = without_query(output)
    fixed = path.partition("{")[0].rpartition("/")[0]
    directory, slash = (fixed, "/") if fixed or path.startswith("/") else ("", "")
    name = path[len(directory) + len(slash) :]
    if path != output:  # the query distinguishes jobs, but may be a secret
        name += f"-{hashlib.sha256(output.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
    return f"{directory}{slash}.tarmac/{verb}{'-' if safe else ''}{safe}.jsonl"


class Ledger:
    """The completed units of a job, in memory; subclasses also store them."""

    def __init__(self) -> None:
        self.done: dict[str, Entry] = {}
        self.previous: dict[str, Entry] = {}
        """Units of the jobs that this one overwrites, until `settle`."""
        self.new = True
        """Whether the job has never started before."""
        self.job = os.urandom(12).hex()
        """Identifies the job; equal for the same verb and options where a ledger is stored."""

    def begin(self) -> None:
        """Store that the job has started."""

    def record(self, unit: Unit, outcome: Outcome) -> None:
        """Store that a unit is done."""
        inputs = outcome.inputs or unit.inputs
        self.done[unit.name] = inputs, outcome
        self._store(unit.name, {"unit": _public(unit.name), **_to_json(outcome), "inputs": inputs})

    def settle(self) -> None:
        """Store that the files of overwritten jobs were replaced, removed or reported."""
        self.previous = {}

    def _store(self, name: str, entry: dict[str, Any]) -> None:
        """Store one entry."""

    def _start_over(self) -> None:
        """Turn the units so far into those of a job that is overwritten."""
        self.previous, self.done = self.previous | self.done, {}

    def _load(self, entry: dict[str, Any]) -> None:
        self.done[entry["unit"]] = entry["inputs"], _from_json(entry)

    def close(self) -> None:
        """Release the ledger."""


def _public(name: str) -> str:
    """Return the name of a unit or output without secrets.

    Only URLs of web servers contain secrets. They cannot be listed, so no ledger in them is read back.
    """
    return name if is_local(name) else identity(name)


def _to_json(outcome: Outcome) -> dict[str, Any]:
    values = asdict(outcome)
    facts = values.pop("details")
    for name, key in _IN_FACTS.items():
        if value := values.pop(name):
            facts[key] = value
    for files in (values["outputs"], facts.get("beside", {})):
        for url in list(files):
            files[_public(url)] = files.pop(url)
    return values | {"facts": facts}


def _from_json(entry: dict[str, Any]) -> Outcome:
    facts = dict(entry.get("facts") or {})
    typed = {name: facts.pop(key) for name, key in _IN_FACTS.items() if key in facts}
    columns = {name: value for name, value in entry.items() if name in _COLUMNS}
    return Outcome(**columns, **typed, details=facts)


def open_ledger(
    url: str | None,
    verb: str,
    options: dict[str, Any],
    *,
    overwrite: bool = False,
    dry_run: bool = False,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> Ledger:
    """Open or create a ledger; `overwrite` discards its entries. None keeps one in memory only.

    `dry_run` reads an existing ledger and creates none.
    """
    if url is None or (dry_run and (overwrite or (is_local(url) and not os.path.exists(local_path(url))))):
        return Ledger()
    # A round trip through JSON, to compare with what is stored: tuples become lists.
    head = json.loads(json.dumps({"format": FORMAT, "verb": verb, "options": options}))
    ledger = _File(url, head, overwrite) if is_local(url) else _Objects(url, head, overwrite, storage)
    ledger.job = hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()[:24]
    return ledger


def written_by_others(ledger: str | None, names: Iterable[str]) -> dict[str, str]:
    """Return those of the files that other jobs wrote, according to neighbouring ledgers, and their verbs."""
    existing = sampled_digests(names) if ledger is not None and is_local(ledger) else {}
    if not existing or ledger is None:
        return {}
    writers: dict[tuple[str, str], str] = {}
    own = os.path.abspath(local_path(ledger))
    for path in glob.glob(os.path.join(glob.escape(os.path.dirname(own)), "*.jsonl")):
        if path != own:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
                with open(path, "rb") as file:
                    head, *entries = map(json.loads, file)
                marks = (entry["facts"]["marks"] for entry in entries if "facts" in entry)
                for name, digest in (pair for each in marks for pair in each.items()):
                    writers[os.path.basename(name), digest] = head["verb"]
    verbs = {name: writers.get((os.path.basename(name), digest)) for name, digest in existing.items()}
    return {name: verb for name, verb in verbs.items() if verb is not None}


def _check_head(stored: dict[str, Any], head: dict[str, Any], url: str) -> None:
    """Raise JobMismatch, with the differences, unless the stored head is that of this job."""
    if stored == head:
        return
    if stored.get("format") != FORMAT:
        raise JobMismatch("this is not a ledger of this version of tarmac.", url=url)
    old, new = stored.get("options", {}), head["options"]
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    if names == ["inputs"]:  # hashes, which tell a person nothing
        raise JobMismatch("the job was started with different inputs.", url=url)
    changes = [f"{name} {old.get(name)!r} -> {new.get(name)!r}" for name in names if name != "inputs"]
    changes = changes or [f"{stored.get('verb')} -> {head['verb']}"]
    raise JobMismatch(f"the job was started with different options: {'; '.join(changes)}.", url=url)


class _File(Ledger):
    """A ledger on disk."""

    def __init__(self, url: str, head: dict[str, Any], overwrite: bool) -> None:
        super().__init__()
        self._url, self._head = url, head
        self._fd, self._end = -1, 0
        forget_in_children(self)
        path = local_path(url)
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise WriteError(f"the ledger cannot be written: {error.strerror}.", url=url) from error
        try:
            if not claim(self._fd):
                raise JobBusy("another process is running this job.", url=url)
            self._read(overwrite)
        except BaseException:
            self.close()
            raise

    def _complete_lines(self) -> bytes:
        """Return the content without an incomplete last line, which a killed process may have left."""
        size = os.fstat(self._fd).st_size
        content = b""
        while len(content) < size and (part := os.pread(self._fd, 1 << 26, len(content))):
            content += part
        return content[: content.rfind(b"\n") + 1]

    def _read(self, overwrite: bool) -> None:
        """Read all entries. With `overwrite`, the file stays unchanged until `begin`, and may be any other file."""
        content = self._complete_lines()
        try:
            head = self._load_all([json.loads(line) for line in content.splitlines()])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if not overwrite:
                raise JobMismatch(f"the ledger is damaged: {error}.", url=self._url) from None
            content, head = b"", None
        # If no unit was completed, the options may change.
        unused = head is not None and not self.done and head.get("format") == FORMAT
        self.new = overwrite or head is None or (unused and head != self._head)
        if not self.new and head is not None:
            _check_head(head, self._head, self._url)
        if self.new:
            self._start_over()
        self._end = len(content) if self.previous or not self.new else 0
        if not overwrite:
            self._continue_at_end()

    def _load_all(self, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Load the units of the last job, and those of the jobs that it overwrites; return its head."""
        head = None
        for entry in entries:
            if head is None or "format" in entry:
                self._start_over()
                head = entry
            elif "settled" in entry:
                self.previous = {}
            elif head.get("format") == FORMAT:
                self._load(entry)
        return head

    def _continue_at_end(self) -> None:
        os.ftruncate(self._fd, self._end)
        os.lseek(self._fd, 0, os.SEEK_END)

    def begin(self) -> None:
        if self.new:
            self._continue_at_end()
            self._store("", self._head)

    def settle(self) -> None:
        if self.previous:
            self._store("", {"settled": True})
        super().settle()

    def _store(self, name: str, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, ensure_ascii=True).encode() + b"\n"
        try:
            written = os.write(self._fd, line)
            os.fsync(self._fd)
        except OSError as error:
            raise WriteError(f"the ledger cannot be written: {error.strerror}.", url=self._url) from error
        if written != len(line):
            raise WriteError("the disk is full.", url=self._url)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    forget = close


class _Objects(Ledger):
    """A ledger in a store: `URL/head.json`, and one object per unit.

    Starting over begins a new generation. The head lists the generations that it replaces, until `settle`.
    """

    def __init__(self, url: str, head: dict[str, Any], overwrite: bool, storage: StorageOptions) -> None:
        super().__init__()
        self._url, self._storage = url, storage
        stored: dict[str, Any] = {}
        generations: list[str] = []
        try:
            stored = self._get(f"{url}/head.json") or {}
            generations = [*stored.get("replaces", ()), *filter(None, [stored.get("generation")])]
            for generation in generations:
                self._start_over()
                self._read(generation)
        except (JobMismatch, KeyError, TypeError, AttributeError):
            if not overwrite:  # which replaces anything
                raise
        known = {name: value for name, value in stored.items() if name not in ("generation", "replaces")}
        if not overwrite and known and (self.done or known == head or known.get("format") != FORMAT):
            _check_head(known, head, url)
            self._head, self.new = stored, False
            return
        self._start_over()
        self._head = head | {"generation": os.urandom(8).hex()}
        if self.previous:
            self._head["replaces"] = generations

    def begin(self) -> None:
        if self.new:
            self._put_head()

    def settle(self) -> None:
        if self._head.pop("replaces", None):
            self._put_head()
        super().settle()

    def _put_head(self) -> None:
        self._put(f"{self._url}/head.json", self._head)

    def _read(self, generation: str) -> None:
        from tarmac.storage.urls import expand_glob

        with contextlib.suppress(NotFound):
            for url in expand_glob(f"{self._url}/{generation}/*.json", DEFAULT_LIMITS, self._storage):
                entry = self._get(url)
                if entry is not None:
                    self._load(entry)

    def _store(self, name: str, entry: dict[str, Any]) -> None:
        number = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        self._put(f"{self._url}/{self._head['generation']}/{number}.json", entry)

    def _get(self, url: str) -> dict[str, Any] | None:
        try:
            entry = json.loads(read_all(url, self._storage))
        except NotFound:
            return None
        except ValueError as error:
            if isinstance(error, TarmacError):
                raise
            raise JobMismatch(f"the ledger is damaged: {error}.", url=url) from None
        return entry if isinstance(entry, dict) else None

    def _put(self, url: str, entry: dict[str, Any]) -> None:
        content = json.dumps(entry, ensure_ascii=True).encode()
        write_all(url, content, self._storage, WriteOptions(overwrite=True))
