"""Laws of deduplication: what stays is not near each other, what is removed is near something that stays."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tarmac
from deduplicating.vectors import brute_force, clusters, write
from harness import rounds
from tarmac.deduplicating import cells, groups
from tarmac.deduplicating.pairs import Pairs, read_pairs
from tarmac.deduplicating.why import why


def kept(path):
    return Path(path).read_text().split()


@st.composite
def related(draw):
    """Random pairs of equal and of near samples, as a source records them, and preferences."""
    count = draw(st.integers(1, 12))
    own = draw(st.integers(1, count))
    node = list(range(count))
    for number in range(1, count):
        if draw(st.integers(0, 3)) == 0:
            node[number] = node[draw(st.integers(0, number - 1))]
    firsts = sorted(set(node))
    near = {
        (one, other): draw(st.sampled_from([0.8, 0.9, 0.97]))
        for at, one in enumerate(firsts)
        for other in firsts[at + 1 :]
        if one < own and draw(st.booleans())
    }
    rows = [(node[n], n, 1.0, True) for n in range(count) if node[n] != n and node[n] < own]
    rows += [(*pair, score, False) for pair, score in near.items()]
    rows.sort()
    first, second, score, exact = zip(*rows, strict=True) if rows else ([], [], [], [])
    pairs = Pairs.of(first, second, score, exact=exact)
    preference = draw(st.permutations(range(own)))
    return node, near, pairs, [*preference, *range(own, count)], own


@settings(max_examples=rounds(300))
@given(related(), st.sampled_from([0.75, 0.85, 0.95]), st.sampled_from([0, 32]))
def test_who_stays(case, threshold, rounds):
    """The same as considering samples one by one in the order of preference, however long the chains are."""
    node, near, pairs, preference, own = case
    before, groups._ROUNDS = groups._ROUNDS, rounds
    try:
        result = groups.decide(pairs.at_least(threshold), np.array(preference), own)
    finally:
        groups._ROUNDS = before

    def similarity(one, other):
        if node[one] == node[other]:
            return 1.0
        return near.get((node[one], node[other]), near.get((node[other], node[one]), 0.0))

    stays = list(range(own, len(node)))
    for number in sorted(range(own), key=preference.__getitem__):
        if all(similarity(number, other) < threshold for other in stays):
            stays.append(number)
    assert set(np.flatnonzero(result.stays).tolist()) == set(stays)
    for number in set(range(own)) - set(stays):
        other = int(result.kept[number])
        assert other in stays
        assert similarity(number, other) >= threshold
        assert result.score[number] == np.float32(similarity(number, other))
        assert result.exact[number] == (node[number] == node[other])
    together = [number for number in range(len(node)) if result.group[number] >= 0]
    in_pairs = {
        int(n) for each in (pairs.at_least(threshold),) for side in (each.first, each.second) for n in side
    }
    assert set(together) == in_pairs
    for one, other in zip(pairs.at_least(threshold).first, pairs.at_least(threshold).second, strict=True):
        assert result.group[one] == result.group[other]


@settings(max_examples=rounds(25), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 90), st.integers(2, 24), st.integers(0, 2**32 - 1), st.sampled_from([0.5, 0.9, 0.96, 1.0]),
    st.integers(1, 12), st.integers(0, 40),
)  # fmt: skip
def test_every_pair_is_found_whatever_the_cells_are(count, dimension, seed, threshold, centres, others):
    """Few vectors in many cells: nearly all pairs cross a border. Zeros and infinite vectors are near nothing."""
    vectors = clusters(count + others, dimension, seed)
    rng = np.random.default_rng(seed)
    vectors[rng.integers(len(vectors), size=len(vectors) // 5)] = vectors[0]
    vectors[rng.integers(len(vectors), size=len(vectors) // 9)] = rng.choice([0, np.inf, np.nan])
    expected = brute_force(np.where(np.isfinite(vectors), vectors, 0), threshold - 1e-6, count)
    sure = brute_force(np.where(np.isfinite(vectors), vectors, 0), threshold + 1e-6, count)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "SMALLEST", 0)
        patch.setattr(cells, "MOST", centres)
        path = Path(folder)
        source = write(path / "source", vectors[:count], rows=40)
        options = {"against": write(path / "other", vectors[count:])} if others else {}
        report = tarmac.dedup(source, path / "keep.txt", threshold=threshold, **options)
        pairs = read_pairs(str(path / "keep.txt.dedup" / "pairs.parquet"))
        keys = kept(path / "keep.txt")
    assert report.read == count == report.written + report.dropped
    assert report.dropped == report.exact + report.near
    assert len(keys) == report.written == len(set(keys))
    found_pairs = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    first_of = {}
    for number, vector in enumerate(vectors):
        first_of[number] = first_of.setdefault((vector + 0).tobytes(), number)
    node_pairs = {tuple(sorted((first_of[a], first_of[b]))) for a, b in sure if first_of[a] != first_of[b]}
    assert {pair for pair in node_pairs if pair[0] < count} <= found_pairs
    if threshold < 1:
        assert found_pairs <= set(expected)
    stays = {int(key) for key in keys} | set(range(count, len(vectors)))
    assert not [pair for pair in sure if set(pair) <= stays and min(pair) < count]
    near = {}
    for one, other in expected:
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    if threshold < 1:
        assert all(near[number] & stays for number in range(count) if number not in stays)


@pytest.mark.long
def test_another_threshold_is_what_computing_it_gives(tmp_path):
    source = write(tmp_path / "source", clusters(3000, 32))
    tarmac.dedup(source, tmp_path / "keep.txt", threshold=0.9)
    for threshold in (0.93, 0.97, 0.9):
        again = tarmac.dedup(source, tmp_path / "keep.txt", threshold=threshold)
        fresh = tarmac.dedup(source, tmp_path / f"{threshold}.txt", threshold=threshold)
        assert again.reused
        assert not fresh.reused
        assert again.to_dict() | {"seconds": 0, "reused": False, "output": ""} == fresh.to_dict() | {
            "seconds": 0, "output": "",
        }  # fmt: skip
        assert (tmp_path / "keep.txt").read_bytes() == (tmp_path / f"{threshold}.txt").read_bytes()
        names = [f"{name}.txt.dedup/groups.parquet" for name in ("keep", threshold)]
        assert (tmp_path / names[0]).read_bytes() == (tmp_path / names[1]).read_bytes()
    lower = tarmac.dedup(source, tmp_path / "keep.txt", threshold=0.85)
    assert not lower.reused
    assert lower.written < again.written


def test_chains(tmp_path):
    """Of a, b and c, where b is near both and a is not near c, the first and the last stay."""
    angles = np.radians([0, 14, 28, 90])
    source = write(tmp_path / "source", np.stack([np.cos(angles), np.sin(angles)], 1))
    report = tarmac.dedup(source, tmp_path / "keep.txt")
    assert kept(tmp_path / "keep.txt") == ["000000", "000002", "000003"]
    assert (report.groups, report.near, report.pairs) == (1, 1, 2)
    assert why(tmp_path / "keep.txt", "000000").members[-1].path == ["000000", "000001", "000002"]
