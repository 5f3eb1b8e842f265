"""Decide which of the samples that are near each other stay.

Samples are considered in the order of preference. One stays unless it is near another one that stays already. So no
two that stay are near each other, and each that is removed is near one that stays, whatever chains there are:
of a, b and c, where b is near both, and a and c are not near each other, either b is removed, or a and c are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tarmac.deduplicating.pairs import Pairs
from tarmac.runtime.types import Integers

_ROUNDS = 32
_UNDECIDED, _STAYS, _REMOVED = 0, 1, 2


@dataclass(frozen=True)
class Groups:
    """What becomes of each sample; first those of the source, then those that it was compared with."""

    group: Integers
    """The number of the group, in the order of their first samples; -1 for a sample that nothing is near."""
    kept: Integers
    """The sample that stays in the place of this one; its own number if it stays."""
    score: NDArray[np.float32]
    """How similar both are; 1 for one that stays."""
    exact: NDArray[np.bool_]
    """Whether both are equal."""

    @property
    def stays(self) -> NDArray[np.bool_]:
        """Return whether each sample stays."""
        return self.kept == np.arange(len(self.kept))  # type: ignore[no-any-return]


def decide(pairs: Pairs, preference: Integers, own: int) -> Groups:
    """Return the groups of samples and what becomes of them.

    `preference` has the rank of each sample, the one to keep first having the lowest. Those from `own` on are not
    removed.
    """
    count = len(preference)
    rank = np.where(np.arange(count) < own, preference, preference - count)  # those of others come first
    node = np.arange(count)  # equal samples are one node
    equal, near = pairs[pairs.exact], pairs[~pairs.exact]
    node[equal.second] = equal.first
    best = _best_members(node, rank)
    others = rank[best[node]] < 0
    edges = near[~(others[near.first] & others[near.second])]
    state = np.full(count, _UNDECIDED, np.int8)
    one_first = rank[best[edges.first]] < rank[best[edges.second]]
    early = np.where(one_first, edges.first, edges.second)
    late = np.where(one_first, edges.second, edges.first)
    _settle(early, late, rank[best], state)
    kept, score = _nearest_kept(near, state, rank[best])
    decided = np.where(kept[node] >= 0, best[kept[node]], best[node])
    number = np.arange(count)
    removed_as_equal = (kept[node] < 0) & (decided != number)
    result = np.where(number < own, decided, number)
    scores = np.where(kept[node] >= 0, score[node], np.float32(1))
    scores[own:] = 1
    return Groups(
        _components(pairs, count), result, scores.astype(np.float32), removed_as_equal & (number < own)
    )


def _best_members(node: Integers, rank: Integers) -> Integers:
    """Return for each node, by its number, the member that stays if the node does."""
    best = np.arange(len(node))
    order = np.lexsort((rank, node))
    nodes = node[order]
    starts = np.flatnonzero(np.diff(nodes, prepend=-1))
    best[nodes[starts]] = order[starts]
    return best


def _settle(early: Integers, late: Integers, rank: Integers, state: NDArray[np.int8]) -> None:
    """Let nodes stay in the order of their ranks, and remove those that are near one that stays."""
    for _ in range(_ROUNDS):
        # Edges matter while the early end may stay and the late end is undecided.
        matters = (state[early] != _REMOVED) & (state[late] == _UNDECIDED)
        early, late = early[matters], late[matters]
        if not len(early):
            break
        waits = np.zeros(len(state), bool)
        waits[late] = True
        first = early[~waits[early]]
        state[first] = _STAYS
        state[late[state[early] == _STAYS]] = _REMOVED
    order = np.argsort(rank[late], kind="stable")  # long chains: one by one
    for one, other in zip(early[order].tolist(), late[order].tolist(), strict=True):
        # All edges to `one` were seen, as its rank is lower.
        if state[one] != _REMOVED:
            state[other] = _REMOVED
    state[state == _UNDECIDED] = _STAYS


def _nearest_kept(
    pairs: Pairs, state: NDArray[np.int8], rank: Integers
) -> tuple[Integers, NDArray[np.float32]]:
    """Return for each removed node the most similar one that stays, and how similar; -1 for others."""
    kept, score = np.full(len(state), -1), np.ones(len(state), np.float32)
    sides = [(pairs.first, pairs.second), (pairs.second, pairs.first)]
    removed = np.concatenate([one for one, _ in sides])
    stays = np.concatenate([other for _, other in sides])
    scores = np.concatenate([pairs.score, pairs.score])
    chosen = np.flatnonzero((state[removed] == _REMOVED) & (state[stays] == _STAYS))
    removed, stays, scores = removed[chosen], stays[chosen], scores[chosen]
    order = np.lexsort((rank[stays], -scores, removed))
    best = order[np.flatnonzero(np.diff(removed[order], prepend=-1))]
    kept[removed[best]], score[removed[best]] = stays[best], scores[best]
    return kept, score


def _components(pairs: Pairs, count: int) -> Integers:
    """Return the number of the connected component of each sample; -1 for those without pairs."""
    label = np.arange(count)
    first, second = pairs.first, pairs.second
    while len(first):
        ones, others = label[first], label[second]
        different = ones != others
        first, second, ones, others = first[different], second[different], ones[different], others[different]
        np.minimum.at(label, np.maximum(ones, others), np.minimum(ones, others))
        while True:
            shorter = label[label]
            if np.array_equal(shorter, label):
                break
            label = shorter
    result = np.full(count, -1)
    members = np.unique(np.concatenate([pairs.first, pairs.second]))
    result[members] = np.unique(label[members], return_inverse=True)[1].reshape(-1)
    return result
