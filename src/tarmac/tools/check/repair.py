"""Write clean copies of damaged shards, and say exactly what is not in them."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

import xxhash

from tarmac.display import display_url
from tarmac.errors import CompressionDamaged, IndexingError, TrailingData, UrlError
from tarmac.indexing.manifest import Shard
from tarmac.indexing.sidecar import Sidecar, open_sidecar, sidecar_url
from tarmac.jobs.engines import Engine
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.report import Report
from tarmac.jobs.run import run_job
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import plain_key
from tarmac.storage import Source, open_read, stat
from tarmac.tar.compression import HEAD, Decompressing, detect
from tarmac.tools.check.check import Checks, sample_problems
from tarmac.tools.check.salvage import Buffer, Loss, SampleRun, Stretch, layout_of, runs_of, scan
from tarmac.tools.output import Output, Sources, same_name, write_shard
from tarmac.tools.plan import shard_stem

__all__ = ["repair", "Repairing", "salvaged"]

CHUNK = 1 << 20
_EMPTY = Loss("tail", "there is nothing in it.", None, 0, 0)
Places = dict[str, tuple[int, int]]
Kept = tuple[str, Places]


@dataclass
class Repairing(Task):
    """A damaged shard is a unit; what is lost of it is in the facts of its outcome."""

    urls: Sequence[str]
    output: Output
    checks: Checks
    told: Sequence[Shard | None]
    regroup: bool = False
    """Whether to put samples together whose files are not next to each other."""
    verb = "repair"

    def options(self) -> dict[str, Any]:
        return self.checks.options() | self.output.options() | {"regroup": self.regroup}

    def begin(self, units: Sequence[Unit]) -> None:
        self.output.check_new(unit.name for unit in units)

    def plan(self) -> Iterator[Unit]:
        names = set()
        sources = Sources(self.urls)
        for number, url in enumerate(self.urls):
            name = self.output.name(number, shard_stem(url))
            sources.refuse(name)
            if name in names:
                raise same_name(self.output.pattern)
            names.add(name)
            info = stat(url, self.checks.storage)
            yield Unit(name, number, f"{info.size} {info.version}")

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        return self.output.names(unit.name for unit in units)

    def run(self, unit: Unit) -> Outcome:
        url, outcome = self.urls[unit.content], Outcome()
        losses: list[Loss] = []
        with _opened(url, self.checks, losses) as buffer:
            samples = salvaged(buffer, url, self.checks, losses, self._index(unit.content), self.regroup)
            named = (sample | {"__key__": plain_key(sample["__key__"])} for sample in samples)
            write_shard(self.output, unit.name, named, outcome=outcome)
        outcome.failed = len(losses)
        outcome.details["losses"] = [_as_json(url, loss) for loss in losses]
        return outcome

    def _index(self, number: int) -> Sidecar | None:
        """The index, if it is to be compared with and knows the digests that prove what is whole."""
        told, url = self.told[number], self.urls[number]
        if told is None and not self.checks.digests:
            return None
        try:
            found = open_sidecar((told.index if told else None) or sidecar_url(url), self.checks.storage)
        except IndexingError:
            return None
        return found if found.digests is not None else None

    def commit(self, unit: Unit, outcome: Outcome) -> None:
        self.output.run_post_cmd(outcome)


def _as_json(url: str, loss: Loss) -> dict[str, Any]:
    found = {"shard": display_url(url)} | asdict(loss)
    return {name: value for name, value in found.items() if value is not None}


def repair(
    urls: Sequence[str],
    output: Output,
    engine: Engine,
    *,
    checks: Checks,
    told: Sequence[Shard | None] | None = None,
    regroup: bool = False,
    show: bool | None = False,
) -> Report:
    """Write a clean copy of each of these shards; `losses` in the facts of the outcomes says what is lost."""
    if output.stream or not (output.by_shard or output.numbered):
        raise UrlError("clean copies go to a directory, DIR/, or to numbered names.", url=output.pattern)
    task = Repairing(urls, output, checks, told or [None] * len(urls), regroup)
    place = ledger_url(output.pattern, task.verb)
    return run_job(
        task, engine, ledger=place, overwrite=output.overwrite, storage=output.storage, progress=show
    )


@contextlib.contextmanager
def _opened(url: str, checks: Checks, losses: list[Loss]) -> Iterator[Buffer]:
    """The bytes of a shard, mapped; remote and compressed ones through a file of our own."""
    with open_read(url, checks.storage) as source:
        whole = source.map()
        if whole is not None and detect(whole[:HEAD]) is None:
            yield whole
            return
        with tempfile.TemporaryFile() as file:
            head = b"" if whole is not None else _read_on(source, HEAD)
            loss = _unpack(source, head, detect(head if whole is None else whole[:HEAD]), checks, file)
            losses.extend([loss] if loss is not None else [])
            file.flush()
            if not file.seek(0, os.SEEK_END):
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                yield mapped


def _read_on(source: Source, size: int) -> bytes:
    found = b""
    while len(found) < size and (more := source.read(CHUNK)):
        found += more
    return found


def _unpack(source: Source, head: bytes, form: str | None, checks: Checks, file: IO[bytes]) -> Loss | None:
    """Write the archive inside a stream to a file, as far as it can be had and trusted."""
    if form is None:
        file.write(head)
        for piece in iter(lambda: source.read(CHUNK), b""):
            file.write(piece)
        return None
    stream = Decompressing(source, form, checks.tar.limits, head)
    try:
        for piece in iter(lambda: stream.read(CHUNK), b""):
            file.write(piece)
    except (CompressionDamaged, TrailingData) as error:
        if error.__cause__ is None:  # cut, or followed by something else: what came before is as it was
            return Loss("bytes", f"{error.what} What follows cannot be unpacked.", None, error.offset)
        file.truncate(0)
        return Loss("bytes", f"{error.what} Any byte of it may be wrong, so nothing can be trusted.", None, 0)
    return None


def salvaged(
    buffer: Buffer,
    url: str,
    checks: Checks,
    losses: list[Loss],
    index: Sidecar | None = None,
    regroup: bool = False,
) -> Iterator[Sample]:
    """Yield the samples of an archive that can be trusted, and take note of what is lost.

    With an index that has digests, what they prove is whole is kept, wherever it is found, and nothing else.
    """
    stretches, damaged = scan(buffer, checks.tar, deep=index is not None) if len(buffer) else ([], [_EMPTY])
    if index is not None:
        kept = _proven(buffer, index, stretches, losses)
    else:
        losses.extend(damaged)
        kept = _beyond_doubt(buffer, list(runs_of(stretches)), losses, regroup)
    for key, places in kept:
        found = {
            name: (offset, size, buffer[offset : offset + size]) for name, (offset, size) in places.items()
        }
        problem = next(sample_problems(key, found, url, checks, Counter()), None)
        if problem is not None:
            losses.append(Loss("sample", problem.what, key, *_span(places)))
            continue
        yield {"__key__": key, "__url__": url} | {name: data for name, (_, _, data) in found.items()}


def _span(places: Places) -> tuple[int, int]:
    return min(offset for offset, _ in places.values()), max(sum(place) for place in places.values())


def _proven(buffer: Buffer, index: Sidecar, stretches: list[Stretch], losses: list[Loss]) -> Iterator[Kept]:
    """The samples of an index of which all fields are there, as their digests say."""
    assert index.digests is not None
    moved: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for run in runs_of(stretches):
        for name, place in run.fields.items():
            moved.setdefault((run.key, name), []).append(place)
    for row in range(len(index)):
        key, places, wrong = index.key(row), {}, []
        for member in range(int(index.starts[row]), int(index.starts[row + 1])):
            name = index.fields[index.field_of[member]]
            size, digest = int(index.sizes[member]), int(index.digests[member])
            for offset, length in [(int(index.offsets[member]), size), *moved.get((key, name), ())]:
                data = buffer[offset : offset + size]
                if length == size == len(data) and xxhash.xxh3_64_intdigest(data) == digest:
                    places[name] = offset, size
                    break
            else:
                wrong.append(name)
        if wrong:
            start = int(index.offsets[index.starts[row]])
            losses.append(Loss("sample", f"damaged or missing: {', '.join(wrong)}", key, start))
        else:
            yield key, places


def _beyond_doubt(buffer: Buffer, runs: list[SampleRun], losses: list[Loss], regroup: bool) -> Iterator[Kept]:
    """The samples that are whole as far as an archive can tell."""
    layout = layout_of(runs)
    by_key: dict[str, list[SampleRun]] = {}
    for run in runs:
        if run.doubt and not run.broken and tuple(run.fields) != layout:
            run.broken = "it is next to damage and may lack fields"
        by_key.setdefault(run.key, []).append(run)
    for key, same in by_key.items():
        places, reason = _settled(buffer, same, regroup)
        if places is not None:
            yield key, places
        else:
            losses.append(Loss("sample", reason, key, same[0].start, same[-1].stop))


def _settled(buffer: Buffer, runs: list[SampleRun], regroup: bool) -> tuple[Places | None, str]:
    """What the sample of a key is, if its parts leave no doubt; else why not."""
    whole = [run for run in runs if not run.broken]
    if not whole:
        return None, runs[0].broken
    if len(runs) == 1:
        return runs[0].fields, ""
    contents = [{name: _bytes(buffer, place) for name, place in run.fields.items()} for run in runs]
    for run, content in zip(runs, contents, strict=True):
        # Parts of the sample that came again with the same bytes say nothing new.
        if not run.broken and all(other.items() <= content.items() for other in contents):
            return run.fields, ""
    if regroup and len(whole) == len(runs):
        together: Places = {}
        for run in runs:
            if together.keys() & run.fields.keys():
                return None, "its files come several times and differ"
            together |= run.fields
        return together, ""
    return None, "its files are not next to each other"


def _bytes(buffer: Buffer, place: tuple[int, int]) -> bytes:
    return buffer[place[0] : sum(place)]
