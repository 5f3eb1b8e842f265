"""Write clean copies of damaged shards, and report exactly what they lack."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

import xxhash

from tarmac.display import display_url
from tarmac.errors import CompressionDamaged, IndexingError, TrailingData, UsageError
from tarmac.indexing.manifest import Shard
from tarmac.indexing.sidecar import Sidecar, open_sidecar
from tarmac.jobs.outputs import existing_sizes
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome, Unit
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import Splitter, plain_key
from tarmac.storage import Source, WriteOptions, is_local, open_read, open_write, stat
from tarmac.storage.local import local_path
from tarmac.tar.compression import HEAD, Decompressing, detect, format_of_name
from tarmac.tools.check.salvage import Buffer, Loss, SampleRun, layout_of, runs_of, scan
from tarmac.tools.check.shard import CheckOptions, index_url, naming_rule, sample_problems
from tarmac.tools.options import Run
from tarmac.tools.output import Output, ShardTask, Sources, make_directory, same_name, write_shard
from tarmac.tools.plan import shard_stem
from tarmac.tools.rewrite import run_writing

CHUNK = 1 << 20
_EMPTY = Loss("tail", "the shard is empty.", None, 0, 0)
Spans = dict[str, tuple[int, int]]
"""Offset and size of each field."""
Kept = tuple[str, Spans]


SCATTERED = "its members are not contiguous"
"""Why a sample is lost that `regroup` would keep."""


@dataclass
class _RepairTask(ShardTask):
    """Repair each damaged shard as a unit; its losses are in the details of its outcome."""

    urls: Sequence[str]
    output: Output
    checks: CheckOptions
    entries: Sequence[Shard | None]
    regroup: bool = False
    """Whether to put samples together whose members are not contiguous."""
    intact: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Samples and payload of the intact shards, which are copied as they are."""
    link: bool = False
    """Whether intact shards are linked instead, where that is possible."""
    verb = "repair"

    def options(self) -> dict[str, Any]:
        options = self.checks.ledger_options() | self.output.options() | {"regroup": self.regroup}
        return options | ({"intact": "link" if self.link else "copy"} if self.intact else {})

    def plan(self) -> Iterator[Unit]:
        names = set()
        sources = Sources(self.urls)
        for number, url in enumerate(self.urls):
            name = self.output.name(number, shard_stem(url))
            sources.check(name)
            if name in names:
                raise same_name(self.output.pattern)
            names.add(name)
            info = stat(url, self.checks.storage)
            yield Unit(name, number, f"{info.size} {info.version}")

    def run(self, unit: Unit) -> Outcome:
        url, outcome = self.urls[unit.content], Outcome()
        if url in self.intact and format_of_name(url) is None:
            return self._copied(url, unit.name)
        losses: list[Loss] = []
        index, rule = self._index(unit.content)
        checks, output = replace(self.checks, split_name=rule), replace(self.output, split_name=rule)
        with _opened(url, checks, losses) as buffer:
            samples = salvaged(buffer, url, checks, losses, index, self.regroup)
            named = (sample | {"__key__": plain_key(sample["__key__"])} for sample in samples)
            write_shard(output, unit.name, named, outcome=outcome)
        outcome.failed = len(losses)
        facts = [{"shard": display_url(url)} | asdict(loss) for loss in losses]
        outcome.details["losses"] = [
            {name: each[name] for name in each if each[name] is not None} for each in facts
        ]
        return outcome

    def _copied(self, url: str, name: str) -> Outcome:
        samples, payload = self.intact[url]
        outcome = Outcome(written=samples, bytes=payload, details={"losses": []})
        if is_local(name):
            make_directory(name)
        if not (self.link and _linked(url, name)):
            sink = open_write(name, self.output.storage, WriteOptions(overwrite=True))
            try:
                with open_read(url, self.checks.storage) as source:
                    while chunk := source.read(CHUNK):
                        sink.write(chunk)
            except BaseException:
                sink.abort()
                raise
            sink.commit()
        outcome.outputs |= existing_sizes([name], self.output.storage)
        return outcome

    def _index(self, number: int) -> tuple[Sidecar | None, Splitter]:
        """Return the index, if it has digests, which prove what is intact, and the naming rule."""
        entry, url, rule = self.entries[number], self.urls[number], self.checks.split_name
        if entry is None and not self.checks.digests:
            return None, rule
        try:
            sidecar = open_sidecar(index_url(url, entry), self.checks.storage)
        except IndexingError:
            return None, rule
        return sidecar if sidecar.digests is not None else None, naming_rule(sidecar, rule)


def repair(
    urls: Sequence[str],
    output: Output,
    run: Run,
    checks: CheckOptions,
    entries: Sequence[Shard | None],
    *,
    regroup: bool = False,
    intact: Mapping[str, tuple[int, int]] | None = None,
    link: bool = False,
) -> Report:
    """Write a clean copy of each of these shards; the details of the outcomes have their `losses`.

    `intact` has the samples and the payload of those that are copied, or linked, as they are.
    """
    if output.stream or not (output.by_shard or output.numbered):
        what = "expected a directory, DIR/, or a numbered pattern for clean copies."
        raise UsageError(what, field="repair", url=output.pattern)
    task = _RepairTask(urls, output, checks, entries, regroup, intact or {}, link)
    return run_writing(task, run, task.verb)


def _linked(url: str, name: str) -> bool:
    """Make a hard link to a local shard; return whether that was possible."""
    if not (is_local(url) and is_local(name)):
        return False
    target = local_path(name)
    part = f"{os.path.dirname(target) or '.'}/.{os.path.basename(target)}.part-{os.urandom(8).hex()}"
    try:
        os.link(local_path(url), part)
    except OSError:  # another file system, or one without links
        return False
    os.replace(part, target)
    with contextlib.suppress(FileNotFoundError):  # both may already have been the same file
        os.unlink(part)
    return True


@contextlib.contextmanager
def _opened(url: str, checks: CheckOptions, losses: list[Loss]) -> Iterator[Buffer]:
    """Map the bytes of a shard; remote and compressed ones through a temporary file."""
    with open_read(url, checks.storage) as source:
        whole, head = source.map(), b""
        while whole is None and len(head) < HEAD and (more := source.read(CHUNK)):
            head += more
        form = detect(head if whole is None else whole[:HEAD])
        if whole is not None and form is None:
            yield whole
            return
        with tempfile.TemporaryFile() as file:
            losses += _unpack(source, head, form, checks, file)
            file.flush()
            if not file.seek(0, os.SEEK_END):
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                yield mapped


def _unpack(
    source: Source, head: bytes, form: str | None, checks: CheckOptions, file: IO[bytes]
) -> list[Loss]:
    """Write the archive inside a stream to a file, as far as it can be read and trusted."""
    if form is None:
        file.write(head)
    try:
        stream: Any = source if form is None else Decompressing(source, form, checks.tar.limits, head)
        shutil.copyfileobj(stream, file, CHUNK)
    except (CompressionDamaged, TrailingData) as error:
        if error.__cause__ is None:  # truncated or followed by other data: what came before is intact
            return [Loss("bytes", f"{error.what} The rest cannot be decompressed.", None, error.offset)]
        file.truncate(0)
        return [Loss("bytes", f"{error.what} Any byte may be wrong, so nothing can be recovered.", None, 0)]
    return []


def salvaged(
    buffer: Buffer,
    url: str,
    checks: CheckOptions,
    losses: list[Loss],
    index: Sidecar | None = None,
    regroup: bool = False,
) -> Iterator[Sample]:
    """Yield the samples of an archive that can be trusted, and record losses.

    With an index that has digests, exactly what they prove intact is kept, wherever it is in the archive.
    """
    rule, runs, damaged = checks.split_name, list[SampleRun](), [_EMPTY]
    if len(buffer):
        stretches, damaged = scan(buffer, checks.tar, split_name=rule, deep=index is not None)
        runs += runs_of(stretches, rule)
    if index is not None:
        kept = _proven(buffer, index, runs, losses)
    else:
        losses.extend(damaged)
        kept = _beyond_doubt(buffer, runs, losses, regroup)
    for key, spans in kept:
        located = {
            name: (offset, size, buffer[offset : offset + size]) for name, (offset, size) in spans.items()
        }
        problem = next(sample_problems(key, located, url, checks, Counter()), None)
        if problem is not None:
            losses.append(Loss("sample", problem.what, key, *_span(spans)))
            continue
        yield {"__key__": key, "__url__": url} | {name: data for name, (_, _, data) in located.items()}


def _span(spans: Spans) -> tuple[int, int]:
    return min(offset for offset, _ in spans.values()), max(sum(span) for span in spans.values())


def _proven(buffer: Buffer, index: Sidecar, runs: list[SampleRun], losses: list[Loss]) -> Iterator[Kept]:
    """Yield the samples of an index whose fields all match their digests."""
    assert index.digests is not None
    moved: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for run in runs:
        for name, span in run.fields.items():
            moved.setdefault((run.key, name), []).append(span)
    for row in range(len(index)):
        key, spans, wrong = index.key(row), {}, []
        for member in range(int(index.starts[row]), int(index.starts[row + 1])):
            name = index.fields[index.field_of[member]]
            size, digest = int(index.sizes[member]), int(index.digests[member])
            for offset, length in [(int(index.offsets[member]), size), *moved.get((key, name), ())]:
                data = buffer[offset : offset + size]
                if length == size == len(data) and xxhash.xxh3_64_intdigest(data) == digest:
                    spans[name] = offset, size
                    break
            else:
                wrong.append(name)
        if wrong:
            start = int(index.offsets[index.starts[row]])
            losses.append(Loss("sample", f"damaged or missing: {', '.join(wrong)}", key, start))
        else:
            yield key, spans


def _beyond_doubt(buffer: Buffer, runs: list[SampleRun], losses: list[Loss], regroup: bool) -> Iterator[Kept]:
    """Yield the samples that are complete as far as the archive shows."""
    layout = layout_of(runs)
    by_key: dict[str, list[SampleRun]] = {}
    for run in runs:
        if run.doubt and not run.broken and tuple(run.fields) != layout:
            run.broken = "it is adjacent to damage and may lack fields"
        by_key.setdefault(run.key, []).append(run)
    for key, same in by_key.items():
        spans, reason = _settled(buffer, same, regroup)
        if spans is not None:
            yield key, spans
        else:
            losses.append(Loss("sample", reason, key, same[0].start, same[-1].stop))


def _settled(buffer: Buffer, runs: list[SampleRun], regroup: bool) -> tuple[Spans | None, str]:
    """Return the fields of a sample if its parts leave no doubt, otherwise the reason."""
    complete = [run for run in runs if not run.broken]
    if not complete:
        return None, runs[0].broken
    if len(runs) == 1:
        return runs[0].fields, ""
    contents = [{name: buffer[at : at + size] for name, (at, size) in run.fields.items()} for run in runs]
    for run, content in zip(runs, contents, strict=True):
        # Parts that are repeated with the same bytes add nothing.
        if not run.broken and all(other.items() <= content.items() for other in contents):
            return run.fields, ""
    if regroup and len(complete) == len(runs):
        merged: Spans = {}
        for run in runs:
            if merged.keys() & run.fields.keys():
                return None, "its members are repeated and differ"
            merged |= run.fields
        return merged, ""
    return None, SCATTERED
