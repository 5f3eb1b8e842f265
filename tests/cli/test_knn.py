"""`tarmac knn`: build, add and query."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cli.running import run
from harness.vectors import clusters, write_embeddings


@pytest.fixture
def embeddings(tmp_path):
    vectors = clusters(1500, 16)
    columns = {"caption": [f"caption {number}" for number in range(1500)], "width": list(range(1500))}
    return write_embeddings(tmp_path / "embeddings", vectors, columns=columns)


def test_build_add_and_query(embeddings, tmp_path, capsys):
    index = tmp_path / "index"
    status, stdout, stderr = run(
        capsys, "knn", "build", embeddings, "-o", index, "--max-memory", "60KB", "--json"
    )
    assert status == 0, stderr
    facts = json.loads(stdout)
    assert facts["recall"]["low"] >= 0.95
    assert facts["choice"]["kind"] == "rabitq"

    columns = {"caption": ["new"] * 50, "width": [5000] * 50}
    write_embeddings(embeddings, clusters(50, 16, seed=2), columns=columns, first=1500)
    status, stdout, _ = run(capsys, "knn", "add", index)
    assert status == 0
    assert stdout.startswith("knn: 50 vectors added, 1550 now; recall@10")
    assert json.loads(run(capsys, "knn", "add", index, "--json")[1])["added"] == 0

    status, stdout, _ = run(
        capsys, "knn", "query", index, "--key", "000007", "-k", "3", "--where", "width < 900"
    )
    lines = [line.split("\t") for line in stdout.splitlines()]
    assert (status, len(lines)) == (0, 3)
    assert all(line[2] == f"caption {int(line[1])}" and int(line[1]) < 900 for line in lines)
    np.save(tmp_path / "q.npy", clusters(1500, 16)[:2])
    status, stdout, _ = run(
        capsys, "knn", "query", index, "--vectors", tmp_path / "q.npy", "-k", "2", "--json"
    )
    hits = [json.loads(line) for line in stdout.splitlines()]
    assert [hit["query"] for hit in hits] == [0, 0, 1, 1]
    assert [hits[0]["key"], hits[2]["key"]] == ["000000", "000001"]


def test_mistakes(embeddings, tmp_path, capsys):
    index = tmp_path / "index"
    assert run(capsys, "knn", "query", index, "--key", "a")[0] == 3  # there is none
    status, _, stderr = run(capsys, "knn", "build", embeddings, "-o", index, "--max-memory", "1KB")
    assert status == 2
    hint = stderr.strip().partition("Try: --max-memory ")[2].removesuffix(".")
    status, _, stderr = run(capsys, "knn", "build", embeddings, "-o", index, "--max-memory", hint)
    assert status == 0, stderr
    status, _, stderr = run(capsys, "knn", "query", index)
    assert status == 2
    assert "expected one of text, image, key and vectors" in stderr
    status, _, stderr = run(capsys, "knn", "query", index, "--text", "a dog")
    assert status == 2
    assert "Try: --vectors, made by the same model." in stderr
