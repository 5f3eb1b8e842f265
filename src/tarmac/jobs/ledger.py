"""Record which units of a job are done, so that a later run, on any engine, does only the rest.

A job is a directory beside its output, or the objects below such a URL:

    job.json                 the head: verb, options and generation
    GENERATION/plan.json     the names of all units, in order
    GENERATION/WRITER.jsonl  what one writer has done (journal.py); in a store, GENERATION/done/UNIT.json
    GENERATION/leases/       units in progress (leases.py)

The head identifies the job: its options must stay the same. A job that overwrites another begins a new generation. Its
head lists the generations that it replaces until `settle`, so that their files can be removed after a killed run, too.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tarmac.errors import JobBusy, JobMismatch, NotFound, TarmacError, WriteError
from tarmac.jobs.entries import Entry, from_json, public_name
from tarmac.jobs.head import EARLIER_FORMAT, FORMAT, check_head, current_head, new_head
from tarmac.jobs.journal import Journal, Reader, parse_entry
from tarmac.jobs.outputs import sampled_digests
from tarmac.jobs.spelling import AS_SPELT, HOME, Spelling, divide, respelt
from tarmac.jobs.task import Outcome, Status, Task, Unit
from tarmac.storage import StorageOptions, is_local, read_all, without_query, write_all
from tarmac.storage.local import local_path
from tarmac.storage.locks import claim, forget_in_children
from tarmac.storage.types import DEFAULT_STORAGE, WriteOptions

SUFFIX = ".job"
"""The extension of the directories of jobs, so that patterns for shards do not match them."""
_OWN = ("generation", "replaces")
"""What the head holds besides what identifies the job."""


def ledger_url(output: str, verb: str) -> str:
    """Return the URL of the ledger for a job that writes `output`: a file, a pattern or a directory."""
    directory, name = divide(output)
    if without_query(output) != output:  # the query distinguishes jobs, but may be a secret
        name += f"-{hashlib.sha256(output.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
    return f"{directory}{HOME}{verb}{'-' if safe else ''}{safe}{SUFFIX}"


def _earlier_path(url: str) -> str:
    """Return the path of the ledger that an earlier version wrote, as one file."""
    return f"{local_path(url).removesuffix(SUFFIX)}.jsonl"


class Ledger:
    """The units of a job that are done, in memory; `StoredLedger` also stores them."""

    def __init__(self) -> None:
        self.done: dict[str, Entry] = {}
        self.failed: dict[str, str] = {}
        """The errors of units that failed and were not done since."""
        self.passing: dict[str, str] = {}
        """The last errors of other units that are not done: errors that may not come again."""
        self.previous: dict[str, Entry] = {}
        """Units of the jobs that this one overwrites, until `settle`."""
        self.new = True
        """Whether the job has never started before."""
        self.job = os.urandom(12).hex()
        """Identifies the job; equal for the same verb and options where a ledger is stored."""
        self.journal: Journal | None = None
        """What workers write to."""
        self.times: dict[str, float] = {}
        """When the entries of units were written; those of earlier versions have no time."""
        self.spelling = AS_SPELT
        """How the names of units and files are stored."""

    @property
    def identity(self) -> str:
        """The job and its generation, for what belongs to this run and its continuations only."""
        return self.job if self.journal is None else f"{self.job} {self.journal.url.rpartition('/')[2]}"

    def begin(
        self,
        units: Sequence[str] = (),
        closing: dict[str, Any] | None = None,
        inputs: Callable[[], Mapping[str, Status]] = dict,
    ) -> None:
        """Store that the job has started, the names of its units, what finishes it, and the status of its inputs."""

    def plan(self) -> dict[str, Any]:
        """Return what `begin` has stored: `units`, `closing` and `inputs`; nothing if the units were not known then."""
        return {}

    def has_begun(self) -> bool:
        """Return whether another task has stored that the same job has started."""
        return False

    def record(self, unit: Unit, outcome: Outcome) -> None:
        """Store that a unit is done."""
        if self.journal is not None:
            self.journal.record(unit, outcome)
        self.add(unit, outcome)

    def add(self, unit: Unit, outcome: Outcome) -> None:
        """Add a unit that a worker has recorded."""
        self.done[unit.name] = outcome.inputs or unit.inputs, outcome
        self._forget_errors(unit.name)

    def refresh(self, unit: str | None = None) -> None:
        """Read what other writers have stored since, at least about this unit."""

    def settle(self) -> None:
        """Store that the files of overwritten jobs were replaced, removed or reported."""
        self.previous = {}

    def close(self) -> None:
        """Release the ledger."""

    def _start_over(self) -> None:
        """Turn the units so far into those of a job that is overwritten."""
        self.previous, self.done = self.previous | self.done, {}
        self.failed, self.passing = {}, {}

    def _forget_errors(self, name: str) -> None:
        self.failed.pop(name, None)
        self.passing.pop(name, None)

    def _load(self, entry: dict[str, Any]) -> None:
        """Add an entry; of several for a unit the latest counts, but a unit that is done has not failed."""
        name, time = self.spelling.unit_from_ledger(entry["unit"]), entry.get("at", 0.0)
        if "error" not in entry and "retry" not in entry:
            if time >= self.times.get(name, 0.0) or name not in self.done:
                self.times[name] = time
                self.done[name] = entry["inputs"], respelt(from_json(entry), self.spelling.from_ledger)
                self._forget_errors(name)
        elif name not in self.done and time >= self.times.get(name, 0.0):
            self.times[name] = time
            self._forget_errors(name)
            if "error" in entry:
                (self.passing if entry.get("passing") else self.failed)[name] = entry["error"]


def open_ledger(
    url: str | None,
    verb: str,
    options: dict[str, Any],
    *,
    overwrite: bool = False,
    dry_run: bool = False,
    shared: bool = False,
    storage: StorageOptions = DEFAULT_STORAGE,
    task: Task | None = None,
) -> Ledger:
    """Open or create a ledger; `overwrite` discards its entries. None keeps one in memory only.

    `dry_run` reads an existing ledger and creates none. `shared` allows other tasks of the job to run meanwhile. The
    task recognises jobs of earlier versions.
    """
    if url is None or (dry_run and overwrite):
        return Ledger()
    return StoredLedger(
        url,
        new_head(verb, options),
        overwrite=overwrite,
        read_only=dry_run,
        shared=shared,
        storage=storage,
        task=task,
    )


class StoredLedger(Ledger):
    """A ledger in a directory or in a store."""

    def __init__(
        self,
        url: str,
        head: dict[str, Any],
        *,
        overwrite: bool = False,
        read_only: bool = False,
        shared: bool = False,
        storage: StorageOptions = DEFAULT_STORAGE,
        task: Task | None = None,
    ) -> None:
        super().__init__()
        self._url, self._storage, self._task = url, storage, task
        self._fd = -1
        self.head: dict[str, Any] = {}
        self.job = hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()[:24]
        forget_in_children(self)
        if is_local(url) and not read_only:
            self._lock(shared)
        try:
            self._read(head, overwrite)
        except BaseException:
            self.close()
            raise

    def _lock(self, shared: bool) -> None:
        """Lock the ledger: a courtesy to a user who starts a job twice. Correctness does not depend on it."""
        path = local_path(self._url)
        try:
            if os.path.isfile(path):  # of an earlier version
                os.replace(path, _earlier_path(path))
            os.makedirs(path, exist_ok=True)
            self._fd = os.open(f"{path}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise WriteError(f"the ledger cannot be written: {error.strerror}.", url=self._url) from error
        if not claim(self._fd, shared=shared):
            self.close()
            raise JobBusy("another process is running this job.", url=self._url)

    def _read(self, head: dict[str, Any], overwrite: bool) -> None:
        """Read the entries of the job, and of those that it overwrites. Nothing is written until `begin`."""
        stored: dict[str, Any] = {}
        self._earlier: dict[str, list[dict[str, Any]]] = {}
        generations: list[str] = []
        try:
            stored = self._get("job.json") or {}
            if not stored and is_local(self._url):
                stored, self._earlier = read_earlier(self._url)
            generations = [*stored.get("replaces", ()), *filter(None, [stored.get("generation")])]
            self.spelling = self._spelling_of(stored)
            for generation in generations:
                self._start_over()
                self._open(generation)
        except (JobMismatch, KeyError, TypeError, AttributeError) as error:
            if not overwrite:  # which replaces anything
                if isinstance(error, JobMismatch):
                    raise
                raise JobMismatch(f"the ledger is damaged: {error!r}.", url=self._url) from None
            stored, generations, self._earlier = {}, [], {}
        known = current_head({name: value for name, value in stored.items() if name not in _OWN})
        if not head:  # that of any job
            self.head = stored
            return
        # If no unit was completed, the options may change.
        if not overwrite and known and (self.done or known == head or known.get("format") != FORMAT):
            check_head(known, head, self._url, self._task, self.done.values(), self._storage)
            self.head, self.new = stored, False
            return
        self._start_over()
        self.spelling = self._spelling_of(head)
        # Tasks that start together choose the same generation; a job that starts over chooses a new one.
        seed = os.urandom(8).hex() if overwrite else json.dumps([head, generations], sort_keys=True)
        self.head = head | {"generation": hashlib.sha256(seed.encode()).hexdigest()[:16]}
        if self.previous:
            self.head["replaces"] = generations
        self._open(self.head["generation"])

    def _spelling_of(self, head: dict[str, Any]) -> Spelling:
        earlier = head.get("options", {}) if head.get("format") == EARLIER_FORMAT else None
        return Spelling.of(self._url, earlier, units=self._task is None or self._task.names_files)

    def _open(self, generation: str) -> None:
        """Read the entries of a generation, and write to it."""
        url = f"{self._url}/{generation}"
        self.journal = Journal(url, self._storage, self.spelling)
        self._reader = Reader(url, self._storage)
        for entry in self._earlier.get(generation, ()):
            self._load(entry)
        self.refresh()

    def refresh(self, unit: str | None = None) -> None:
        for entry in self._reader.new_entries(None if unit is None else self.spelling.unit_to_ledger(unit)):
            self._load(entry)

    def has_begun(self) -> bool:
        with contextlib.suppress(JobMismatch):  # a damaged one, which this job overwrites
            return self._get("job.json") == self.head
        return False

    def begin(
        self,
        units: Sequence[str] = (),
        closing: dict[str, Any] | None = None,
        inputs: Callable[[], Mapping[str, Status]] = dict,
    ) -> None:
        for generation, entries in self._earlier.items():
            self._put(f"{generation}/earlier.jsonl", entries)
        if not self.has_begun():
            self._put("job.json", [self.head])
        if self._earlier:
            os.unlink(_earlier_path(self._url))
            self._earlier = {}
        plan = f"{self.head['generation']}/plan.json"
        if units and not (self.done and self._get(plan)):
            stored = [public_name(self.spelling.unit_to_ledger(unit)) for unit in units]
            # In ledgers of earlier versions, names that finish a job are relative to where it was started.
            finishing = closing if self.head.get("format") == FORMAT else None
            self._put(plan, [{"units": stored, "closing": finishing, "inputs": dict(inputs())}])

    def settle(self) -> None:
        if self.head.pop("replaces", None):
            self._put("job.json", [self.head])
        super().settle()

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()
        self.forget()

    def forget(self) -> None:
        """Close the lock in a forked process; it belongs to its parent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def plan(self) -> dict[str, Any]:
        plan = self._get(f"{self.head.get('generation')}/plan.json") or {}
        units = plan.get("units")
        if isinstance(units, list):
            plan["units"] = [
                self.spelling.unit_from_ledger(unit) if isinstance(unit, str) else unit for unit in units
            ]
        return plan

    def _get(self, name: str) -> dict[str, Any] | None:
        try:
            content = read_all(f"{self._url}/{name}", self._storage)
        except NotFound:
            return None
        return parse_entry(content, self._url)

    def _put(self, name: str, values: Sequence[dict[str, Any]]) -> None:
        url, content = f"{self._url}/{name}", "".join(f"{json.dumps(value)}\n" for value in values).encode()
        if is_local(url):
            os.makedirs(os.path.dirname(local_path(url)), exist_ok=True)
        write_all(url, content, self._storage, WriteOptions(overwrite=True))


def read_earlier(url: str) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Read the ledger of an earlier version, one file: return its head, and the entries of each generation.

    A job that overwrote another appended its own head, and `settled` when it had replaced all files.
    """
    path = local_path(url)
    path = path if os.path.isfile(path) else _earlier_path(path)
    if not os.path.isfile(path):
        return {}, {}
    with open(path, "rb") as file:
        lines = file.read().rpartition(b"\n")[0].splitlines()
    head: dict[str, Any] = {}
    generations: dict[str, list[dict[str, Any]]] = {}
    for entry in (parse_entry(line, url) for line in lines):
        if not head or "format" in entry:
            head = entry
            generations[f"earlier-{len(generations)}"] = []
        elif "settled" in entry:
            generations = dict([generations.popitem()])
        elif head.get("format") == EARLIER_FORMAT:
            generations[list(generations)[-1]].append(entry | {"inputs": entry["inputs"]})
    if head and generations:
        *replaces, generation = generations
        head = head | {"generation": generation, "replaces": replaces}
    return head, generations


def read_job(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> tuple[dict[str, Any], StoredLedger]:
    """Return the head of a job and its ledger, without a lock; raise NotFound if there is no job."""
    ledger = StoredLedger(url, {}, read_only=True, storage=storage)
    if not ledger.head:
        raise NotFound("there is no job here.", url=url)
    return ledger.head, ledger


def written_by_others(ledger: str | None, names: Iterable[str]) -> dict[str, str]:
    """Return those of the files that other jobs wrote, according to neighbouring ledgers, and their verbs."""
    existing = sampled_digests(names) if ledger is not None and is_local(ledger) else {}
    if not existing or ledger is None:
        return {}
    writers: dict[tuple[str, str], str] = {}
    own = os.path.abspath(local_path(ledger))
    for path in glob.glob(os.path.join(glob.escape(os.path.dirname(own)), "*.jo*")):
        if path not in (own, _earlier_path(own)):
            with contextlib.suppress(OSError, TarmacError, KeyError, TypeError, AttributeError):
                head, other = read_job(path)
                for _, outcome in other.done.values():
                    for name, digest in outcome.sampled_digests.items():
                        writers[os.path.basename(name), digest] = head["verb"]
    verbs = {name: writers.get((os.path.basename(name), digest)) for name, digest in existing.items()}
    return {name: verb for name, verb in verbs.items() if verb is not None}
