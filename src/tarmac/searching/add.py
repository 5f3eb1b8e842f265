"""Add vectors to an index, and measure how well they fit what it was trained on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from tarmac.display import plural
from tarmac.embedding.embeddings import Embeddings
from tarmac.errors import UsageError
from tarmac.searching.choice import as_size
from tarmac.searching.facts import KnnFacts, publish
from tarmac.searching.library import import_faiss
from tarmac.searching.measure import Recall, Truth, choose_queries, measure
from tarmac.searching.searcher import Searcher
from tarmac.searching.sources import Source, Sources, describe_source, open_sources

_KEYS = 1 << 16
QUERIES = 500
"""Queries among the new vectors, and as many among all."""
TOLERANCE = 0.01
"""How much lower the recall may become before the index should be built again."""


@dataclass(frozen=True)
class AddReport:
    """What adding vectors to an index gave."""

    vectors: int
    """The number of vectors of the index now."""
    added: int = 0
    before: Recall | None = None
    """The recall when the index was built."""
    recall: Recall | None = None
    """The recall among all vectors now."""
    new: Recall | None = None
    """The recall of the new vectors."""
    fit: float | None = None
    """The mean score of the new vectors with the centroids of their lists, ..."""
    fit_before: float | None = None
    """... and that of the vectors that the index was built with."""
    remarks: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if not self.added:
            return f"knn: {plural(self.vectors, 'vector')}; nothing to add"
        drift = (
            ""
            if self.fit is None
            else f"; mean score of centroids {self.fit_before:.4f}, of new vectors {self.fit:.4f}"
        )
        recalls = [each.mean if each else 0.0 for each in (self.new, self.before)]
        return (
            f"knn: {plural(self.added, 'vector')} added, {self.vectors} now; {self.recall}, "
            f"of new vectors {recalls[0]:.4f}, when built {recalls[1]:.4f}{drift}"
        )


def add_vectors(
    searcher: Searcher, directory: str, facts: KnnFacts, source: str | os.PathLike[str] | None
) -> AddReport:
    """Add what a directory of embeddings has besides what is indexed, and publish the larger index."""
    new = list(_new_sources(searcher.vectors, directory, facts, source))
    total, added = len(searcher.vectors), sum(each.rows for each in new)
    if not added:
        return AddReport(total, before=facts.built)
    vectors = _together(searcher.vectors, open_sources(new, directory))
    repeated = _repeated(searcher.vectors, vectors)
    apart = _measured_apart(searcher, vectors, facts) if searcher.choice.kind == "hnsw" else None
    scores = [_add(searcher, first, block) for first, block in vectors.blocks(total)]
    fit = float(np.concatenate(scores).mean(dtype=np.float64)) if searcher.choice.lists else None
    choice = replace(searcher.choice, vectors=len(vectors))
    larger = Searcher(searcher.index, choice, searcher.metric, vectors)
    if apart is None:
        numbers = choose_queries(len(vectors), total, count=QUERIES)
        split = len(numbers)
        truth = Truth.of(
            vectors,
            searcher.metric,
            np.concatenate([numbers, choose_queries(len(vectors), count=QUERIES)]),
        )
        of_new = measure(larger, truth.part(slice(None, split)), facts.effort)
        recall = measure(larger, truth.part(slice(split, None)), facts.effort)
    else:
        of_new, recall = apart, facts.recall
    published = publish(
        searcher.index,
        directory,
        replace(
            facts, choice=choice, recall=recall, recall_when_built=facts.built, sources=(*facts.sources, *new)
        ),
    )
    remarks = list(_remarks(facts, published, of_new, repeated))
    return AddReport(
        len(vectors),
        added,
        facts.built,
        recall,
        of_new,
        fit,
        facts.fit if fit is not None else None,
        remarks,
    )


def _new_sources(
    vectors: Sources, directory: str, facts: KnnFacts, source: str | os.PathLike[str] | None
) -> Iterator[Source]:
    """Yield what the directory, or each that is indexed, has besides what is indexed."""
    kind = facts.sources[0].kind
    names = [each.directory for each in vectors.embeddings] if source is None else [os.fspath(source)]
    known = {
        os.path.realpath(each.directory): recorded.parts
        for each, recorded in zip(vectors.embeddings, facts.sources, strict=True)
    }
    for name in dict.fromkeys(map(os.path.realpath, names)):
        embeddings = Embeddings(name, kind=kind)
        if embeddings.dimension != vectors.dimension:
            what = f"expected vectors of {vectors.dimension} numbers, got {embeddings.dimension}."
            raise UsageError(what, field="source", url=name)
        if facts.model and embeddings.facts.model and embeddings.facts.model != facts.model:
            what = f"expected vectors of {facts.model}, got {embeddings.facts.model}."
            raise UsageError(what, field="source", url=name)
        first = known.get(os.path.realpath(name), 0)
        if len(embeddings.parts) > first:
            yield describe_source(embeddings, directory, first)


def _repeated(old: Sources, together: Sources) -> int:
    """Return how many of the vectors behind the old ones have a key that one of these has."""
    starts = range(len(old), len(together), _KEYS)
    blocks = (np.arange(start, min(start + _KEYS, len(together))) for start in starts)
    return sum(int(np.sum(old.find(together.keys(block)) >= 0)) for block in blocks)


def _together(old: Sources, new: Sources) -> Sources:
    return Sources([*old.embeddings, *new.embeddings], [*old.starts, *new.starts], [*old.rows, *new.rows])


def _measured_apart(searcher: Searcher, vectors: Sources, facts: KnnFacts) -> Recall:
    """Return the recall of new vectors before they are in a graph, where a vector is its own entry."""
    total = len(searcher.vectors)
    numbers = choose_queries(len(vectors), total, count=QUERIES)
    return measure(searcher, Truth.of(vectors, searcher.metric, numbers, stop=total), facts.effort)


def _add(searcher: Searcher, first: int, vectors: Any) -> Any:
    """Add vectors to the index; return their scores with the centroids of their lists, if there are lists."""
    if searcher.choice.kind == "hnsw":
        searcher.index.add_with_ids(vectors, np.arange(first, first + len(vectors)))
    else:
        searcher.index.add(vectors)
    if not searcher.choice.lists:
        return np.zeros(0, np.float32)
    faiss = import_faiss()
    chain = getattr(searcher.index, "chain", None)
    turned = vectors if chain is None else faiss.downcast_VectorTransform(chain.at(0)).apply(vectors)
    return faiss.extract_index_ivf(searcher.index).quantizer.search(turned, 1)[0].reshape(-1)


def _remarks(before: KnnFacts, after: KnnFacts, of_new: Recall, repeated: int) -> Iterator[str]:
    if repeated:
        yield f"{plural(repeated, 'added vector')} have keys that the index had before: samples may be in it twice"
    lost = before.built.mean - min(after.recall.high, of_new.high)  # more than chance explains
    if lost > TOLERANCE:
        yield f"the recall is at least {lost:.3f} lower than when the index was built; build it again: tarmac knn build"
    memory = before.options.get("max_memory", 0)
    if memory and after.memory_bytes > memory:
        yield f"the index has {as_size(after.memory_bytes)} now, more than the {as_size(memory)} it was built for"
