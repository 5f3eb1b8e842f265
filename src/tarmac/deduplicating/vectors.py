"""Find all pairs of vectors whose cosine is at least a threshold, in bounded memory.

Equal vectors are joined first, so that a picture that occurs ten thousand times is not compared with itself. The others
are projected, divided into cells, and compared in the projection; what may be near there is compared exactly. No pair
is missed.
Working files hold the projected vectors, and the pairs of each share of the cells, so that a killed run continues.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.deduplicating.candidates import SLACK, Search
from tarmac.deduplicating.cells import PER_CENTRE, Borders, assign, centre_count, train
from tarmac.deduplicating.equal import equal_pairs
from tarmac.deduplicating.pairs import Pairs, check_count, merged
from tarmac.deduplicating.projection import Projection, unit
from tarmac.deduplicating.threads import in_threads, one_core_each
from tarmac.embedding.embeddings import Embeddings
from tarmac.embedding.parts import Vectors, release
from tarmac.progress import track
from tarmac.runtime.types import Integers
from tarmac.tools.workdir import disk_errors

BLOCK = 1 << 13
"""Vectors that are read at a time."""
TAKEN = 1 << 10
"""Vectors that are taken at a time. The system maps 64 KB for each, until they are released."""
SHARES = 64
"""Parts of the work; each is saved when it is done."""
_SAMPLE = 1 << 14
_RESCORED = 1 << 12
_PLAN = "plan.json"


@dataclass(frozen=True)
class Several:
    """The vectors of several directories, numbered through."""

    directories: Sequence[Embeddings]
    sources: int = 1
    """How many of them are the source. The others are what it is compared with."""

    @property
    def own(self) -> int:
        """Return the number of vectors of the source."""
        return int(self.offsets[self.sources])

    @cached_property
    def offsets(self) -> Integers:
        """The number of the first vector of each directory, and at the end the number of all."""
        return np.cumsum([0, *map(len, self.directories)])

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def blocks(self) -> Iterator[tuple[int, Vectors]]:
        """Yield all vectors in order, with the number of the first of each block."""
        for directory, offset in zip(self.directories, self.offsets.tolist(), strict=False):
            for part, first in enumerate(directory.offsets[:-1].tolist()):
                stored = directory.array(part)
                for start in range(0, len(stored), BLOCK):
                    yield offset + first + start, stored[start : start + BLOCK].astype(np.float32)
                    release(stored)

    def take(self, numbers: Integers) -> Vectors:
        """Return the vectors of these numbers."""
        result = np.empty((len(numbers), self.directories[0].dimension), np.float32)
        for start in range(0, len(numbers), TAKEN):
            some = numbers[start : start + TAKEN]
            which = np.searchsorted(self.offsets, some, side="right") - 1
            for index in np.unique(which).tolist():
                within, chosen = some[which == index] - self.offsets[index], which == index
                directory = self.directories[index]
                result[start : start + TAKEN][chosen] = directory.take(within)
                parts = np.searchsorted(directory.offsets, within, side="right") - 1
                for part in np.unique(parts).tolist():
                    release(directory.array(part))
        return result


def near_pairs(
    vectors: Several, threshold: float, *, work: str, inputs: str, most: int, progress: bool | None = None
) -> tuple[Pairs, int]:
    """Return the pairs of vectors at least this similar, and how many vectors are zero or not finite.

    Pairs have at least one vector of the source. `work` is a directory for working files; those that a
    killed run with the same `inputs` and threshold left in it are used.
    """
    plan = _Plan(vectors, threshold, work, inputs, most)
    with disk_errors(work), one_core_each():
        if not plan.exists():
            shutil.rmtree(work, ignore_errors=True)
            os.makedirs(work)
            plan.make()
        return plan.run(progress)


@dataclass
class _Plan:
    vectors: Several
    threshold: float
    work: str
    inputs: str
    most: int

    def _path(self, name: str) -> str:
        return os.path.join(self.work, name)

    @property
    def _identity(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "threshold": self.threshold}

    def exists(self) -> bool:
        """Return whether the working files are those of this work."""
        try:
            with open(self._path(_PLAN), encoding="utf-8") as file:
                return bool(json.load(file) == self._identity)
        except (OSError, ValueError):
            return False

    def make(self) -> None:
        """Write the working files that comparing needs: the order by cells, the projected vectors, equal pairs."""
        equal, distinct, invalid = self._equal()
        projection = Projection.of(unit(self.vectors.take(_spread(distinct, _SAMPLE)))[0])
        count = centre_count(len(distinct))
        sample = self._projected(projection, _spread(distinct, PER_CENTRE * count))
        centres = train(sample, count) if count > 1 else np.zeros((1, projection.dimension), np.float32)
        projected = np.memmap(
            self._path("projected"), np.float32, "w+", shape=(max(len(distinct), 1), projection.dimension)
        )
        cells = np.empty(len(distinct), np.int64)
        for rows, scaled in self._distinct_blocks(distinct):
            few = projection(scaled)
            projected[rows] = few
            release(projected)
            cells[rows] = assign(few, centres)
        # Within a cell, numbers stay in order, so those of the source come first.
        order = np.argsort(cells, kind="stable")
        numbers = distinct[order]
        ordered = np.lib.format.open_memmap(
            self._path("vectors.npy"), "w+", np.float32, (len(distinct), projection.dimension)
        )
        for start in range(0, len(order), BLOCK):
            ordered[start : start + BLOCK] = projected[order[start : start + BLOCK]]
            release(projected)
            release(ordered)
        ordered.flush()
        del ordered, projected
        os.unlink(self._path("projected"))
        sizes = np.bincount(cells, minlength=len(centres))
        own = np.bincount(cells[distinct < self.vectors.own], minlength=len(centres))
        np.savez(
            self._path("cells.npz"), centres=centres, starts=np.cumsum([0, *sizes]), own=own, numbers=numbers,
            equal_first=equal.first, equal_second=equal.second, invalid=invalid,
        )  # fmt: skip
        with open(self._path(_PLAN + ".part"), "w", encoding="utf-8") as file:
            json.dump(self._identity, file)
        os.replace(self._path(_PLAN + ".part"), self._path(_PLAN))

    def _equal(self) -> tuple[Pairs, Integers, int]:
        """Return the pairs of equal vectors, the first of each set of equal ones, and how many have no direction."""
        hashes, valid = np.empty(len(self.vectors), np.uint64), np.empty(len(self.vectors), bool)
        for start, block in self.vectors.blocks():
            rows = slice(start, start + len(block))
            hashes[rows] = np.fromiter(
                map(xxhash.xxh3_64_intdigest, block + np.float32(0)), np.uint64, len(block)
            )
            valid[rows] = unit(block)[1]
        numbers = np.flatnonzero(valid)
        first, second = equal_pairs(hashes[numbers])
        equal = Pairs.of(numbers[first], numbers[second], np.ones(len(first)), exact=True)
        equal = equal[self._same(equal.first, equal.second)]
        valid[equal.second] = False
        invalid = len(self.vectors) - len(numbers)
        return equal[equal.first < self.vectors.own], np.flatnonzero(valid), invalid

    def _same(self, first: Integers, second: Integers) -> NDArray[np.bool_]:
        same = np.empty(len(first), bool)
        for start in range(0, len(first), BLOCK):
            rows = slice(start, start + BLOCK)
            same[rows] = np.all(self.vectors.take(first[rows]) == self.vectors.take(second[rows]), axis=1)
        return same

    def _projected(self, projection: Projection, numbers: Integers) -> Vectors:
        result = np.empty((len(numbers), projection.dimension), np.float32)
        for start in range(0, len(numbers), BLOCK):
            rows = slice(start, start + BLOCK)
            result[rows] = projection(unit(self.vectors.take(numbers[rows]))[0])
        return result

    def _distinct_blocks(self, distinct: Integers) -> Iterator[tuple[slice, Vectors]]:
        """Yield the unit vectors of these numbers in order, with their rows among them."""
        for start, block in self.vectors.blocks():
            low, high = np.searchsorted(distinct, (start, start + len(block))).tolist()
            if high > low:
                yield slice(low, high), unit(block[distinct[low:high] - start])[0]

    def run(self, progress: bool | None) -> tuple[Pairs, int]:
        """Compare, and return the pairs in order."""
        with np.load(self._path("cells.npz")) as stored:
            facts = dict(stored)
        numbers, starts = facts["numbers"], facts["starts"]
        least = self.threshold - SLACK
        search = Search(
            np.load(self._path("vectors.npy"), mmap_mode="r"),
            starts,
            facts["own"],
            Borders(facts["centres"], float(np.sqrt(2 - 2 * least))),
            least,
        )
        equal = Pairs.of(
            facts["equal_first"], facts["equal_second"], np.ones(len(facts["equal_first"])), exact=True
        )
        tracked = enumerate(track(_shares(starts), SHARES, "dedup", progress=progress))
        shares = (self._share(share, cells, search, numbers) for share, cells in tracked)
        return merged(_bounded(itertools.chain([equal], shares), self.most)), int(facts["invalid"])

    def _share(self, share: int, cells: range, search: Search, numbers: Integers) -> Pairs:
        """Return the pairs of some cells, from a file if they were found before."""
        path = self._path(f"pairs-{share:05d}.npz")
        if os.path.exists(path):
            with np.load(path) as stored:
                return Pairs(*(stored[name] for name in ("first", "second", "score", "exact")))

        def of_cell(cell: int) -> Pairs:
            candidates = search.from_cell(cell)
            pairs = (self._scored(numbers[first], numbers[second]) for first, second in candidates)
            return merged(_bounded(pairs, self.most))

        with in_threads() as each:
            result = merged(_bounded(each(of_cell, cells), self.most))
        release(search.vectors)
        with open(f"{path}.part", "wb") as file:
            np.savez(file, first=result.first, second=result.second, score=result.score, exact=result.exact)
        os.replace(f"{path}.part", path)
        return result

    def _scored(self, first: Integers, second: Integers) -> Pairs:
        """Return the pairs with their exact cosine that is large enough."""
        low, high = np.minimum(first, second), np.maximum(first, second)
        score = np.empty(len(low), np.float32)
        for start in range(0, len(low), _RESCORED):
            rows = slice(start, start + _RESCORED)
            one, other = self.vectors.take(low[rows]), self.vectors.take(high[rows])
            score[rows] = cosines(one, other)
        return Pairs.of(low, high, score).at_least(self.threshold)


def _bounded(several: Iterable[Pairs], most: int) -> Iterator[Pairs]:
    """Yield pairs as long as there are not too many."""
    count = 0
    for pairs in several:
        count += len(pairs)
        check_count(count, most)
        yield pairs


def cosines(ones: Vectors, others: Vectors) -> NDArray[np.float32]:
    """Return the cosines of pairs of vectors, computed in double precision."""
    products = np.einsum("ij,ij->i", ones, others, dtype=np.float64)
    squares = [np.einsum("ij,ij->i", each, each, dtype=np.float64) for each in (ones, others)]
    return np.minimum(products / np.sqrt(squares[0] * squares[1]), 1).astype(np.float32)  # type: ignore[no-any-return]


def _spread(numbers: Integers, size: int) -> Integers:
    """Return about this many numbers, at equal distances."""
    return numbers[:: max(1, len(numbers) // size)][:size]


def _shares(starts: Integers) -> list[range]:
    """Divide the cells into parts of about equal numbers of vectors."""
    bounds = np.searchsorted(starts, np.linspace(0, starts[-1], SHARES + 1)).tolist()
    bounds[0], bounds[-1] = 0, len(starts) - 1
    return [range(one, other) for one, other in itertools.pairwise(bounds)]
