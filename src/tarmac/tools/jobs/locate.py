"""Find the jobs that write to a location, and read what they have recorded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tarmac.errors import JobError, JobMismatch, NotFound, UsageError
from tarmac.jobs.head import EARLIER_FORMAT, FORMAT
from tarmac.jobs.leases import Lease, read_leases
from tarmac.jobs.ledger import SUFFIX, StoredLedger, ledger_url, read_job
from tarmac.jobs.task import Outcome
from tarmac.storage import StorageOptions, can_list, is_local, list_objects
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE

_EARLIER = ".jsonl"
"""The extension of ledgers of earlier versions, which are files."""
_HEAD = "job.json"


@dataclass
class Job:
    """A job as its ledger and its leases describe it."""

    url: str
    head: dict[str, Any]
    ledger: StoredLedger
    storage: StorageOptions = DEFAULT_STORAGE

    @property
    def verb(self) -> str:
        """The verb of the job."""
        return str(self.head["verb"])

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The units of the job and what finishes it; empty for streams and for jobs of earlier versions."""
        return self.ledger.plan()

    @cached_property
    def units(self) -> list[str] | None:
        """The names of all units, if they were known in advance."""
        units = self.plan.get("units")
        if units is not None and not (
            isinstance(units, list) and all(isinstance(each, str) for each in units)
        ):
            raise JobMismatch("the plan is damaged.", url=self.url)
        return units

    @cached_property
    def leases(self) -> list[Lease]:
        """The leases on units, live or not."""
        stored = read_leases(f"{self.url}/{self.head['generation']}", self.storage)
        known = self.ledger.spelling.unit_from_ledger
        return [replace(lease, unit=known(lease.unit)) for lease in stored if lease.unit]

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of units that are done, in the order of the plan."""
        done = self.ledger.done
        return [done[name][1] for name in (done if self.units is None else self.units) if name in done]

    def resolver(self) -> Callable[[str], str]:
        """Return a function that resolves the names of the files that finish the job.

        Those of an earlier version are relative to where the job was started.
        """
        pattern = str(self.head.get("options", {}).get("pattern", ""))
        if self.head["format"] == FORMAT:
            return self.ledger.spelling.from_ledger
        if (
            not is_local(self.url)
            or not pattern
            or not is_local(pattern)
            or os.path.isabs(local_path(pattern))
        ):
            return lambda name: name
        path, ledger = os.path.abspath(local_path(self.url)), os.path.normpath(ledger_url(pattern, self.verb))
        if path == os.path.abspath(ledger):
            return lambda name: name
        start = path.removesuffix(f"/{ledger}")
        if start == path:
            raise JobError(
                f"the job was started as {ledger}, in another directory.",
                url=self.url,
                hint="run the command of the job again: it does what is missing, and finishes the job.",
            )
        return lambda name: os.path.join(start, name) if is_local(name) else name


def open_job(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> Job:
    """Read the ledger of a job."""
    head, ledger = read_job(url, storage)
    if head.get("format") not in (FORMAT, EARLIER_FORMAT) or not isinstance(head.get("verb"), str):
        raise JobMismatch("this is not a ledger of this version of tarmac.", url=url)
    return Job(url, head, ledger, storage)


def open_jobs(location: str | os.PathLike[str], storage: StorageOptions = DEFAULT_STORAGE) -> list[Job]:
    """Read the ledgers of all jobs that write to a location."""
    return [open_job(url, storage) for url in find_jobs(location, storage)]


def find_jobs(location: str | os.PathLike[str], storage: StorageOptions = DEFAULT_STORAGE) -> list[str]:
    """Return the URLs of the jobs that write to a location; raise NotFound if there is none.

    The location is an output: a directory, or a pattern or URL as it was given to the job; or it is a job itself.
    """
    text = os.fspath(location)
    if not is_local(text) and not can_list(text):
        what = "only the jobs in directories, and in stores that can be listed, can be found."
        raise UsageError(what, url=text, hint="the same location as a path, or as the URL of a bucket.")
    bare = text.rstrip("/") or "/"
    if is_local(text):
        path = local_path(bare)
        if os.path.isfile(os.path.join(path, _HEAD)) or (os.path.isfile(path) and _is_ledger(path)):
            return [bare]
        outputs = [f"{bare}/"] if os.path.isdir(path) else [text]
        list_jobs = _in_directory
    else:
        if bare.endswith(SUFFIX):
            return [bare]
        outputs, list_jobs = ([text, f"{bare}/"] if text == bare else [text]), _in_store
    for output in outputs:
        # Jobs that split their output have another word for it in their names.
        own = ledger_url(output.replace("{split", "{part"), "")
        directory, _, suffix = own.rpartition("/")
        if os.path.basename(bare) == ".tarmac":
            directory = bare
        names = [name for name in list_jobs(directory, storage) if name.endswith(suffix)]
        if names:
            return [f"{directory}/{name}" for name in sorted(names)]
    hint = "the output that the job was given, such as DIR/ or DIR/x-{i:06d}.tar."
    raise NotFound("no job has written here.", url=text, hint=hint)


def _is_ledger(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(64).startswith(b'{"format": "tarmac-')


def _in_directory(directory: str, storage: StorageOptions) -> Sequence[str]:
    """Return the names of the jobs in a local directory."""
    names = set()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for item in os.scandir(local_path(directory)):
            if item.name.endswith(_EARLIER):
                names.add(item.name.removesuffix(_EARLIER) + SUFFIX)
            elif item.name.endswith(SUFFIX) and (
                item.is_file() or os.path.exists(os.path.join(item.path, _HEAD))
            ):
                names.add(item.name)
    return list(names)


def _in_store(directory: str, storage: StorageOptions) -> Sequence[str]:
    """Return the names of the jobs in a store."""
    with contextlib.suppress(NotFound):
        urls = [url for url, _ in list_objects(f"{directory}/", storage)]
        heads = [
            url.removeprefix(f"{directory}/").removesuffix(f"/{_HEAD}") for url in urls if url.endswith(_HEAD)
        ]
        return [name for name in heads if name.endswith(SUFFIX) and "/" not in name]
    return []
