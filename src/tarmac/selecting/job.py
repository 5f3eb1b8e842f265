"""Select rows as a job of one unit: it is done when the manifest is written, and running it again does nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tarmac.display import identity
from tarmac.errors import JobError, NotFound, UnsupportedScheme, UsageError
from tarmac.jobs.entries import public_name
from tarmac.jobs.outputs import existing_sizes, sampled_digests
from tarmac.jobs.statuses import new_outcome, status_fingerprint, statuses_of
from tarmac.jobs.task import Outcome, Status, Task, Unit
from tarmac.progress import track
from tarmac.selecting.options import Options
from tarmac.selecting.selection import Selection, opened
from tarmac.selecting.sqlerrors import BadEncodingError
from tarmac.selecting.write import ROW_GROUP, Written, write_files
from tarmac.storage import StorageOptions, WriteOptions, delete, is_local, list_objects, location, write_all
from tarmac.storage.local import local_path
from tarmac.tools.closing import exists
from tarmac.tools.workdir import HINT, disk_errors

FORMAT = "tarmac-select-1"
MANIFEST = "manifest.json"
DETAILS = "selection"
"""The detail of an outcome that holds the numbers of the manifest."""
_PART = re.compile(r"part-(\d{5,})\.parquet")


@dataclass
class SelectJob(Task):
    """Write the selected rows to files of a directory, and then their manifest."""

    urls: Sequence[str]
    directory: str
    """The output, with a slash at its end."""
    choices: Options
    storage: StorageOptions
    engine: str
    memory: int
    jobs: int
    overwrite: bool = False
    tmp: str | None = None
    progress: bool | None = None

    verb = "select"

    def options(self) -> dict[str, Any]:
        return {"inputs": _digest([identity(location(url)) for url in self._read])} | self.choices.to_json()

    @property
    def _read(self) -> list[str]:
        return [*self.urls, *self.choices.join]

    @property
    def manifest(self) -> str:
        """The URL of the manifest."""
        return f"{self.directory}{MANIFEST}"

    def plan(self) -> list[Unit]:
        return [Unit(self.manifest)]

    def writes(self, units: Sequence[Unit]) -> list[str]:
        return [unit.name for unit in units]

    def begin(self, units: Sequence[Unit]) -> None:
        for url in (self.manifest, *self._parts()):
            if existing_sizes([url], self.storage):
                raise exists(url)

    def reads(self) -> dict[str, Status]:
        return statuses_of(self._read, self.storage)

    def statuses(self, unit: Unit) -> dict[str, Status]:
        return self.reads()

    def inputs(self, unit: Unit) -> str:
        return status_fingerprint(self.reads())

    def content(self, unit: Unit) -> str:
        """Return a digest of parts of all tables; none if some are in a store."""
        digests = sampled_digests(self._read)
        return _digest(sorted(digests.values())) if len(digests) == len(set(self._read)) else ""

    def run(self, unit: Unit) -> Outcome:
        try:
            return self._run(unit, repair=False)
        except BadEncodingError:
            return self._run(unit, repair=True)

    def _run(self, unit: Unit, *, repair: bool) -> Outcome:
        outcome = new_outcome(self.statuses(unit))
        outcome.content = self.content(unit)
        settings: dict[str, Any] = {"engine": self.engine, "memory": self.memory, "jobs": self.jobs}
        with (
            work_directory(self.directory, self.tmp) as folder,
            disk_errors(folder),
            opened(self.choices, self.urls, folder, self.storage, repair=repair, **settings) as selection,
        ):
            selection.count()
            selection.check_rows()
            self._forget_manifest()
            groups = -(-selection.selected // ROW_GROUP)
            rows = track(selection.stream(), groups, self.verb, progress=self.progress)
            files = write_files(
                rows, selection.query.output, self._name, self.choices.rows_per_file, self.storage
            )
            facts = self._facts(selection, files)
        self._remove_others(len(files))
        content = json.dumps(facts, indent=1, ensure_ascii=False).encode()
        write_all(self.manifest, content, self.storage, WriteOptions(overwrite=True))
        outcome.outputs = {file.url: file.bytes for file in files}
        outcome.companions = {self.manifest: len(content)}
        outcome.bytes = sum(outcome.outputs.values())
        outcome.details[DETAILS] = {name: facts[name] for name in ("rows", "dirt")}
        outcome.read, outcome.written = facts["rows"]["in"], facts["rows"]["out"]
        outcome.dropped = selection.dirt.unreadable_rows
        outcome.left_out = outcome.read - outcome.written - outcome.dropped
        return outcome

    def _facts(self, selection: Selection, files: Sequence[Written]) -> dict[str, Any]:
        """Return the manifest."""
        dirt, out = selection.dirt, sum(file.rows for file in files)
        removed = [step.to_json() for step in selection.steps]
        if dirt.unreadable_rows:
            removed.insert(0, {"filter": "unreadable", "removed": dirt.unreadable_rows})
        rows = {"in": selection.rows_in + dirt.unreadable_rows, "out": out, "removed": removed}
        if rows["in"] != out + sum(step["removed"] for step in removed):
            raise JobError(f"the numbers of rows do not add up: {rows}.", url=self.directory)
        return {
            "format": FORMAT,
            "fingerprint": _digest([self.options(), self.inputs(Unit(self.manifest))]),
            "plan": self.choices.to_json() | {"tables": [public_name(url) for url in self._read]},
            "key": list(selection.query.key),
            "rows": rows,
            "dirt": dirt.counts(),
            "columns": {each.name: str(each.type) for each in selection.query.output},
            "files": [
                {"name": file.url.rpartition("/")[2], "rows": file.rows, "bytes": file.bytes}
                for file in files
            ],
        }

    def _name(self, number: int) -> str:
        return f"{self.directory}part-{number:05d}.parquet"

    def _parts(self) -> list[str]:
        """Return the files of an earlier selection, in the output directory."""
        names: list[str] = []
        with contextlib.suppress(NotFound, UnsupportedScheme, FileNotFoundError):
            if is_local(self.directory):
                names = os.listdir(local_path(self.directory))
            else:
                names = [url[len(self.directory) :] for url, _ in list_objects(self.directory, self.storage)]
        return [f"{self.directory}{name}" for name in sorted(names) if _PART.fullmatch(name)]

    def _forget_manifest(self) -> None:
        """Remove the manifest of an earlier selection, which does not describe the files from now on."""
        if existing_sizes([self.manifest], self.storage):
            delete(self.manifest, self.storage)

    def _remove_others(self, count: int) -> None:
        """Remove files with higher numbers: those of a selection that this one replaces, or that was killed."""
        own = {self._name(number) for number in range(count)}
        for url in self._parts():
            if url not in own:
                delete(url, self.storage)


@contextlib.contextmanager
def work_directory(output: str | None, tmp: str | None) -> Iterator[str]:
    """Yield a directory for working files: beside the output, or in `tmp`. What a killed run left is removed."""
    if output is None or not is_local(output) or tmp:
        try:
            with tempfile.TemporaryDirectory(
                prefix="tarmac-select-", dir=tmp, ignore_cleanup_errors=True
            ) as folder:
                yield os.path.abspath(folder)
        except FileNotFoundError as error:
            what = f"cannot create a temporary directory: {error.strerror}."
            raise UsageError(what, field="tmp", url=tmp, hint=HINT) from None
        return
    folder = os.path.abspath(f"{local_path(output)}.tarmac/select-work")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:32]
