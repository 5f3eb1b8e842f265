"""Search the nearest neighbours of vectors, pictures and texts with an index, and resolve them to samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tarmac.arguments import check_count, check_text
from tarmac.display import html_table
from tarmac.errors import UsageError
from tarmac.searching.add import AddReport, add_vectors
from tarmac.searching.build import build
from tarmac.searching.facts import KnnFacts, index_directory, load_index, read_facts, unchanged
from tarmac.searching.hits import Hits, hits_of
from tarmac.searching.library import Numbers, Vectors, contiguous
from tarmac.searching.measure import without
from tarmac.searching.queries import encode_image, encode_text, read_vectors
from tarmac.searching.searcher import Effort, Found, Searcher
from tarmac.searching.sources import Sources, open_sources
from tarmac.storage.local import local_path

if TYPE_CHECKING:
    from tarmac.exact.dataset import Dataset

_MASKS = 8
"""Conditions whose result is kept."""


class Knn:
    """An index of the nearest neighbours of vectors, as `Knn.build` or `tarmac knn build` wrote it.

    >>> tarmac.Knn.build("embeddings/", "index/", target_recall=0.95, max_memory="4GB")
    >>> index = tarmac.Knn("index/")
    >>> scores, numbers = index.search(vectors, 10, where="width >= 512")
    >>> for hit in index.query(text="a red car", k=20, samples="train.json"): print(hit.key, hit.score)

    The vectors themselves stay on disk, where candidates are compared exactly. `embeddings` names their directory if
    it has been moved; of several directories, those that have been moved.
    """

    build: Final = staticmethod(build)

    def __init__(
        self,
        index: str | os.PathLike[str],
        *,
        embeddings: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    ) -> None:
        self.directory: str = index_directory(index, field="index")
        self._given = [] if embeddings is None else _listed(embeddings)
        self._masks: dict[str, NDArray[np.bool_]] = {}
        self._open()

    def _open(self) -> None:
        self.facts: KnnFacts = read_facts(self.directory)
        sources, given = self.facts.sources, self._given
        if len(given) > len(sources):
            what = f"the index was made from {len(sources)} directories, got {len(given)}."
            raise UsageError(what, field="embeddings", url=self.directory)
        self.vectors: Sources = open_sources(sources, self.directory, given)
        index = load_index(self.directory, self.facts)
        self._searcher = Searcher(index, self.facts.choice, self.facts.metric, self.vectors)
        self._masks.clear()

    def __getstate__(self) -> dict[str, Any]:
        given = [os.path.abspath(local_path(each)) for each in self._given]
        return {"index": os.path.abspath(self.directory), "embeddings": given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["index"], embeddings=state["embeddings"])  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dimension(self) -> int:
        """The number of numbers of a vector."""
        return self.facts.choice.dimension

    def __repr__(self) -> str:
        return f"Knn({self.directory!r}): {len(self):,} vectors of {self.dimension} numbers, {self.facts.choice.text}"

    def _repr_html_(self) -> str:
        facts = self.facts
        rows = {"vectors": f"{len(self)}", "kind": facts.choice.text, "recall": str(facts.recall)}
        rows |= {"latency": f"{facts.latency_ms.p50} ms", "memory": f"{facts.memory_bytes} bytes"}
        return html_table(self.directory, rows)

    def search(
        self,
        vectors: ArrayLike,
        k: int = 10,
        *,
        where: str | NDArray[np.bool_] | None = None,
        probes: int | None = None,
        candidates: int | None = None,
    ) -> Found:
        """Return the scores and the numbers of the `k` nearest vectors of each query, a row for each, the best first.

        `where` is a condition on the metadata, or a mask with a value for each vector. Lists are full at any
        selectivity: numbers are -1 only if fewer than `k` vectors meet the condition. `probes` and `candidates`
        replace the measured parameters: how many lists are compared, and how many vectors exactly.
        """
        queries = self._queries(vectors)
        for name, value in (("k", k), ("probes", probes), ("candidates", candidates)):
            if value is not None or name == "k":
                check_count(name, value, 1)
        effort = self.facts.effort
        effort = Effort(
            effort.probes if probes is None else probes,
            effort.candidates if candidates is None else candidates,
        )
        return self._searcher.search(queries, k, effort, self._mask(where))

    def query(
        self,
        *,
        text: str | None = None,
        image: str | os.PathLike[str] | bytes | None = None,
        key: str | None = None,
        vectors: ArrayLike | str | os.PathLike[str] | None = None,
        k: int = 10,
        where: str | NDArray[np.bool_] | None = None,
        samples: Dataset[Any] | str | os.PathLike[str] | None = None,
        device: str | None = None,
    ) -> Hits:
        """Return the samples nearest to a text, a picture, the sample of a key, or vectors, an array or a .npy file.

        Texts and pictures are encoded by the model that made the embeddings, on `device`. The sample of a key is
        left out of its own neighbours. `samples` are a dataset, manifest or shards: hits then have the shard, the
        offset and the fields of the sample that has the key now, wherever it was copied to. Hits of several vectors
        follow each other; `hit.query` is the number of the vector.
        """
        given = {"text": text, "image": image, "key": key, "vectors": vectors}
        chosen = [name for name, value in given.items() if value is not None]
        if len(chosen) != 1:
            what = f"expected one of text, image, key and vectors, got {', '.join(chosen) or 'none'}."
            raise UsageError(what, field="text")
        check_text("text", text, "a text to look for")
        check_text("key", key, "the key of a sample")
        check_count("k", k, 1)
        if key is not None:
            number = self._number(key)
            queries = self.vectors.take(number)
            results = without(self.search(queries, k + 1, where=where), number)
        else:
            origin = self.vectors.embeddings[0].facts
            if text is not None:
                queries = encode_text(origin, text, device, self.directory)
            elif image is not None:
                queries = encode_image(origin, image, device, self.directory)
            else:
                queries = self._queries(read_vectors(vectors))
            results = self.search(queries, k, where=where)
        return hits_of(results, self.vectors, samples)

    def add(self, source: str | os.PathLike[str] | None = None) -> AddReport:
        """Add the vectors that a directory of embeddings has since the index was made, or those of another directory.

        By default it is the directory that the index was made from. The report says how well the new vectors fit.
        """
        with unchanged(self.directory, self.facts):
            try:
                report = add_vectors(self._searcher, self.directory, self.facts, source)
            except Exception:
                self._open()  # some of the vectors may be in the index in memory
                raise
        if report.added:
            self._open()
        return report

    def _number(self, key: str) -> Numbers:
        """Return the number of the only vector of a key, as an array."""
        numbers = self.vectors.find_all(key)
        if not len(numbers):
            what = f"no indexed sample has the key {key!r}; one of them has {self.vectors.keys([0])[0]!r}."
            raise UsageError(what, field="key", url=self.directory)
        if len(numbers) > 1:
            what = f"{len(numbers)} indexed samples have the key {key!r}."
            raise UsageError(what, field="key", url=self.directory, hint="`vectors`, that of one of them.")
        return numbers

    def _queries(self, vectors: Any) -> Vectors:
        try:
            queries = contiguous(np.atleast_2d(np.asarray(vectors, np.float32)))
        except (TypeError, ValueError):
            what = f"expected vectors of {self.dimension} numbers, got {str(vectors)[:100]!r}."
            raise UsageError(what, field="vectors") from None
        if queries.ndim != 2 or queries.shape[1] != self.dimension:
            what = f"expected vectors of {self.dimension} numbers, got an array of shape {np.shape(vectors)}."
            raise UsageError(what, field="vectors")
        if not np.isfinite(queries).all():
            raise UsageError("a vector has numbers that are infinite or not numbers.", field="vectors")
        return queries  # type: ignore[no-any-return]

    def _mask(self, where: str | NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        if where is None:
            return None
        if isinstance(where, str):
            if where not in self._masks:
                while len(self._masks) >= _MASKS:
                    self._masks.pop(next(iter(self._masks)))
                self._masks[where] = self.vectors.where(where)
            return self._masks[where]
        mask = np.asarray(where)
        if mask.dtype != bool or mask.shape != (len(self),):
            what = f"expected a condition, or a mask of {len(self)} values, got {mask.dtype} of shape {mask.shape}."
            raise UsageError(what, field="where")
        return mask


def _listed(embeddings: Any) -> list[str]:
    single = isinstance(embeddings, str | os.PathLike)
    return [os.fspath(embeddings)] if single else [os.fspath(each) for each in embeddings]
