"""Find pairs of texts whose pieces overlap enough: MinHash finds candidates, and the pieces themselves decide.

The pieces of all texts and the hashes of their bands are kept in working files, so memory holds a few numbers per text.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.deduplicating.equal import equal_pairs
from tarmac.deduplicating.minhash import Bands, signatures
from tarmac.deduplicating.pairs import Pairs, check_count, merged
from tarmac.deduplicating.shingles import Cutter, Shingles, normalized
from tarmac.progress import track
from tarmac.runtime.types import Integers
from tarmac.tools.workdir import disk_errors

_CANDIDATES = 1 << 20
"""Candidates of a band that are held at a time."""
_CANDIDATES_PER_PAIR = 20
_COMPARED = 1 << 13
"""Pairs whose pieces are compared at a time."""
_PIECES, _BANDS = "pieces", "band-{}"


def near_pairs(
    texts: Iterable[Sequence[str | None]],
    count_own: Callable[[], int],
    threshold: float,
    cutter: Cutter,
    *,
    work: str,
    most: int,
    progress: bool | None = None,
) -> tuple[Pairs, int]:
    """Return the pairs of texts at least this similar, and how many texts are empty.

    `texts` are blocks of texts. Pairs have at least one of the first ones, whose number `count_own` returns after all
    texts were read. `work` is a directory for working files.
    """
    bands = Bands.of(threshold)
    shutil.rmtree(work, ignore_errors=True)
    with disk_errors(work):
        os.makedirs(work)
        prepared = _prepare(texts, cutter, bands, work)
        own = count_own()
        first, second = equal_pairs(prepared.hashes)
        full = prepared.filled[first]
        equal = Pairs.of(first[full], second[full], np.ones(int(full.sum())), exact=True)
        distinct = prepared.filled.copy()
        distinct[equal.second] = False
        equal = equal[equal.first < own]
        pairs, count = [equal], len(equal)
        accepted = np.zeros(0, np.int64)
        for band in track(range(bands.bands), bands.bands, "dedup", progress=progress):
            hashes = np.fromfile(os.path.join(work, _BANDS.format(band)), np.uint64)
            for one, other in _candidates(hashes, np.flatnonzero(distinct), own, most):
                codes = one * len(distinct) + other
                fresh = ~np.isin(codes, accepted, assume_unique=True)
                score = prepared.similarities(one[fresh], other[fresh])
                near = Pairs.of(one[fresh], other[fresh], score).at_least(threshold)
                pairs.append(near)
                accepted = np.concatenate([accepted, near.first * len(distinct) + near.second])
                count += len(near)
                check_count(count, most)
        return merged(pairs), int(np.sum(~prepared.filled))


@dataclass(frozen=True)
class _Prepared:
    hashes: NDArray[np.uint64]
    offsets: Integers
    work: str

    @property
    def filled(self) -> NDArray[np.bool_]:
        """Return whether each text has pieces."""
        return np.diff(self.offsets) > 0

    def similarities(self, first: Integers, second: Integers) -> NDArray[np.float64]:
        """Return the Jaccard similarity of the pieces of pairs of texts."""
        result = np.empty(len(first))
        if not len(first):
            return result
        values = np.memmap(os.path.join(self.work, _PIECES), np.uint32, "r")
        for start in range(0, len(first), _COMPARED):
            rows = slice(start, start + _COMPARED)
            result[rows] = _jaccard(values, self.offsets, first[rows], second[rows])
        return result


def _prepare(texts: Iterable[Sequence[str | None]], cutter: Cutter, bands: Bands, work: str) -> _Prepared:
    """Write the pieces and the hashes of the bands of all texts."""
    hashes, sizes = [], []
    with contextlib.ExitStack() as stack:
        pieces = stack.enter_context(open(os.path.join(work, _PIECES), "wb"))
        names = [os.path.join(work, _BANDS.format(band)) for band in range(bands.bands)]
        files = [stack.enter_context(open(name, "wb")) for name in names]
        for block in texts:
            plain = [normalized(text or "") for text in block]
            digests = (xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) for text in plain)
            hashes.append(np.fromiter(digests, np.uint64, len(plain)))
            cut = cutter(plain)
            sizes.append(np.diff(cut.offsets))
            pieces.write(cut.values.tobytes())
            filled = np.flatnonzero(sizes[-1])
            rows = np.zeros((bands.bands, len(plain)), np.uint64)
            if len(filled):
                offsets = np.concatenate([cut.offsets[filled], cut.offsets[-1:]])
                rows[:, filled] = bands.hashes(signatures(Shingles(cut.values, offsets)))
            for file, row in zip(files, rows, strict=True):
                file.write(row.tobytes())
    lengths = np.concatenate([np.zeros(1, np.int64), *sizes])
    return _Prepared(np.concatenate([np.zeros(0, np.uint64), *hashes]), np.cumsum(lengths), work)


def _candidates(
    hashes: NDArray[np.uint64], numbers: Integers, own: int, most: int
) -> Iterator[tuple[Integers, Integers]]:
    """Yield pairs of texts with the same hash, the smaller number first, at least that one below `own`."""
    order = np.argsort(hashes[numbers], kind="stable")
    ordered = numbers[order]
    ends = np.searchsorted(hashes[ordered], hashes[ordered], side="right")
    after = np.where(ordered < own, ends - np.arange(len(ordered)) - 1, 0)  # partners of each, behind it
    check_count(int(after.sum()), _CANDIDATES_PER_PAIR * most, "may be near each other")
    totals = np.cumsum(after)
    begin = 0
    while begin < len(ordered):
        end = int(np.searchsorted(totals, (totals[begin - 1] if begin else 0) + _CANDIDATES, side="right"))
        end = max(end, begin + 1)
        counts = after[begin:end]
        firsts = np.repeat(np.arange(begin, end), counts)
        steps = np.arange(len(firsts)) - np.repeat(np.cumsum(counts) - counts, counts)
        if len(firsts):
            yield ordered[firsts], ordered[firsts + 1 + steps]
        begin = end


def _jaccard(
    values: NDArray[np.uint32], offsets: Integers, first: Integers, second: Integers
) -> NDArray[np.float64]:
    """Return the sizes of the intersections of pairs of sets, divided by those of the unions."""
    both = np.concatenate([_of_pairs(values, offsets, numbers) for numbers in (first, second)])
    both.sort()
    twice = both[1:][both[1:] == both[:-1]] >> np.uint64(32)
    common = np.bincount(twice.astype(np.int64), minlength=len(first))
    sizes = np.diff(offsets)
    return common / (sizes[first] + sizes[second] - common)


def _of_pairs(values: NDArray[np.uint32], offsets: Integers, numbers: Integers) -> NDArray[np.uint64]:
    """Return the pieces of these texts, each behind the position of its text in the list."""
    sizes = np.diff(offsets)[numbers]
    owner = np.repeat(np.arange(len(numbers)), sizes)
    where = (
        np.arange(len(owner))
        - np.repeat(np.cumsum(sizes) - sizes, sizes)
        + np.repeat(offsets[numbers], sizes)
    )
    pieces: NDArray[np.uint64] = owner.astype(np.uint64) << np.uint64(32) | values[where].astype(np.uint64)
    return pieces
