"""Hints of embedding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tarmac
from embedding.models import HERE
from harness.hints import follows, hinted
from harness.vectors import write_embeddings
from tarmac.embedding.models import load_model
from tools.shards import make

pytestmark = pytest.mark.usefixtures("home")
STUBS = str(Path(__file__).parents[1] / "harness" / "stubs")


@pytest.fixture
def shards(tmp_path):
    """Two shards of three samples."""
    return make(tmp_path, 3, 3)


def embed(shards, output, **options):
    return tarmac.embed(shards, output, text="txt", jobs=1, **{"model": f"{HERE}:Letters"} | options)


@follows("copy the directory to this machine.", "tarmac embed SHARDS -o DIR.")
def test_directories_without_vectors(shards, tmp_path):
    with hinted("copy the directory to this machine."):
        tarmac.Embeddings("s3://bucket/vectors/")
    with hinted("tarmac embed SHARDS -o DIR."):
        tarmac.Embeddings(tmp_path)
    embed(shards, tmp_path)
    assert len(tarmac.Embeddings(tmp_path)) == 6


@follows("tarmac copy - -o x.tar, and x.tar.")
def test_standard_input(shards, tmp_path):
    with hinted("tarmac copy - -o x.tar, and x.tar."):
        embed("-", tmp_path / "out")
    data = Path(shards[0]).read_bytes()
    command = [sys.executable, "-m", "tarmac", "copy", "-", "-o", str(tmp_path / "x.tar")]
    subprocess.run(command, input=data, check=True, capture_output=True)
    assert embed(tmp_path / "x.tar", tmp_path / "out").written == 3


@follows("`overwrite` embeds all shards with the same model.")
def test_parts_of_different_dimensions(shards, tmp_path, monkeypatch):
    model = f"{HERE}:Changing"
    embed(shards, tmp_path / "out", model=model)
    (tmp_path / "out/text_emb/text_emb_1.npy").unlink()
    monkeypatch.setenv("LONGER", "1")
    with hinted("`overwrite` embeds all shards with the same model."):
        embed(shards, tmp_path / "out", model=model)
    embed(shards, tmp_path / "out", model=model, overwrite=True)
    assert tarmac.Embeddings(tmp_path / "out").dimension == 33


@follows(
    "copy the directory again, or remove the files of parts that are not whole.",
    "numpy.save(FILE, vectors.astype('float16')).",
    "write the table with a column key, the key of each sample.",
)
def test_embeddings_of_others_that_are_not_whole(tmp_path):
    path = write_embeddings(tmp_path, np.eye(8), part_rows=4)
    (path / "embeddings.json").unlink()
    second = path / "img_emb/img_emb_000001.npy"
    for wrong in (np.eye(3, 8), np.eye(4, 7)):
        np.save(second, wrong.astype(np.float16))
        with hinted("copy the directory again, or remove the files of parts that are not whole."):
            tarmac.Embeddings(path)
    second.unlink()
    assert len(tarmac.Embeddings(path)) == 4
    first = path / "img_emb/img_emb_000000.npy"
    vectors = np.eye(4, 8, dtype=np.int64)
    np.save(first, vectors)
    with hinted("numpy.save(FILE, vectors.astype('float16'))."):
        tarmac.Embeddings(path)
    np.save(first, vectors.astype("float16"))
    table = path / "metadata/metadata_000000.parquet"
    for columns in ({"name": list("abcd")}, {"key": ["a", None, "c", "d"]}, {"key": [b"\xff"] * 4}):
        pq.write_table(pa.table(columns), table)
        with hinted("write the table with a column key, the key of each sample."):
            tarmac.Embeddings(path).keys()
    pq.write_table(pa.table({"key": list("abcd")}), table)
    assert tarmac.Embeddings(path).keys() == list("abcd")


def test_missing_files(shards, tmp_path):
    embed(shards, tmp_path / "out")
    (tmp_path / "out/text_emb/text_emb_1.npy").unlink()
    with hinted("tarmac embed, which makes missing parts again."):
        _ = tarmac.Embeddings(tmp_path / "out")[5]
    embed(shards, tmp_path / "out")
    assert tarmac.Embeddings(tmp_path / "out")[5].shape == (32,)
    np.save(tmp_path / "out/text_emb/text_emb_0.npy", np.zeros((2, 32), np.float16))
    with hinted("tarmac embed, which makes missing parts again."):
        _ = tarmac.Embeddings(tmp_path / "out")[0]
    embed(shards, tmp_path / "out")
    assert tarmac.Embeddings(tmp_path / "out")[0].shape == (32,)


@follows("tarmac embed --score computes scores again.")
def test_damaged_scores(shards, tmp_path):
    embed(shards, tmp_path / "out", score=f"{HERE}:last_number")
    path = tmp_path / "out/scores/scores_1.parquet"
    path.write_bytes(b"damaged")
    with hinted("tarmac embed --score computes scores again."):
        tarmac.Embeddings(tmp_path / "out").where("last > 0")
    embed(shards, tmp_path / "out", score=f"{HERE}:last_number")
    assert len(tarmac.Embeddings(tmp_path / "out").where("last >= 0")) == 6


@follows("{}{}/laion2b_s34b_b79k; nothing behind the slash is a model with random weights.")
def test_names_of_open_clip(monkeypatch):
    pytest.importorskip("ftfy")  # which open_clip needs
    monkeypatch.syspath_prepend(STUBS)
    with hinted("{}{}/laion2b_s34b_b79k; nothing behind the slash is a model with random weights."):
        load_model("open_clip:ViT-B-32")
    assert load_model("open_clip:ViT-B-32/").random
    assert not load_model("open_clip:ViT-B-32/laion2b_s34b_b79k").random
