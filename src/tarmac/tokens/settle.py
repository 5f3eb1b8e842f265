"""Verify what `combine` has written, and only then delete or move anything.

What was verified is recorded beside the output, so that a run that was killed while it deleted or moved files
continues there, and a finished one does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tarmac.display import plural
from tarmac.errors import JobError, NotFound, TarmacError, UsageError, WriteError
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.outputs import existing_sizes, sampled_digests
from tarmac.jobs.report import Report
from tarmac.storage import StorageOptions, read_all, write_all
from tarmac.storage.folder import Folder
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE, WriteOptions
from tarmac.tokens.formats import find_format
from tarmac.tokens.source import TokenJob, delete_ledger, find_job, has_job
from tarmac.tools.closing import exists

if TYPE_CHECKING:
    from tarmac.tokens.combine import CombineJob

FORMAT = "tarmac-combined-1"


@dataclass(frozen=True)
class Settlement:
    """What happens when all rows are written."""

    home: str
    """The directory of the parts; ends in a slash."""
    output: str
    facts: dict[str, Any]
    """The options of `combine` that the result depends on."""
    move: bool = False
    delete: bool = False
    storage: StorageOptions = DEFAULT_STORAGE

    def find(self, *, partial: bool) -> TokenJob | None:
        """Return the job that wrote the parts; None if its ledger was deleted after an earlier run."""
        if not has_job(self.home, self.storage) and (self._read(self.output) or self._read(self.home)):
            return None
        return find_job(self.home, partial=partial, storage=self.storage)

    def complete(self, job: TokenJob | None) -> Report | None:
        """Return the report of an earlier run that wrote and verified all this, after what it left to do; else None."""
        moved = self._read(self.home) if self.move else None
        record = moved if self._is_current(moved, job) else self._read(self.output)
        if record is None or not self._is_current(record, job):
            if job is None:
                raise self._without_parts()
            return None
        if record is not moved and not self._exist(self.output, record["files"]):
            if job is None:
                what = "the parts were combined and deleted, and the result is gone or has changed."
                raise NotFound(what, url=self.output)
            return None
        self._clean_up(job, record)
        units = record["units"]
        report = Report("combine", units, kept=units, read=record["read"], written=record["written"])
        report.dropped, report.notes = record["read"] - record["written"], dict(record["notes"])
        report.bytes = record["bytes"]
        return report

    def _without_parts(self) -> TarmacError:
        if self._read(self.home):
            what = "this directory has combined tokens and no parts."
            return UsageError(what, url=self.home, hint="the directory that tarmac tokenize wrote to.")
        what = "the parts are gone: an earlier run with other options combined and deleted them."
        return JobError(what, url=self.home, hint="the options of that run.")

    def settle(self, job: TokenJob, task: CombineJob, report: Report, written: int) -> None:
        """Verify that every row is in the output, record it, and delete and move what was asked for.

        `written` is the number of rows that the units have counted.
        """
        survey, form = task.survey, find_format(self.facts["format"])
        assert survey is not None
        rows, expected = form.count(task.target, task.names()), survey.summary.rows
        if rows != expected or written != rows or (survey.read - survey.left_out != rows and not task.packs):
            what = f"the output has {rows} rows, {expected} were expected."
            raise WriteError(what, url=self.output)
        if survey.read != job.rows or job.read != survey.read + job.failed:
            what = f"the parts have {survey.read} rows; the job read {job.read} samples, of which {job.failed} failed."
            raise JobError(what, url=self.home)
        if job.failed:
            report.notes["samples_that_failed_in_tokenize"] = job.failed
        names = [*form.names(task.target, survey.pieces), *form.others(task.target)]
        urls = dict.fromkeys([*report.outputs, *_companions(report), *(self.output + name for name in names)])
        sizes, digests = existing_sizes(urls, self.storage), sampled_digests(urls)
        files = {url.removeprefix(self.output): [sizes[url], digests.get(url)] for url in urls}
        record = {"format": FORMAT, "options": self.facts, "source": job.identity, "units": report.units}
        record |= {
            "read": report.read,
            "written": report.written,
            "notes": report.notes,
            "failed": job.failed,
            "bytes": report.bytes,
            "files": files,
        }
        self._remove_earlier(files)
        self._write(self.output, record)
        if job.missing:
            report.remarks.append(f"the job is not finished: {plural(job.missing, 'unit')} missing")
        self._clean_up(job, record)

    def _remove_earlier(self, files: Mapping[str, Any]) -> None:
        """Remove the files of an earlier run that this one, with other options, has not replaced."""
        earlier = (self._read(self.output) or {}).get("files", {})
        urls = {self.output + name: digest for name, (_, digest) in earlier.items() if name not in files}
        for url, digest in sampled_digests(urls).items():
            if digest == urls[url]:
                os.unlink(local_path(url))

    def _clean_up(self, job: TokenJob | None, record: Mapping[str, Any]) -> None:
        """Delete the parts, and move the output to their place, as far as that is not done."""
        if self.move:
            self._check_free(job, record["files"])
        if self.delete:
            if job is None:
                delete_ledger(self.home)  # what is left of it
            else:
                job.delete()
        if self.move:
            self._write(self.home, record)
            self._move(record["files"])

    def _check_free(self, job: TokenJob | None, files: Mapping[str, Any]) -> None:
        """Raise if a name is taken by a file that is neither a part nor from this output."""
        parts = set() if job is None else set(job.files)
        for name in files:
            url = self.home + name
            if (
                os.path.exists(local_path(self.output + name))
                and os.path.exists(local_path(url))
                and url not in parts
            ):
                raise exists(url)

    def _move(self, files: Mapping[str, Any]) -> None:
        source, target = local_path(self.output), local_path(self.home)
        for name in files:  # the manifest is last
            if os.path.exists(source + name):
                os.replace(source + name, target + name)
        with Folder(target) as folder:
            folder.sync()
        if not self._exist(self.home, files):
            raise NotFound("a file of the output is missing.", url=self.home)
        shutil.rmtree(source, ignore_errors=True)

    def _is_current(self, record: Mapping[str, Any] | None, job: TokenJob | None) -> bool:
        return (
            record is not None
            and record.get("format") == FORMAT
            and record.get("options") == self.facts
            and (job is None or record.get("source") == job.identity)
        )

    def _exist(self, directory: str, files: Mapping[str, Any]) -> bool:
        urls = {directory + name: values for name, values in files.items()}
        sizes, digests = existing_sizes(urls, self.storage), sampled_digests(urls)
        return all([sizes.get(url), digests.get(url)] == list(values) for url, values in urls.items())

    def _read(self, directory: str) -> dict[str, Any] | None:
        with contextlib.suppress(NotFound, ValueError):
            record = json.loads(read_all(_record_url(directory), self.storage))
            return record if isinstance(record, dict) else None
        return None

    def _write(self, directory: str, record: Mapping[str, Any]) -> None:
        url = _record_url(directory)
        content = json.dumps(record).encode()
        with contextlib.suppress(NotFound):
            if read_all(url, self.storage) == content:
                return
        write_all(url, content, self.storage, WriteOptions(overwrite=True))


def _companions(report: Report) -> list[str]:
    return [url for outcome in report.outcomes for url in outcome.companions]


def _record_url(directory: str) -> str:
    return f"{ledger_url(directory, 'combine').rpartition('.')[0]}.json"
