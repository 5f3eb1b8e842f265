"""Scores of vectors as columns of the index of the samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tarmac
from embedding.models import HERE, Longest
from embedding.shards import captions, written
from tarmac.errors import BadCondition, UsageError


def embed(shards, output, **options):
    return tarmac.embed(shards, output, **{"model": f"{HERE}:Letters", "text": "txt", "jobs": 1} | options)


def largest(folder):
    """Return the largest number of each vector, as it is stored."""
    return tarmac.Embeddings(folder)[:].max(axis=1)


def test_conditions_use_scores(tmp_path):
    shards = captions(tmp_path, 20, 20)
    before = [Path(shard).read_bytes() for shard in shards]
    report = embed(shards, tmp_path / "out", score=Longest)
    assert report.notes["samples_scored"] == 40
    scores = largest(tmp_path / "out")
    middle = float(np.median(scores))
    chosen = tarmac.Dataset(shards).where(f"largest > {middle}")
    assert [int(sample["__key__"]) for sample in chosen] == np.flatnonzero(scores > middle).tolist()
    # Other columns stay, and a score is computed again without embedding again.
    again = embed(shards, tmp_path / "out", score=f"{HERE}:Longest")
    assert (again.kept, again.notes["samples_scored"]) == (2, 40)
    copied = tarmac.copy(shards, f"{tmp_path}/copy.tar", where=f"largest > {middle}")
    assert copied.written == len(chosen)
    assert [Path(shard).read_bytes() for shard in shards] == before


def test_searches_and_dedup_use_scores(tmp_path):
    """Scores are beside the vectors, too, as columns of their metadata."""
    shards = captions(tmp_path, 20, 20)
    embed(shards, tmp_path / "out", score=Longest)
    embed(shards, tmp_path / "out", score=f"{HERE}:last_number")
    vectors, scores = tarmac.Embeddings(tmp_path / "out"), largest(tmp_path / "out")
    middle = float(np.median(scores))
    assert np.array_equal(vectors.where(f"largest > {middle}"), scores > middle)
    assert vectors.metadata([7, 30], ["last", "key"]).to_pylist() == [
        {"last": float(vectors[number][-1]), "key": f"{number:06d}"} for number in (7, 30)
    ]
    tarmac.Knn.build(tmp_path / "out", tmp_path / "index")
    hits = tarmac.Knn(tmp_path / "index").query(key="000007", k=40, where=f"largest > {middle}")
    assert {hit.number for hit in hits} == {*np.flatnonzero(scores > middle).tolist()} - {7}
    tarmac.dedup(tmp_path / "out", tmp_path / "keep.txt", threshold=0.5, score="largest")
    best = int(np.argmax(scores))
    assert f"{best:06d}" in (tmp_path / "keep.txt").read_text().split()


def test_scores_of_vectors_that_were_replaced(tmp_path):
    shards = captions(tmp_path, 20)
    embed(shards, tmp_path / "out", score=Longest)
    assert "largest" in tarmac.Embeddings(tmp_path / "out").parts[0].columns
    embed(shards, tmp_path / "out", model=f"{HERE}:Wide", overwrite=True)
    assert "largest" not in tarmac.Embeddings(tmp_path / "out").parts[0].columns
    embed(shards, tmp_path / "out", model=f"{HERE}:Wide", score=Longest)
    assert tarmac.Embeddings(tmp_path / "out").where("at >= 0").all()


def test_a_manifest_stays_valid(tmp_path):
    shards = captions(tmp_path, 20, 20)
    tarmac.index(shards, f"{tmp_path}/train.json", meta=["txt"])
    report = embed(f"{tmp_path}/train.json", tmp_path / "out", score=Longest, on_error="skip")
    assert report.notes["samples_scored"] == 40
    dataset = tarmac.Dataset(f"{tmp_path}/train.json")
    assert len(dataset.where("largest > 0 and txt != ''")) == 40
    assert len(dataset.where("largest > 1")) == 0


def test_samples_without_a_vector_have_no_score(tmp_path):
    shards = captions(tmp_path, 20, 20)
    embed(shards, tmp_path / "out", score=Longest, keys=["000003", "000007"])
    assert [sample["__key__"] for sample in tarmac.Dataset(shards[:1]).where("largest > 0")] == [
        "000003",
        "000007",
    ]
    with pytest.raises(BadCondition):
        tarmac.Dataset(shards[1:]).where("largest > 0")


def test_indexing_again_does_not_lose_scores(tmp_path):
    shards = captions(tmp_path, 20)
    embed(shards, tmp_path / "out", score=Longest)
    tarmac.index(shards, f"{tmp_path}/train.json", meta=["txt"])
    dataset = tarmac.Dataset(f"{tmp_path}/train.json")
    assert len(dataset.where("largest > 0 and txt != ''")) == 20
    copied = tarmac.copy(shards, f"{tmp_path}/copy.tar", where="largest > 0 and txt.size > 0")
    assert copied.written == 20
    # Of a shard that has changed, the scores are those of other samples.
    with tarmac.TarWriter(shards[0], encoder=False) as writer:
        writer.write({"__key__": "other", "txt": b"x"})
    with pytest.raises(BadCondition, match="largest"):
        tarmac.index(shards, f"{tmp_path}/train.json")
    tarmac.index(shards, f"{tmp_path}/train.json", drop=True)
    assert len(tarmac.Dataset(f"{tmp_path}/train.json")) == 1


@pytest.mark.parametrize("name", ["score_of_no_columns", "score_of_shards", "constant", "caption", "absent"])
def test_scores_that_cannot_be_used(tmp_path, name):
    shards = captions(tmp_path, 5)
    with pytest.raises(UsageError):
        embed(shards, tmp_path / "out", score=f"{HERE}:{name}")


def test_scores_need_a_function_and_local_vectors(tmp_path):
    shards = captions(tmp_path, 5)
    with pytest.raises(UsageError):
        embed(shards, tmp_path / "out", score=7)
    with pytest.raises(UsageError, match="local"):
        embed(shards, "s3://bucket/out", score=Longest)
    assert not (tmp_path / "out").exists() or not written(tmp_path / "out")
