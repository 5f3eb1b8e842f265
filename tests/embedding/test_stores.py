"""Shards and embeddings in an object store are what they are in directories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tarmac
from embedding.models import HERE, Letters
from embedding.shards import captions, written
from harness.servers import required, seaweed_s3
from tarmac.storage import StorageOptions, list_objects, read_all, write_all

FOLDER = "s3://vectors/job"


class Stops(Letters):
    """Letters that stop in the middle of the second shard, once."""

    seen = 0

    def encode_texts(self, texts):
        Stops.seen += len(texts)
        if 40 < Stops.seen < 60:
            Stops.seen = 100
            raise KeyboardInterrupt
        return super().encode_texts(texts)


@pytest.mark.processes
def test_embeddings_in_a_store(tmp_path):
    shards = captions(tmp_path, 30, 30, 7)
    remote = [f"{FOLDER}/{Path(shard).name}" for shard in shards]
    options = {"model": Stops, "text": "txt", "jobs": 1, "batch_size": 4}
    with required(seaweed_s3()) as server:
        server.make_bucket("vectors")
        store = StorageOptions(config=server.config())
        for shard, url in zip(shards, remote, strict=True):
            write_all(url, Path(shard).read_bytes(), store)
        options |= {"storage": store, "checkpoint_samples": 4}
        with pytest.raises(KeyboardInterrupt):
            tarmac.embed(remote, f"{FOLDER}/out", **options)
        for kept in (1, 3):
            report = tarmac.embed(remote, f"{FOLDER}/out", **options)
            assert (report.written, report.kept) == (67, kept)
        tarmac.embed(remote, tmp_path / "here", **options)
        urls = [url for url, _ in list_objects(f"{FOLDER}/out/", store)]
        there = {
            url.partition("/out/")[2]: bytes(read_all(url, store)) for url in urls if "/.tarmac/" not in url
        }
    assert there == written(tmp_path / "here")
    vectors = tarmac.Embeddings(tmp_path / "here")
    assert vectors.keys() == [f"{number:06d}" for number in range(67)]
    assert vectors.metadata([66], "shard").to_pylist() == [{"shard": remote[2]}]
    tarmac.embed(shards, tmp_path / "local", model=f"{HERE}:Letters", text="txt", jobs=1, batch_size=4)
    assert np.array_equal(tarmac.Embeddings(tmp_path / "local")[:], vectors[:])


@pytest.mark.processes
def test_scores_of_shards_in_a_store(tmp_path):
    """The manifest names the indexes, which get the scores."""
    shards = captions(tmp_path, 12, 9)
    with required(seaweed_s3()) as server:
        server.make_bucket("vectors")
        store = StorageOptions(config=server.config())
        remote = [f"{FOLDER}/{Path(shard).name}" for shard in shards]
        for shard, url in zip(shards, remote, strict=True):
            write_all(url, Path(shard).read_bytes(), store)
        tarmac.index(remote, f"{FOLDER}/train.json", storage=store)
        report = tarmac.embed(
            f"{FOLDER}/train.json", tmp_path / "out", model=f"{HERE}:Letters", text="txt", jobs=1,
            score=f"{HERE}:Longest", storage=store,
        )  # fmt: skip
        assert report.notes["samples_scored"] == 21
        scores = tarmac.Embeddings(tmp_path / "out")[:].max(axis=1)
        middle = float(np.median(scores))
        chosen = tarmac.Dataset(f"{FOLDER}/train.json", storage=store).where(f"largest > {middle}")
        assert [int(key) for key in chosen.keys()]  # noqa: SIM118 - of a dataset == np.flatnonzero(scores > middle).tolist()
