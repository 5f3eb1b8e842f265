"""Hints of dedup."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import tarmac
from deduplicating.vectors import write
from harness.hints import follows, hinted
from tarmac.deduplicating.why import why

PAIRS = "keep.txt.dedup/pairs.parquet"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def source(home):
    return write(home / "source", np.eye(3)[[0, 0, 1, 2]], model="m", quality=[1.0, 2.0, 3.0, 4.0])


def shard(name, *texts):
    with tarmac.TarWriter(name) as writer:
        for number, text in enumerate(texts):
            writer.write({"__key__": str(number), "txt": text})
    return name


@follows("a higher `threshold`, or a larger `max_pairs`: a pair takes about 60 bytes of memory.")
def test_too_many_pairs(home):
    near = np.stack([np.cos(angles := np.radians([0, 10, 20])), np.sin(angles)], 1)
    source = write(home / "near", near)
    with hinted("a higher `threshold`, or a larger `max_pairs`: a pair takes about 60 bytes of memory."):
        tarmac.dedup(source, "keep.txt", max_pairs=1)
    assert tarmac.dedup(source, "higher.txt", max_pairs=1, threshold=0.999).pairs == 0
    assert tarmac.dedup(source, "keep.txt", max_pairs=2).pairs == 2


@follows("remove it, and run tarmac dedup again.")
def test_a_damaged_record(source):
    tarmac.dedup(source, "keep.txt")
    Path(PAIRS).write_bytes(b"PAR1")
    with hinted("remove it, and run tarmac dedup again."):
        tarmac.dedup(source, "keep.txt")
    shutil.rmtree("keep.txt.dedup")
    Path("keep.txt").unlink()
    assert tarmac.dedup(source, "keep.txt").written == 3


@follows("`score`, the name of a column.", "`score` without `keep`.")
def test_keep_and_score(source):
    with hinted("`score`, the name of a column."):
        tarmac.dedup(source, "keep.txt", keep="score")
    assert tarmac.dedup(source, "keep.txt", keep="score", score="quality").written == 3
    with hinted("`score` without `keep`."):
        tarmac.dedup(source, "keep.txt", keep="first", score="quality")
    tarmac.dedup(source, "keep.txt", score="quality")
    assert Path("keep.txt").read_text().split() == ["000001", "000002", "000003"]


@follows("`text`, what to compare instead.", "`kind` without `text`.")
def test_options_of_what_is_not_compared(source):
    with hinted("`text`, what to compare instead."):
        tarmac.dedup(source, "keep.txt", shingle="words:2")
    assert tarmac.dedup(source, "keep.txt", shingle="words:2", text="key").written == 4
    with hinted("`kind` without `text`."):
        tarmac.dedup(source, "vectors.txt", kind="img", text="key")
    assert tarmac.dedup(source, "vectors.txt", kind="img").written == 3


@follows("the directory of the embeddings.")
def test_an_index_that_does_not_name_its_embeddings(source, home):
    (home / "index").mkdir()
    (home / "index" / "knn.json").write_text("[]")
    with hinted("the directory of the embeddings."):
        tarmac.dedup("index", "keep.txt")
    assert tarmac.dedup(source, "keep.txt").written == 3


@follows("tarmac copy SHARDS -o DIR/ --rekey '{i:09d}' makes keys unique, before tarmac embed.")
def test_keys_that_occur_twice(home):
    shards = [shard("a.tar", "one text"), shard("b.tar", "another one")]
    with hinted("tarmac copy SHARDS -o DIR/ --rekey '{i:09d}' makes keys unique, before tarmac embed."):
        tarmac.dedup(shards, "keep.txt", text="txt")
    tarmac.copy(shards, "unique/", rekey="{i:09d}")
    assert tarmac.dedup("unique/*.tar", "unique.txt", text="txt").written == 2


@follows("tarmac embed with the model of the source.")
def test_vectors_of_another_model(source, home):
    other = write(home / "other", np.eye(3), model="n")
    with hinted("tarmac embed with the model of the source."):
        tarmac.dedup(source, "keep.txt", against=other)
    again = write(home / "again", np.eye(3)[:1], model="m")
    assert tarmac.dedup(source, "keep.txt", against=again).leaked == 2


@follows("tarmac embed SHARDS -o DIR, or `text` to compare the texts of shards.")
def test_shards_without_vectors(home):
    shard("x.tar", "one text", "One  text")
    with hinted("tarmac embed SHARDS -o DIR, or `text` to compare the texts of shards."):
        tarmac.dedup("x.tar", "keep.txt")
    assert tarmac.dedup("x.tar", "keep.txt", text="txt").written == 1


@follows("a local file, which can be copied afterwards.")
def test_a_list_in_a_store(source):
    with hinted("a local file, which can be copied afterwards."):
        tarmac.dedup(source, "s3://bucket/keep.txt")
    assert tarmac.dedup(source, "keep.txt").written == 3


@follows("tarmac dedup SOURCE -o KEYS, with this name.")
def test_nothing_is_recorded(source):
    with hinted("tarmac dedup SOURCE -o KEYS, with this name."):
        why("keep.txt", "000001")
    tarmac.dedup(source, "keep.txt")
    assert why("keep.txt", "000001").asked.kept == "000000"
