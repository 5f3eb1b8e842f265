"""Download the rows of tables into shards: the job. A unit is a block of rows."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from tarmac.display import identity
from tarmac.downloading.network.crawl import Known
from tarmac.downloading.rows import Block, Links, Rows, text_of
from tarmac.downloading.seen import Hashes, Seen
from tarmac.downloading.spool import Spool, opened
from tarmac.downloading.status import DROPPED, SUCCESS, StatusFile, public_url, read_statuses, status_url
from tarmac.downloading.unit import Fetching, Link, Work
from tarmac.errors import BadName
from tarmac.jobs.chunks import chunk_directory, clear_all
from tarmac.jobs.entries import public_name
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.spelling import relative_name
from tarmac.jobs.statuses import details_of, status_fingerprint
from tarmac.jobs.task import Outcome, Status, Unit
from tarmac.runtime.crew import workers_at_once
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import check_key
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.tools.closing import close_job
from tarmac.tools.columns import encode_json
from tarmac.tools.output import Output, ShardTask, make_directory, same_name, write_shard

_Job = tuple[int, str, str]
"""The process, the output and the identity of a job."""


class _Kept(threading.local):
    """What a worker keeps from unit to unit; a cluster may run several workers in a process, as threads."""

    known: tuple[_Job, Known] | None = None
    seen: tuple[_Job, list[str], Seen] | None = None
    """The pictures of earlier shards, and the status files that tell them."""


_kept = _Kept()
_KEY_DIGITS = 9
COUNTS = "statuses"
"""A detail of an outcome: how many rows have which status."""


@dataclass
class DownloadJob(ShardTask):
    """Each unit is a shard with the block of rows that it is made of."""

    rows: Rows
    output: Output
    work: Work
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the result depends on, for the ledger."""
    dedup: str | None = None
    known: tuple[str, ...] = ()
    """Status files of other downloads, whose pictures count as seen."""
    blocks: list[Block] = field(default_factory=list)
    name: str = "download"
    """The name of the ledger: later rounds have their own."""
    first: int = 0
    """The number of the first shard."""
    earlier: list[Outcome] = field(default_factory=list)
    """The outcomes of earlier rounds, whose shards the manifest lists, too."""
    live: Callable[[Counter[str], int], None] | None = None
    workers: int = 1
    """How many workers there are, unless the engine knows it."""
    units: int = 0
    """How many units there are, for workers, which do not get the blocks."""
    verb = "download"

    def __getstate__(self) -> dict[str, Any]:
        hidden: dict[str, Any] = {"blocks": [], "live": None}
        return self.__dict__ | hidden | ({} if self.dedup else {"earlier": self.earlier[:1]})

    def options(self) -> dict[str, Any]:
        urls = [table.url for table in self.rows.tables]
        # Not their directories: a job may be moved with its tables, and what these contain is compared.
        tables = [PurePath(local_path(url)).name if is_local(url) else identity(url) for url in urls]
        count = sum(block.count for block in self.blocks)
        options = {"sources": tables, "rows": count, "rows_per_shard": self.rows.step}
        options |= self.output.options() | self.rows.links.options() | self.work.pictures.options()
        return options | self.facts

    def plan(self) -> Iterator[Unit]:
        if self.first + len(self.blocks) > 1 and not self.output.numbered:
            raise same_name(self.output.pattern)
        self.units = len(self.blocks)
        for number, block in enumerate(self.blocks, self.first):
            yield Unit(self.output.name(number), block)

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        yield from super().writes(units)
        yield from (status_url(unit.name) for unit in units)

    def begin(self, units: Sequence[Unit]) -> None:
        names = [name for name in self.writes(units) if not (self.earlier and name == self.output.manifest)]
        self.output.check_new(names)

    def reads(self) -> dict[str, Status]:
        return {public_name(table.url): table.local.status() for table in self.rows.tables}

    def statuses(self, unit: Unit) -> dict[str, Status]:
        used = {segment.table for segment in unit.content.segments}
        tables = [self.rows.tables[number] for number in sorted(used)]
        return {public_name(table.url): table.local.status() for table in tables}

    def inputs(self, unit: Unit) -> str:
        return status_fingerprint(self.statuses(unit))

    def content(self, unit: Unit) -> str:
        return self.rows.digest(unit.content)

    def run(self, unit: Unit) -> Outcome:
        block: Block = unit.content
        statuses = self.statuses(unit)
        outcome = Outcome(inputs=status_fingerprint(statuses), details=details_of(statuses))
        outcome.content = self.rows.digest(block)
        with opened(self._spool(unit, outcome.content)) as spool:
            done, hosts = spool.rows, self._hosts()
            if self.earlier and unit.name == self.output.name(self.first):  # the end of a run
                hosts.forgive()
            fetching = Fetching(self.work, hosts, spool, block.count, live=self.live)
            fetching.run(self._links(block, done))
            self._write(unit, spool, outcome)
        return outcome

    def _links(self, block: Block, done: set[int]) -> Iterator[Link]:
        for number, links, row in self.rows.read(block):
            if number not in done:
                yield Link(number, row.get(links.url), _cell(row, links.boxes), _cell(row, links.verify))

    def _spool(self, unit: Unit, content: str) -> Spool:
        facts = "\0".join((self.job, relative_name(self._ledger, unit.name), content))
        fingerprint = hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()
        return Spool(chunk_directory(self._ledger, unit.name), fingerprint, self.output.storage)

    @property
    def _ledger(self) -> str:
        return ledger_url(self.output.ledger_pattern, self.name)

    def _hosts(self) -> Known:
        """Return what this worker knows about hosts, also from earlier units and rounds."""
        job = os.getpid(), self.output.pattern, ""
        if _kept.known is None or _kept.known[0] != job or _kept.known[1].web != self.work.web:
            _kept.known = job, Known(self.work.web)
        known = _kept.known[1]
        known.limit(min(workers_at_once(self.workers), self.units or 1))
        return known

    def _write(self, unit: Unit, spool: Spool, outcome: Outcome) -> None:
        """Write the shard and the status of its rows, in the order of the table."""
        if is_local(unit.name):  # a shard without samples is not written, but the status of its rows is
            make_directory(unit.name)
        types = dict.fromkeys(self.rows.links.save, "string") | dict(self.rows.saved)
        status = StatusFile(self.work.digest, types)
        counts: Counter[str] = Counter()
        write_shard(
            self.output, unit.name, self._samples(unit, spool, status, counts, outcome), outcome=outcome
        )
        name = status_url(unit.name)
        outcome.companions = outcome.companions | {name: status.write(name, self.output.storage)}
        outcome.read = unit.content.count
        outcome.dropped = sum(number for name, number in counts.items() if name in DROPPED)
        outcome.failed = outcome.read - outcome.dropped - counts[SUCCESS]
        outcome.details[COUNTS] = dict(sorted(counts.items()))

    def _samples(
        self, unit: Unit, spool: Spool, status: StatusFile, counts: Counter[str], outcome: Outcome
    ) -> Iterator[Sample]:
        seen, keys = self._seen(unit), set[str]()
        for number, links, row in self.rows.read(unit.content):
            facts = spool.facts(number)
            key, why = _key(number, links, row)
            if facts["status"] == SUCCESS and not why and key in keys:
                why = "another row of the block has the same key."
            if facts["status"] == SUCCESS and why:
                facts |= {"status": "bad_key", "error_message": why}
            if facts["status"] == SUCCESS and seen is not None:
                picture = facts["content_hash"], facts.get("perceptual_hash")
                if seen.has(*picture):
                    facts |= {"status": "duplicate", "error_message": f"{self.dedup} duplicate."}
                else:
                    seen.add(*picture)
            caption = text_of(_cell(row, links.caption))
            named = {
                "row": number,
                "key": key,
                "url": public_url(text_of(row.get(links.url))),
                "caption": caption,
            }
            counts[facts["status"]] += 1
            if facts["status"] == SUCCESS:
                keys.add(key)
                yield self._sample(key, facts, named, links, row, spool.data(number))
            exif = facts.pop("exif", None)
            status.add(facts | named | {"exif": json.dumps(exif) if exif else None}, self._saved(links, row))

    def _saved(self, links: Links, row: Any) -> dict[str, Any]:
        """Return the values of the saved columns, as text unless they have a type of their own."""
        values = {name: row.get(spelt) for name, spelt in zip(self.rows.links.save, links.save, strict=True)}
        return {name: value if name in self.rows.saved else text_of(value) for name, value in values.items()}

    def _sample(
        self, key: str, facts: dict[str, Any], named: dict[str, Any], links: Links, row: Any, data: bytes
    ) -> Sample:
        meta = {name: row.get(name) for name in links.save}
        meta |= {name: named[name] for name in ("url", "caption", "key") if named[name] is not None}
        names = ("status", "width", "height", "original_width", "original_height", self.work.digest, "exif")
        meta |= {name: facts[name] for name in names if name in facts}
        sample: Sample = {"__key__": key, facts["extension"]: data, "json": encode_json(_finite(meta))}
        if named["caption"] is not None:
            sample["txt"] = named["caption"].encode("utf-8", "replace")
        return sample

    def _seen(self, unit: Unit) -> Seen | None:
        """Return the pictures of all shards before this one, if duplicates are left out."""
        if self.dedup is None:
            return None
        names = [name for outcome in self.earlier for name in outcome.companions if name.endswith(".parquet")]
        names = [*self.known, *names]
        number = self.first
        while (name := self.output.name(number)) != unit.name:
            names.append(status_url(name))
            number += 1
        job = os.getpid(), self.output.pattern, self.job
        before, read, seen = _kept.seen or (None, [], None)
        _kept.seen = None
        if seen is None or before != job or names[: len(read)] != read:
            read, seen = [], Seen(near=self.dedup == "near")
        seen.forget()
        for url in names[len(read) :]:
            seen.keep(_pictures(url, self.output.storage))
        _kept.seen = job, names, seen
        return seen

    def clean_up(self, unit: Unit, outcome: Outcome) -> None:
        self._spool(unit, outcome.content).clear()

    def ending(self) -> dict[str, Any]:
        return self.output.closing() | {"overwrite": True}

    def closing(self) -> dict[str, Any] | None:
        return None if self.earlier else super().closing()

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        close_job(self.ending(), [*self.earlier, *outcomes], self.output.storage)
        clear_all(self._ledger, self.output.storage)


def _pictures(url: str, storage: StorageOptions) -> Iterator[Hashes]:
    """Yield the hashes of the pictures that a status file lists."""
    for each in read_statuses(url, storage, ("status", "content_hash", "perceptual_hash")):
        if each["status"] == SUCCESS:
            content, shown = each["content_hash"], each["perceptual_hash"]
            yield content % (1 << 64), None if shown is None else shown % (1 << 64)


def _cell(row: Any, column: str | None) -> Any:
    return None if column is None else row.get(column)


def _key(number: int, links: Links, row: Any) -> tuple[str, str]:
    """Return the key of a row, and what is wrong with it."""
    if links.key is None:
        return f"{number:0{_KEY_DIGITS}d}", ""
    key = text_of(row.get(links.key)) or ""
    try:
        return check_key(key), ""
    except BadName as error:
        return key, f"the key cannot be used: {error.what}"


def _finite(value: Any) -> Any:
    """Return a value without numbers that JSON does not know, and bytes as text."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, bytes):
        return text_of(value)
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value
