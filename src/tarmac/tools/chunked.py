"""Write a shard of slow samples in chunks, so that a killed unit continues behind its last chunk.

What was written since the last chunk is copied from the unpublished shard, with the position in the source. The next
attempt first writes the samples of the chunks again, through the same writer, so that keys, index and bytes are those
of an undisturbed run, and then reads the source behind the position.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from tarmac.display import display_url
from tarmac.errors import (
    ArchiveError,
    CheckpointFailed,
    NotFound,
    SampleError,
    TarmacError,
    TransferError,
    WorkerDied,
)
from tarmac.jobs.chunks import Chunk, Chunks
from tarmac.jobs.task import Outcome
from tarmac.limits import MIB, Limits
from tarmac.runtime.preemption import Preempted, hold
from tarmac.samples.grouping import Sample
from tarmac.samples.reader import SampleReader
from tarmac.storage.types import ReadableSink
from tarmac.tar import TarOptions
from tarmac.tar.writer import END_MARKER
from tarmac.tools.content import Content
from tarmac.tools.incoming import Incoming
from tarmac.tools.options import Checkpoints
from tarmac.tools.output import JobWriter, Output, rekeyed, write_shard
from tarmac.tools.plan import IndexedSamples, OutputShard, SampleSource
from tarmac.tools.tally import Tally

_CHANGED = ("failed", "dropped", "added")
"""Fields of an outcome that are counted when a sample is changed."""
_TALLY = ("seen", "selected", "complete")
_SEEN = attrgetter(*_TALLY)
COUNTS = "counts"
"""A detail of an outcome: other numbers that a change counts, by name."""
_PASSING = (Preempted, WorkerDied, TransferError)
"""What ends an attempt that another one may complete."""
_OWN = TarOptions(limits=Limits(member_bytes=1 << 62))
"""Chunks hold what this job wrote, of any size."""


class Group(list[Sample]):
    """What several input samples became together: all of it is saved, or nothing."""

    inputs: int = 1
    """How many input samples."""


class ChunkLost(Exception):
    """A chunk is gone or damaged; the shard must be written from its start."""


@dataclass(frozen=True)
class ChunkedShard:
    """A shard that is written in chunks."""

    output: Output
    shard: OutputShard
    source: SampleSource
    change: Callable[[Iterator[Sample], Outcome], Iterable[list[Sample]]]
    chunks: Chunks
    checkpoints: Checkpoints
    last: int | None = None
    """The number of the first sample of the next shard, if it is fixed."""
    whole: bool = False
    """Whether chunks in which samples failed are not used."""

    def write(self, outcome: Outcome) -> None:
        """Write the shard, behind the chunks of an earlier attempt, and complete its outcome."""
        try:
            _Attempt(self, self._earlier(), outcome).run()
        except ChunkLost:  # another worker may have completed the unit, and removed its chunks
            self.chunks.keep([])
            _Attempt(self, [], outcome).run()

    def _earlier(self) -> list[Chunk]:
        try:
            chunks = self.chunks.load()
        except (TarmacError, OSError):  # for example, credentials that can only write
            return []
        if self.whole:
            chunks = list(itertools.takewhile(lambda chunk: not chunk.state.get("failed"), chunks))
            self.chunks.keep(chunks)
        return chunks


class _Attempt:
    """One attempt to write a shard."""

    def __init__(self, job: ChunkedShard, earlier: list[Chunk], outcome: Outcome) -> None:
        self._job, self._earlier = job, earlier
        self._outcome, self._tally, self._content = outcome, Tally(), Content()
        for name in _CHANGED:
            setattr(outcome, name, 0)
        outcome.errors = []
        outcome.details.pop(COUNTS, None)
        self._writer: JobWriter | None = None
        self._shard: ReadableSink | None = None
        self._positions: deque[tuple[Any, ...]] = deque()
        """The counts at samples that were read and not yet written: functions look ahead."""
        self._done: tuple[Any, ...] = ()
        """The counts at the last sample that was written."""
        self._start = self._end = 0
        """Where the next chunk starts and ends in the shard."""
        self._unsaved = 0
        self._saved_at = 0.0
        self._enabled = True

    def run(self) -> None:
        job, outcome = self._job, self._outcome
        groups = job.change(self._noted(self._remaining()), outcome)
        samples = self._samples(groups)
        try:
            write_shard(job.output, job.shard.name, samples, outcome=outcome, opened=self._opened)
        finally:
            close(samples, groups)
        self._tally.add_to(outcome)
        outcome.content = str(self._content)

    def _remaining(self) -> Incoming:
        """Return the samples of the source behind the chunks, and restore the counts at their end."""
        job, tally, shard = self._job, self._tally, self._job.shard
        read = 0
        if self._earlier:
            state = self._earlier[-1].state
            for name in _CHANGED:
                setattr(self._outcome, name, state[name])
            if state.get(COUNTS):
                self._outcome.details[COUNTS] = dict(state[COUNTS])
            read = state["read"]
            self._content = Content(state["content"], read)
            self._outcome.errors = list(state["errors"])
            if isinstance(job.source, IndexedSamples):
                for name in _TALLY:
                    setattr(tally, name, state[name])
                shard = replace(shard, start=shard.start + tally.seen)
        if isinstance(job.source, IndexedSamples):
            return Incoming.of(job.source, shard, tally, self._content)
        # Read from the start, and counted from there.
        return Incoming(itertools.islice(job.source.samples(shard, tally), read, None), self._content)

    def _noted(self, samples: Incoming) -> Iterator[Sample]:
        """Note the position behind each sample as it is read, if the change reads samples ahead."""
        if getattr(self._job.change, "lockstep", False):
            return samples
        return self._noting(samples)

    def _noting(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        note = self._positions.append
        for sample in samples:
            note(self._position())
            yield sample

    def _position(self) -> tuple[Any, ...]:
        return self._content.position, self._content.value, _SEEN(self._tally)

    def _position_behind(self, inputs: int) -> tuple[Any, ...]:
        """Return the position behind the next samples of which a group was made."""
        if getattr(self._job.change, "lockstep", False):
            return self._position()
        for _ in range(inputs - 1):
            self._positions.popleft()
        return self._positions.popleft()

    def _opened(self, writer: JobWriter) -> None:
        self._writer, self._shard = writer, writer.readable
        self._enabled = self._enabled and self._shard is not None

    def _samples(self, groups: Iterable[list[Sample]]) -> Generator[Sample, None, None]:
        """Yield the samples to write. When the next one is requested, those before it are written."""
        job, number = self._job, self._job.shard.start
        for sample in self._replayed():
            yield sample
            number += 1
        outcome, changed, due = self._outcome, attrgetter(*_CHANGED), job.checkpoints.due
        self._start = 0 if self._shard is None else self._shard.tell()
        self._saved_at = time.monotonic()
        uninterrupted = hold()
        try:
            for group in groups:
                with uninterrupted:  # until all of them are written
                    for sample in group:
                        yield rekeyed(job.output, sample, number, job.last) if job.output.rekey else sample
                        number += 1
                    inputs = getattr(group, "inputs", 1)
                    counts = dict(outcome.details.get(COUNTS, ()))
                    position = self._position_behind(inputs)
                    self._done = (*position, changed(outcome), len(outcome.errors), number, counts)
                    self._end = 0 if self._shard is None else self._shard.tell()
                    self._unsaved += inputs
                    if due(time.monotonic() - self._saved_at, self._unsaved):
                        self._save()
        except _PASSING:
            with uninterrupted:
                self._save()
            raise

    def _replayed(self) -> Iterator[Sample]:
        """Yield the samples of the chunks."""
        job, count = self._job, 0
        try:
            for chunk in self._earlier:
                for sample in SampleReader(
                    [chunk.url],
                    split_name=job.output.split_name,
                    lower=False,
                    tar=_OWN,
                    storage=job.output.storage,
                ):
                    yield sample
                    count += 1
        except (NotFound, ArchiveError, SampleError) as error:
            raise ChunkLost from error
        if self._earlier and count != self._earlier[-1].state["written"]:
            raise ChunkLost

    def _save(self) -> None:
        """Save what was written since the last chunk. If that fails, the unit continues without chunks."""
        writer, shard = self._writer, self._shard
        if not (self._unsaved and self._enabled) or (writer is not None and writer.readable is None):
            return
        if shard is not None:
            shard.read_back(0, 0)  # what fails here fails the shard itself
        try:
            self._job.chunks.save(self._state(), self._data())
        except (TarmacError, OSError) as error:
            self._enabled = False
            warnings.warn(
                f"{display_url(self._job.shard.name)}: the samples so far cannot be saved, so that an interrupted "
                f"job starts over with this shard: {error}",
                CheckpointFailed,
                stacklevel=2,
            )
        self._start, self._unsaved = self._end, 0
        self._saved_at = time.monotonic()

    def _state(self) -> dict[str, Any]:
        """Return the position in the source and all counts at the last sample that was written."""
        read, content, seen, changed, errors, number, counts = self._done
        state = dict(zip(_TALLY, seen, strict=True)) | dict(zip(_CHANGED, changed, strict=True))
        return state | {
            "read": read,
            "content": content,
            "errors": self._outcome.errors[:errors],
            "written": number - self._job.shard.start,
            COUNTS: counts,
        }

    def _data(self) -> Iterator[bytes]:
        """Yield what was written since the last chunk, as a complete archive."""
        start = self._start
        while self._shard is not None and (data := self._shard.read_back(start, min(self._end - start, MIB))):
            yield data
            start += len(data)
        yield END_MARKER


def close(*stages: Iterable[Any]) -> None:
    """Close transformations that may have processes running, however the writing ended."""
    for stage in stages:
        if isinstance(stage, Generator):
            stage.close()
