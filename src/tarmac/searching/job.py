"""Build an index as a job: units code ranges of vectors, and at the end their codes become one index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tarmac.errors import TarmacError
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.runtime.cores import usable_cores
from tarmac.searching.choice import LINKS, Choice
from tarmac.searching.facts import INDEX, MANIFEST, KnnFacts, publish
from tarmac.searching.library import Metric, Numbers, import_faiss, metric_number, threads
from tarmac.searching.lists import Coder, Trained, encode_part, train
from tarmac.searching.measure import Latency, Recall, Truth, choose_queries, find_effort, latency
from tarmac.searching.searcher import Effort, Searcher
from tarmac.searching.sources import Sources, describe_source
from tarmac.storage import WriteOptions, write_all
from tarmac.tools.closing import exists
from tarmac.tools.output import make_directory

CONSTRUCTION = 80
"""The width of the search for neighbours while a graph is built."""
WORK = os.path.join(".tarmac", "parts")
"""The directory of working files, in that of the index."""
_FIT = "fit"


class TargetMissed(Exception):
    """No effort reaches the recall that was asked for; the best one is here."""

    def __init__(self, recall: Recall) -> None:
        super().__init__(str(recall))
        self.recall = recall


@dataclass
class KnnJob(Task):
    """Code vectors in parts, then assemble, measure and publish their index."""

    vectors: Sources
    directory: str
    """Of the index."""
    choice: Choice
    metric: Metric
    target: float
    facts: dict[str, Any]
    """What the index is built with, as JSON."""
    workers: int = 1
    """How many units run at the same time on a machine."""
    overwrite: bool = False
    result: KnnFacts | None = None
    verb: str = field(default="knn", init=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("coder", "result")}

    def options(self) -> dict[str, Any]:
        return self.facts | {"index": self.choice.name}

    @property
    def home(self) -> str:
        """The directory of working files, which all workers see."""
        return os.path.join(self.directory, WORK, self.choice.name)

    @property
    def _trained(self) -> str:
        return os.path.join(self.home, "trained.npz")

    def plan(self) -> list[Unit]:
        if not self.choice.lists:
            return []
        step, total = self.choice.part_rows, len(self.vectors)
        inputs = Trained.read(self._trained).digest if os.path.exists(self._trained) else ""
        ranges = [(start, min(start + step, total)) for start in range(0, total, step)]
        return [
            Unit(os.path.join(self.home, f"part-{start:012d}-{stop:012d}.npz"), (start, stop), inputs)
            for start, stop in ranges
        ]

    def prepare(self) -> None:
        """Train what codes depend on, unless an earlier run has: it must be the same in all parts."""
        if not self.choice.lists or os.path.exists(self._trained):
            return
        content = train(self.vectors, self.choice, self.metric, self._queries).to_bytes()
        make_directory(self._trained)
        try:
            write_all(self._trained, content, write=WriteOptions(overwrite=False))
        except TarmacError:
            if not os.path.exists(self._trained):  # another task was faster: its centroids count
                raise

    def writes(self, units: Sequence[Unit]) -> list[str]:
        own = [os.path.join(self.directory, name) for name in (INDEX, MANIFEST)]
        return [*(unit.name for unit in units), *own]

    def begin(self, units: Sequence[Unit]) -> None:
        for name in (MANIFEST, INDEX):
            if os.path.exists(os.path.join(self.directory, name)) and not self.overwrite:
                raise exists(os.path.join(self.directory, name))

    @cached_property
    def coder(self) -> Coder:
        """What turns vectors into codes."""
        return Coder(self.choice, Trained.read(self._trained), self.metric)

    def run(self, unit: Unit) -> Outcome:
        start, stop = unit.content
        with threads(max(usable_cores() // self.workers, 1)):
            size, fit = encode_part(self.vectors, start, stop, self.coder, unit.name)
        rows = stop - start
        return Outcome(rows, rows, bytes=size, outputs={unit.name: size}, details={_FIT: fit * rows})

    def closing(self) -> dict[str, Any] | None:
        return None  # what finishes it needs the vectors

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        fit = sum(outcome.details.get(_FIT, 0.0) for outcome in outcomes) / len(self.vectors)
        index = self._assembled([name for each in outcomes for name in each.outputs])
        searcher = Searcher(index, self.choice, self.metric, self.vectors)
        effort, recall, speed = self._measured(searcher)
        if self.choice.kind == "hnsw":
            for numbers, vectors in self.vectors.selected(self._queries):
                index.add_with_ids(vectors, numbers)
        sources = tuple(describe_source(each, self.directory) for each in self.vectors.embeddings)
        model = self.vectors.embeddings[0].facts.model
        results = KnnFacts(
            self.choice, self.metric, effort, self.target, recall, speed, sources, fit, model,
            options=self.options(),
        )  # fmt: skip
        make_directory(os.path.join(self.directory, INDEX))
        self.result = publish(searcher.index, self.directory, results)

    def _measured(self, searcher: Searcher) -> tuple[Effort, Recall, Latency]:
        if len(self.vectors) == 1:  # which has no neighbours
            return Effort(), Recall(1.0, 1.0, 1.0, 0), Latency(0.0, 0.0)
        apart = self.choice.kind == "hnsw"
        truth = Truth.of(self.vectors, self.metric, self._queries, apart=apart)
        effort, recall = find_effort(searcher, truth, self.target)
        if effort is None:
            raise TargetMissed(recall)
        return effort, recall, latency(searcher, truth, effort)

    @property
    def _queries(self) -> Numbers:
        """The vectors with which the recall is measured. Neither centroids nor links of a graph know them yet."""
        return choose_queries(len(self.vectors), share=10 if self.choice.kind == "hnsw" else 3)

    def _assembled(self, parts: Sequence[str]) -> Any:
        if self.choice.lists:
            return self.coder.assemble(parts)
        faiss, number = import_faiss(), metric_number(self.metric)
        if self.choice.kind == "flat":
            index = faiss.IndexFlat(self.choice.dimension, number)
            for _, vectors in self.vectors.blocks():
                index.add(vectors)
            return index
        graph = faiss.IndexHNSWSQ(self.choice.dimension, faiss.ScalarQuantizer.QT_fp16, LINKS, number)
        graph.hnsw.efConstruction = CONSTRUCTION
        graph.train(self.vectors.take([0]))
        index = faiss.IndexIDMap(graph)
        for numbers, vectors in self.vectors.numbered(without=self._queries):
            index.add_with_ids(vectors, numbers)
        return index
