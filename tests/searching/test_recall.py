"""The recall that was asked for is there, on vectors that the index has not seen, with every kind of index."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tarmac
from harness.vectors import clusters, write_embeddings
from searching.data import COUNT, HELD_OUT, KINDS, brute_force, choice_of, recall

pytestmark = pytest.mark.long

TARGET = 0.95
_REAL = pytest.mark.long
CASES = [
    *((kind, index) for kind in ("clusters", "sphere") for index in ("flat", "hnsw", "ivf", "rabitq1")),
    *(
        pytest.param(kind, index, marks=_REAL)
        for kind in ("captions", "pictures")
        for index in ("hnsw", "rabitq1")
    ),
]


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory):
    written = {}

    def directory(kind):
        if kind not in written:
            vectors = KINDS[kind]()
            assert len(vectors) == COUNT + HELD_OUT
            path = write_embeddings(tmp_path_factory.mktemp(kind) / "embeddings", vectors[:COUNT])
            truth = brute_force(vectors[COUNT:], vectors[:COUNT], 10)
            written[kind] = path, vectors, truth
        return written[kind]

    return directory


def prefer_graphs(monkeypatch, index):
    """Have a graph chosen for few vectors, too: it is larger than all of them, if they are short."""
    if index == "hnsw":
        monkeypatch.setattr("tarmac.searching.choice.FLAT", 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries of the models
@pytest.mark.parametrize(("kind", "index"), CASES)
def test_the_target_is_met_on_held_out_queries(embeddings, tmp_path, monkeypatch, kind, index):
    path, vectors, truth = embeddings(kind)
    prefer_graphs(monkeypatch, index)
    choice = choice_of(index, COUNT, vectors.shape[1])

    report = tarmac.Knn.build(path, tmp_path / "index", target_recall=TARGET, max_memory=choice.memory)
    knn = tarmac.Knn(tmp_path / "index")
    scores, numbers = knn.search(vectors[COUNT:], 10)

    assert knn.facts.choice == choice
    assert recall(numbers, truth) >= TARGET
    assert report.facts.recall.low >= TARGET
    assert report.facts.recall.queries == (
        1000 if index != "hnsw" else 300
    )  # those that were not in the graph
    assert knn.facts.recall == report.facts.recall
    assert (tmp_path / "index" / "index.faiss").stat().st_size <= choice.memory * 1.02 + 4096
    exact = np.einsum("qd,qkd->qk", vectors[COUNT:], knn.vectors.take(numbers).reshape(*numbers.shape, -1))
    np.testing.assert_allclose(scores, exact, atol=2e-3)
    assert (np.diff(scores, axis=1) <= 1e-6).all()


@pytest.mark.parametrize("index", ["flat", "hnsw", "ivf", "rabitq1"])
def test_squared_distances_of_vectors_of_any_length(tmp_path, monkeypatch, index):
    prefer_graphs(monkeypatch, index)
    rng = np.random.default_rng(4)
    vectors = clusters(2200, 32) * rng.uniform(0.5, 3, (2200, 1)).astype(np.float32)
    path = write_embeddings(tmp_path / "embeddings", vectors[:2000])
    truth = brute_force(vectors[2000:], vectors[:2000], 10, "l2")

    memory = choice_of(index, 2000, 32).memory
    tarmac.Knn.build(path, tmp_path / "index", metric="l2", max_memory=memory)
    scores, numbers = tarmac.Knn(tmp_path / "index").search(vectors[2000:], 10)

    assert recall(numbers, truth) >= 0.93  # of 200 queries
    assert (np.diff(scores, axis=1) >= -1e-5).all()
    nearest = vectors[numbers[:, 0]].astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(scores[:, 0], ((vectors[2000:] - nearest) ** 2).sum(1), rtol=1e-2, atol=2e-2)


def test_more_bits_where_one_does_not_reach_the_target(tmp_path, monkeypatch):
    vectors = KINDS["sphere"]()[:COUNT]
    path = write_embeddings(tmp_path / "embeddings", vectors)
    monkeypatch.setattr("tarmac.searching.measure.MOST_CANDIDATES", 60)
    four = choice_of("rabitq4", COUNT, 48)

    report = tarmac.Knn.build(path, tmp_path / "index", max_memory=four.memory)

    assert report.facts.choice == four
    assert report.facts.recall.low >= TARGET
    assert not (tmp_path / "index" / ".tarmac" / "parts").exists()


def test_neighbours_with_the_same_score_count_alike(tmp_path):
    """Of a hundred equal captions any ten are right."""
    vectors = np.repeat(clusters(30, 64, groups=30), 100, axis=0)
    path = write_embeddings(tmp_path / "embeddings", vectors)

    for index in ("ivf", "rabitq1"):
        memory = choice_of(index, len(vectors), 64).memory
        report = tarmac.Knn.build(path, tmp_path / index, max_memory=memory)

        assert report.facts.choice.name == index
        assert report.facts.recall.low >= TARGET
        _, numbers = tarmac.Knn(tmp_path / index).search(vectors[::100], 10)
        assert (numbers // 100 == np.arange(30)[:, None]).mean() >= 0.9


def test_the_measured_recall_and_latency_are_stored_and_printed(tmp_path):
    path = write_embeddings(tmp_path / "embeddings", clusters(1500, 32))
    report = tarmac.Knn.build(path, tmp_path / "index", max_memory=choice_of("rabitq1", 1500, 32).memory)

    stored = json.loads((tmp_path / "index" / "knn.json").read_text())

    assert stored["recall"]["low"] <= stored["recall"]["mean"] <= stored["recall"]["high"]
    assert 0 < stored["latency_ms"]["p50"] <= stored["latency_ms"]["p95"]
    assert stored["memory_bytes"] == (tmp_path / "index" / "index.faiss").stat().st_size
    assert f"{stored['recall']['mean']:.4f}" in str(report)
    assert "codes of 1 bit" in str(report)
    assert report.to_dict()["recall"] == stored["recall"]
