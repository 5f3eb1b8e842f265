"""Find the parts that a job of `tokenize` has written: those of finished units, and chunks of the others."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tarmac.display import plural
from tarmac.errors import JobBusy, JobError, NotFound, TarmacError, UsageError
from tarmac.jobs.chunks import Chunk, Chunks, chunk_directory
from tarmac.jobs.ledger import ledger_url, read_job
from tarmac.jobs.outputs import UNKNOWN_SIZE, existing_sizes, sampled_digests
from tarmac.jobs.task import Outcome
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.locks import claim
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tokens.rows import Part, first_schema
from tarmac.tools.plan import shard_stem

VERB = "tokenize"
_LOCK = "lock"


@dataclass(frozen=True)
class TokenJob:
    """A job of `tokenize` and what it has written so far."""

    directory: str
    """Ends in a slash."""
    ledger: str
    identity: str
    """Changes with what the job has written."""
    parts: Sequence[Part]
    files: dict[str, tuple[int, str | None]]
    """The files of finished units, with size and sampled digest."""
    missing: int
    """Units that are not finished."""
    read: int
    """Samples that the job read for these parts."""
    failed: int
    """Those of them that failed."""
    storage: StorageOptions = DEFAULT_STORAGE

    @property
    def rows(self) -> int:
        """How many rows the job counted."""
        return sum(part.rows for part in self.parts)

    def check(self) -> None:
        """Raise unless every file of a finished unit is the one that the job wrote, and no other parts are here."""
        sizes = existing_sizes(self.files, self.storage)
        digests = sampled_digests(self.files)
        for url, (size, digest) in self.files.items():
            if url not in sizes:
                what = "the part is missing, though its job has written it."
                raise NotFound(what, url=url, hint="run tarmac tokenize again: it writes what is missing.")
            same = UNKNOWN_SIZE in (size, sizes[url]) or size == sizes[url]
            if not same or (digest is not None and digests.get(url) != digest):
                what = (
                    "the part is not the one that the job wrote: another program has changed or replaced it."
                )
                raise JobError(what, url=url, hint="run tarmac tokenize again: it writes the part again.")
        for url in self._strangers():
            what = "this part belongs to another job."
            raise JobError(what, url=url, hint="move it to another directory.")

    def _strangers(self) -> Iterator[str]:
        """Yield shards of records beside the parts that this job has not written."""
        if not is_local(self.directory):
            return
        for path in sorted(glob.glob(f"{glob.escape(local_path(self.directory))}*.tar")):
            if path not in map(local_path, self.files):
                with contextlib.suppress(TarmacError):
                    if first_schema([Part(path, (path,), 0)]) is not None:
                        yield path

    def delete(self) -> None:
        """Delete the files of the job and then its ledger; a part that has changed stays."""
        with self._locked():
            digests = sampled_digests(self.files)
            for url, (_, digest) in self.files.items():
                if digest is None or digests.get(url) == digest:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(local_path(url))
            delete_ledger(self.directory)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the job, so that none of its processes runs meanwhile."""
        fd = os.open(f"{local_path(self.ledger)}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not claim(fd):
                raise JobBusy("another process is running this job.", url=self.ledger)
            yield
        finally:
            os.close(fd)


def delete_ledger(directory: str) -> None:
    """Delete the ledger of a job, its head first, so that a ledger that is partly deleted is not mistaken for a job."""
    path = local_path(ledger_url(directory, VERB))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}/job.json")
    shutil.rmtree(path, ignore_errors=True)


def has_job(directory: str, storage: StorageOptions = DEFAULT_STORAGE) -> bool:
    """Return whether there is a ledger of `tokenize`."""
    try:
        read_job(ledger_url(directory, VERB), storage)
    except NotFound:
        return False
    return True


def find_job(directory: str, *, partial: bool, storage: StorageOptions = DEFAULT_STORAGE) -> TokenJob:
    """Read the ledger of the job in a directory; raise if there is none, or if it is unfinished without `partial`."""
    ledger = ledger_url(directory, VERB)
    try:
        head, records = read_job(ledger, storage)
    except NotFound:
        path = directory.rstrip("/")
        is_file = is_local(path) and os.path.isfile(local_path(path))
        what = "this is a file." if is_file else "tarmac tokenize has written nothing here."
        raise UsageError(what, url=path, hint="the directory that tarmac tokenize wrote to.") from None
    units = records.plan().get("units") or list(records.done)
    missing = [name for name in units if name not in records.done]
    if missing and not partial:
        what = f"{len(missing)} of {plural(len(units), 'unit')} of the job are not finished."
        hint = "run tarmac tokenize again, which does the rest; or `partial` for what is finished."
        raise JobError(what, url=directory, hint=hint)
    parts: list[Part] = []
    files: dict[str, tuple[int, str | None]] = {}
    chunks: list[str] = []
    read = failed = 0
    for name in units:
        if name in records.done:
            outcome = records.done[name][1]
            own = {
                _beside(directory, url): (size, outcome.sampled_digests.get(url))
                for url, size in outcome.outputs.items()
            }
            parts.append(Part(shard_stem(name), tuple(own), outcome.written))
            files |= own
            read, failed = read + _taken(outcome), failed + outcome.failed + outcome.dropped
        else:
            saved = _saved(ledger, name, storage)
            if saved:
                state = saved[-1].state
                lost = state["failed"] + state["dropped"]
                total = state["read"] + state["added"]
                parts.append(Part(shard_stem(name), tuple(chunk.url for chunk in saved), total - lost))
                chunks += [chunk.url for chunk in saved]
                read, failed = read + total, failed + lost
    facts = [head.get("options"), records.identity, [[part.name, part.rows] for part in parts]]
    content = json.dumps(
        [*facts, list(files.values()), [url.rpartition("/")[2] for url in chunks]], sort_keys=True
    )
    identity = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return TokenJob(directory, ledger, identity, parts, files, len(missing), read, failed, storage)


def _beside(directory: str, url: str) -> str:
    """Return the location of a part: names in a ledger are relative to where the job was started."""
    return f"{directory}{url.rpartition('/')[2]}"


def _taken(outcome: Outcome) -> int:
    return outcome.read + outcome.added - outcome.left_out


def _saved(ledger: str, unit: str, storage: StorageOptions) -> list[Chunk]:
    chunks = Chunks(chunk_directory(ledger, unit), "", storage)
    return chunks.load()
