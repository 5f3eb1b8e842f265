"""Build an index of the nearest neighbours of vectors, of the kind that memory allows and a recall needs."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, replace
from typing import Any, Unpack

from tarmac.arguments import check_count, check_share
from tarmac.embedding.embeddings import Embeddings
from tarmac.errors import BadManifest, JobMismatch, NotFound, TarmacError, UsageError
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.report import Report
from tarmac.limits import parse_number
from tarmac.searching.choice import Choice, as_size, choices, sufficient
from tarmac.searching.facts import INDEX, MANIFEST, KnnFacts, digest_of, index_directory, read_facts
from tarmac.searching.job import WORK, KnnJob, TargetMissed
from tarmac.searching.library import METRICS, Metric, import_faiss
from tarmac.searching.sources import Sources
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.options import Run, RunArgs, bundle, verb

MEMORY = "4GB"
RECALL = 0.95
_INPUTS = "inputs"


@dataclass(slots=True, repr=False)
class KnnReport(Report):
    """What building an index gave."""

    facts: KnnFacts | None = None
    """The index: its kind, parameters, recall, latency and size."""
    planned: str = ""
    """The kind of index that would be built, of a dry run."""

    def to_dict(self) -> dict[str, Any]:
        facts = self.facts.to_json() if self.facts else {"index": self.planned}
        return Report.to_dict(self) | facts

    def __str__(self) -> str:
        if self.facts is None:
            return f"knn: {self.planned}"
        facts = self.facts
        kept = "; nothing to do" if self.units and self.kept == self.units and not self.done else ""
        return (
            f"knn: {facts.choice.vectors} vectors, {facts.choice.text}, {facts.memory_bytes / 1e6:.1f} MB; "
            f"{facts.recall}; "
            f"{facts.latency_ms.p50:.2f} ms, {facts.latency_ms.p95:.2f} ms at the 95th percentile{kept}"
        )


class BuildArgs(RunArgs, total=False):
    """The shared keyword arguments of `Knn.build`."""


@verb(BuildArgs, Run)
def build(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    target_recall: float = RECALL,
    max_memory: int | str = MEMORY,
    metric: Metric = "ip",
    kind: str | None = None,
    overwrite: bool = False,
    **options: Unpack[BuildArgs],
) -> KnnReport:
    """Build an index of the vectors in a directory of embeddings, and write it to the directory `output`.

    The index finds at least `target_recall` of the ten nearest neighbours, measured against all vectors on 1,000 of
    them, each without itself; the lower end of the 95 % interval counts. It takes at most `max_memory` when it is
    loaded, a number of bytes or text such as "4GB"; candidates are compared exactly with the vectors on disk. The
    kind is chosen from the number of vectors and that memory: all vectors, a graph, lists of 16-bit floats, or lists
    of RaBitQ codes of one or four bits. If the memory does not allow the recall, the error says how much does.

    `metric` is `ip`, the inner product, or `l2`, squared distances. `kind` is `img` or `text`, if the directory has
    both. `index.faiss` in `output` is an index that faiss reads, whose ids are the numbers of vectors; `knn.json`
    says what was measured. A killed build continues. Without `jobs`, one process of this machine uses all cores.
    """
    run = bundle(Run, options)
    if run.jobs is None and run.engine in (None, "local"):
        run = replace(run, jobs=1)
    check_share("target_recall", target_recall, "a share")
    if metric not in METRICS:
        raise UsageError(f"expected ip or l2, got {metric!r}.", field="metric")
    memory = _bytes(max_memory)
    directory = index_directory(output)
    embeddings = Embeddings(source, kind=kind)
    if not len(embeddings):
        raise UsageError("there are no vectors.", url=embeddings.directory, field="source")
    for part in range(len(embeddings.parts)):
        embeddings.array(part)  # raises unless it is whole and has the dimension of the others
    vectors = Sources([embeddings])
    facts = {
        _INPUTS: embeddings.fingerprint, "target_recall": target_recall, "max_memory": memory, "metric": metric,
    }  # fmt: skip
    fitting = list(choices(len(vectors), vectors.dimension, memory))
    if run.dry_run:
        planned = f"{len(vectors)} vectors, {fitting[0].text}, about {as_size(fitting[0].memory)}"
        return KnnReport("knn", dry_run=True, planned=planned)
    import_faiss()
    done = None if overwrite else _complete(directory, facts)
    if done is not None:
        _remove_work(directory)
        return _kept(done)
    return _build_first(vectors, directory, fitting, facts, run, overwrite=overwrite)


def _build_first(
    vectors: Sources,
    directory: str,
    fitting: list[Choice],
    facts: dict[str, Any],
    run: Run,
    *,
    overwrite: bool,
) -> KnnReport:
    """Build the first kind of index that reaches the recall."""
    missed: list[str] = []
    for choice in fitting:
        job = KnnJob(
            vectors, directory, choice, facts["metric"], facts["target_recall"], facts, run.workers, overwrite
        )
        try:
            report = _run(job, run, overwrite=overwrite)
        except TargetMissed as error:
            missed.append(f"{choice.text}: {error.recall}")
            continue
        except TarmacError:  # maybe since another task has finished the index, and removed the working files
            done = None if overwrite else _complete(directory, facts)
            if done is None:
                raise
            return _kept(done)
        if job.result is None and report.done + report.kept == report.units:
            job.result = _complete(directory, facts)  # another task has finished it
        if job.result is not None:
            _remove_work(directory)
        values = {name: getattr(report, name) for name in Report.__dataclass_fields__}
        result = KnnReport(**values, facts=job.result)
        if not choice.lists:
            result.read = result.written = len(vectors)
        return result
    enough = as_size(sufficient(len(vectors), vectors.dimension))
    memory, tried = as_size(facts["max_memory"]), "; ".join(missed)
    what = f"no index of {memory} reaches a recall of {facts['target_recall']}: {tried}."
    raise UsageError(what, field="max_memory", hint=f"`max_memory` {enough}, which is enough for any recall.")


def _kept(facts: KnnFacts) -> KnnReport:
    """Return the report of an index that was there."""
    count = facts.choice.vectors
    return KnnReport("knn", 1, kept=1, read=count, written=count, facts=facts)


def _run(job: KnnJob, run: Run, *, overwrite: bool) -> Report:
    ledger = ledger_url(os.path.join(job.directory, job.choice.name), "knn")
    if overwrite and run.share is None:
        shutil.rmtree(job.home, ignore_errors=True)
    job.prepare()
    return run.run_job(job, ledger, overwrite=overwrite, storage=DEFAULT_STORAGE)


def _remove_work(directory: str) -> None:
    """Remove the working files of a finished index, also those of kinds that missed the recall."""
    shutil.rmtree(os.path.join(directory, WORK), ignore_errors=True)


def _complete(directory: str, facts: dict[str, Any]) -> KnnFacts | None:
    """Return the finished index in a directory, if it is whole; raise JobMismatch if it is of something else."""
    try:
        results = read_facts(directory)
    except (NotFound, BadManifest):
        return None
    before = {name: results.options.get(name) for name in facts}
    if before != facts:
        changes = [
            f"{name} {before[name]!r} -> {facts[name]!r}" for name in facts if before[name] != facts[name]
        ]
        if before[_INPUTS] != facts[_INPUTS]:  # hashes, which tell a person nothing
            changes = ["it is of other vectors", *changes[1:]]
        what = f"the directory has another index: {'; '.join(changes)}."
        raise JobMismatch(what, url=os.path.join(directory, MANIFEST))
    with contextlib.suppress(OSError):
        if digest_of(os.path.join(directory, INDEX)) == results.digest:
            return results
    return None


def _bytes(size: int | str) -> int:
    try:
        number = parse_number(size) if isinstance(size, str) else int(size)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{error}.", field="max_memory") from None
    check_count("max_memory", number, 1)
    return number
