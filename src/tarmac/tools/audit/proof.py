"""The proof that an epoch hands out every sample exactly once, by going through all steps of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tarmac.exact.mix import Mix
from tarmac.exact.order.epochs import first_and_size
from tarmac.tools.audit.audit import OrderAudit

__all__ = ["Proof", "prove"]

Integers = NDArray[np.int64]

_AT_ONCE = 1 << 14
"""Samples worked out in one go: what that takes fits into the cache of a core, which doubles the speed."""
_LISTED = 10


@dataclass(frozen=True, slots=True)
class Proof:
    """What going through the epoch has shown."""

    samples: int
    """Of the epoch."""
    seen: int
    """Handed out to the ranks, not counting what comes again to fill the last batch."""
    before: int
    """Handed out before the position at which the audit starts."""
    left_out: int
    """Left out by the tail."""
    padded: int
    """Come again to fill the last batch."""
    steps: tuple[int, ...]
    """Of each rank."""
    distinct: bool
    """Whether no sample has two positions, so that each comes once or is left out; in a mix one may."""
    equal: bool
    """Whether the ranks have as many batches and samples as they must."""
    too_often: int = 0
    """How many samples come more often than they may."""
    too_seldom: int = 0
    """How many come too seldom, or never."""
    examples: tuple[str, ...] = ()
    """Some keys of samples that do not come as often as they must."""

    @property
    def ok(self) -> bool:
        """Whether everything is as promised."""
        whole = self.before + self.seen + self.left_out == self.samples
        return whole and self.equal and not self.too_often and not self.too_seldom


def prove(audit: OrderAudit) -> Proof:
    """Go through every step of every rank. Takes one bit of memory for each sample, two bytes in a mix."""
    options, samples, allowed = audit.options, audit.samples, _allowed_times(audit)
    dealt = np.zeros((2, options.world_size), np.int64)
    few = many = np.zeros(0, np.int64)
    once = all(least == most == 1 for _, least, most in allowed) and _each_once(
        _numbers(audit, dealt), samples
    )
    if not once:
        dealt[:] = 0
        few, many = _outside(_times(_numbers(audit, dealt), len(audit.together)), allowed)
    totals = dealt.sum(axis=0)
    return Proof(
        samples=samples,
        seen=int(dealt[0].sum()),
        before=min(options.position, samples),
        left_out=samples - _end(audit),
        padded=int(dealt[1].sum()),
        steps=tuple((-(-totals // options.batch_size)).tolist()),
        distinct=once,
        equal=_are_equal(totals, audit),
        too_often=len(many),
        too_seldom=len(few),
        examples=tuple(audit.together.keys_of(np.concatenate([many[:_LISTED], few[:_LISTED]]))),
    )


def _numbers(audit: OrderAudit, dealt: Integers) -> Iterator[Integers]:
    """Yield the samples at all positions: before the start, of each rank step by step, and left out.

    Adds up in `dealt` how many each rank gets, in the first row for the first time, in the second again. Some
    steps are taken at once: the batches of a rank follow one another as one large batch would.
    """
    options, samples = audit.options, audit.samples
    yield from _between(audit, 0, min(options.position, samples))
    stride = max(_AT_ONCE // options.batch_size, 1)
    for step in range(0, audit.steps, stride):
        start = options.position + step * options.global_batch
        batch = options.batch_size * min(stride, audit.steps - step)
        for rank in range(options.world_size):
            first, size = first_and_size(
                samples, start, batch_size=batch, rank=rank, world_size=options.world_size, tail=options.tail
            )
            positions = first + options.world_size * np.arange(size, dtype=np.int64)
            fresh = positions[positions < samples]
            dealt[:, rank] += len(fresh), size - len(fresh)
            yield audit.order.at(options.epoch, fresh)
    yield from _between(audit, _end(audit), samples)


def _between(audit: OrderAudit, begin: int, end: int) -> Iterator[Integers]:
    for start in range(begin, end, _AT_ONCE):
        yield audit.order.at(audit.options.epoch, np.arange(start, min(start + _AT_ONCE, end)))


def _end(audit: OrderAudit) -> int:
    """Return the position up to which samples are handed out."""
    return min(audit.options.position + audit.steps * audit.options.global_batch, audit.samples)


def _each_once(numbers: Iterable[Integers], samples: int) -> bool:
    """Say whether each number of [0, samples) comes exactly once.

    A bit for each number is added to the byte it lies in. If it was not set yet, one more is set after that,
    and else, because of the carry, not one more. So only if no number came twice, as many bits are set in the
    end as numbers were added.
    """
    added, bits = 0, np.zeros(-(-samples // 8), np.uint8)
    for some in numbers:
        if len(some) and not 0 <= some.min() <= some.max() < samples:
            return False
        added += len(some)
        np.add.at(bits, some >> 3, np.left_shift(1, some & 7).astype(np.uint8))
    pieces = (bits[start : start + _AT_ONCE] for start in range(0, len(bits), _AT_ONCE))
    return added == samples == sum(int(np.unpackbits(piece).sum()) for piece in pieces)


def _times(numbers: Iterable[Integers], samples: int) -> NDArray[np.uint16]:
    """Count how often each sample comes; what is no sample at all is missed where one should be."""
    times = np.zeros(samples, np.uint16)
    for some in numbers:
        np.add.at(times, some[(some >= 0) & (some < samples)], np.uint16(1))
    return times


def _allowed_times(audit: OrderAudit) -> list[tuple[int, int, int]]:
    """For each dataset its length, and how often a sample of it comes at least and at most.

    An epoch of a mix goes on where the last one stopped. So a sample comes once in each pass through its
    dataset that lies inside of the epoch, and may come in the two that it has only a part of.
    """
    if not isinstance(audit.dataset, Mix):
        return [(audit.samples, 1, 1)]
    found = []
    for dataset, count in zip(audit.dataset.datasets, audit.dataset.counts, strict=True):
        length, first, end = len(dataset), audit.options.epoch * count, (audit.options.epoch + 1) * count
        if not count:
            found.append((length, 0, 0))
        else:
            inside = max(end // length - -(-first // length), 0)
            found.append((length, inside, -(-end // length) - first // length))
    return found


def _outside(times: NDArray[np.uint16], allowed: list[tuple[int, int, int]]) -> tuple[Integers, Integers]:
    """Return the numbers of the samples that come too seldom, and of those that come too often."""
    few, many, base = [], [], 0
    for length, least, most in allowed:
        some = times[base : base + length]
        few.append(base + np.flatnonzero(some < least))
        many.append(base + np.flatnonzero(some > most))
        base += length
    return np.concatenate(few), np.concatenate(many)


def _are_equal(totals: Integers, audit: OrderAudit) -> bool:
    """Whether each rank has all its batches full; with a short tail, ranks may differ by one sample."""
    if audit.options.tail == "short":
        return int(np.ptp(totals)) <= 1
    return bool((totals == audit.steps * audit.options.batch_size).all())
