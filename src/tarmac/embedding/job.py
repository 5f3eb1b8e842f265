"""The job of `embed`: the vectors of each shard, in the numbered files of a part."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tarmac.embedding.layout import MANIFEST, Facts, PartFacts, metadata_name, vectors_name
from tarmac.embedding.write import write_part
from tarmac.errors import JobError
from tarmac.jobs.chunks import Chunks, chunk_directory
from tarmac.jobs.entries import public_name
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.task import Outcome, Unit
from tarmac.storage import WriteOptions, is_local, location, write_all
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_WRITE
from tarmac.tools.mappers.batches import SECONDS, MapBatches
from tarmac.tools.mappers.job import MapperJob
from tarmac.tools.output import make_directory
from tarmac.tools.plan import IndexedSamples, OutputShard, SampleSource

_PART = "part"
"""A detail of an outcome: what the manifest says of the part."""
LOADING, WRITING = "loading", "writing"
_REPLACE = WriteOptions(overwrite=True)


@dataclass
class EmbedJob(MapperJob):
    """Write vectors. The records of a shard are collected in a working file first, in chunks, as in other jobs."""

    kinds: Sequence[str] = ()
    """The kinds of vectors."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says of the model."""

    @property
    def directory(self) -> str:
        """The URL of the directory, without a slash at its end."""
        return self.output.pattern.rstrip("/")

    def plan(self) -> Iterator[Unit]:
        shards = [
            (name, shard)
            for name, source in self.sources.items()
            for shard in source.shards(self.output, name)
        ]
        digits = len(str(max(len(shards) - 1, 0)))
        for number, (name, shard) in enumerate(shards):
            part = f"{number:0{digits}d}"
            yield Unit(f"{self.directory}/{metadata_name(part)}", (name, replace(shard, name=part)))

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        for unit in units:
            yield from (f"{self.directory}/{vectors_name(kind, unit.content[1].name)}" for kind in self.kinds)
            yield unit.name
        yield f"{self.directory}/{MANIFEST}"

    def run(self, unit: Unit) -> Outcome:
        name, shard = unit.content
        working, begun = self._working_file(unit), time.monotonic()
        if isinstance(self.change, MapBatches):
            _ = self.change.mapper  # loads the model, once in each process
        started = time.monotonic()
        outcome = super().run(replace(unit, content=(name, replace(shard, name=working))))
        collected, outcome.outputs, outcome.bytes = bool(outcome.outputs), {}, 0
        if collected:
            self._publish(working, shard.name, shard_url(self.sources[name], shard), outcome)
        seconds = outcome.details.setdefault(SECONDS, {})
        seconds[WRITING] = time.monotonic() - started - sum(seconds.values())
        seconds[LOADING] = started - begun
        outcome.details[SECONDS] = {activity: round(spent, 3) for activity, spent in seconds.items()}
        return outcome

    def _publish(self, working: str, part: str, shard: str, outcome: Outcome) -> None:
        overwrite = self.output.overwrite or not is_local(self.directory)
        write = _REPLACE if overwrite else DEFAULT_WRITE
        rows, kinds, files = write_part(working, self.directory, part, shard, write, self.output.storage)
        if rows != outcome.written:
            raise JobError(f"expected {outcome.written} vectors, got {rows}.", url=working)
        outcome.outputs = {f"{self.directory}/{name}": size for name, (size, _) in files.items()}
        outcome.bytes = sum(outcome.outputs.values())
        outcome.details[_PART] = {
            "name": part, "rows": rows, "source": shard, "kinds": kinds, "files": files,
        }  # fmt: skip
        with contextlib.suppress(FileNotFoundError):  # another worker did the same unit
            os.unlink(local_path(working))

    def _working_file(self, unit: Unit) -> str:
        """Return the path of the file in which the records of a unit are collected, on a disk of this machine."""
        path = f"{chunk_directory(ledger_url(self.output.ledger_pattern, self.verb), unit.name)}.tar"
        if is_local(path):
            make_directory(path)
            return path
        return os.path.join(tempfile.gettempdir(), f"tarmac-embed-{os.path.basename(path)}")

    def _chunks(self, unit: Unit) -> Chunks | None:
        name, shard = unit.content  # whose path differs between machines
        return super()._chunks(replace(unit, content=(name, replace(shard, name=""))))

    def closing(self) -> dict[str, Any] | None:
        return None  # the manifest needs all outcomes

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        super().finish(outcomes)
        parts, kinds = [], dict[str, int]()
        for outcome in outcomes:
            if part := outcome.details.get(_PART):
                parts.append(PartFacts(part["name"], part["rows"], part["source"], part["files"]))
                self._check(part, kinds)
        if parts:
            facts = Facts(parts, kinds, normalized=True, **self.manifest)
            write_all(f"{self.directory}/{MANIFEST}", facts.to_json().encode(), self.output.storage, _REPLACE)

    def _check(self, part: Mapping[str, Any], kinds: dict[str, int]) -> None:
        """Raise unless the vectors of a part have as many numbers as those before."""
        for kind, dimension in part["kinds"].items():
            if kinds.setdefault(kind, dimension) != dimension:
                what = f"expected vectors of {kinds[kind]} numbers, as in other parts, got {dimension}."
                url = f"{self.directory}/{vectors_name(kind, part['name'])}"
                raise JobError(what, url=url, hint="`overwrite` embeds all shards with the same model.")


def shard_url(source: SampleSource, shard: OutputShard) -> str:
    """Return the URL of the input shard of a part, without secrets."""
    if isinstance(source, IndexedSamples):
        urls = [home.url(number) for home, number in source.inputs_of(shard)]
    else:
        urls = [source.urls()[shard.source]]
    return location(public_name(urls[0])) if urls else ""
