"""What clip-retrieval writes is read, and what tarmac writes is what clip-retrieval would read."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from embedding.models import HERE, letters
from embedding.shards import captions
from tarmac.errors import IndexDamaged, NotFound, UsageError


def write_as_clip_retrieval(
    folder: Path, parts: list[int], dimension: int, kinds: tuple[str, ...], seed: int
):
    """Write what its NumpyWriter writes: a file for each kind and partition, in float16, joined by position alone."""
    rng, digits = np.random.default_rng(seed), len(str(max(len(parts) - 1, 0)))
    vectors = {kind: [] for kind in kinds}
    rows = []
    for number, count in enumerate(parts):
        name = f"{number:0{digits}d}"
        for kind in kinds:
            (folder / f"{kind}_emb").mkdir(exist_ok=True)
            array = rng.normal(size=(count, dimension))
            array = (array / np.linalg.norm(array, axis=1, keepdims=True)).astype(np.float16)
            np.save(folder / f"{kind}_emb/{kind}_emb_{name}.npy", array)
            vectors[kind].append(array)
        own = [
            {
                "image_path": f"{number:02d}{row:07d}",
                "caption": f"text {row}",
                "similarity": row / 3,
                "url": f"u{row}",
            }
            for row in range(count)
        ]
        (folder / "metadata").mkdir(exist_ok=True)
        table = pa.Table.from_pylist(own) if own else pa.table({"image_path": pa.array([], pa.string())})
        pq.write_table(table, folder / f"metadata/metadata_{name}.parquet")
        rows += own
    return {kind: np.concatenate(arrays) for kind, arrays in vectors.items()}, rows


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    dimension=st.integers(1, 40),
    kinds=st.sampled_from([("img",), ("text",), ("img", "text")]),
    seed=st.integers(0, 1000),
)
def test_round_trips(parts, dimension, kinds, seed):
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        vectors, rows = write_as_clip_retrieval(folder, parts, dimension, kinds, seed)
        for kind in kinds:
            read = tarmac.Embeddings(folder, kind=kind)
            assert (len(read), read.dimension, read.kinds) == (sum(parts), dimension, kinds)
            assert np.array_equal(read[:].astype(np.float16), vectors[kind])
            assert read.keys() == [row["image_path"] for row in rows]
            chosen = np.random.default_rng(seed).integers(0, len(read), 5)
            assert np.array_equal(read[chosen].astype(np.float16), vectors[kind][chosen])
            names = ["key", "caption", "similarity", "url"]
            expected = [
                {"key": rows[n]["image_path"], **{name: rows[n][name] for name in names[1:]}} for n in chosen
            ]
            assert read.metadata(chosen, names).to_pylist() == expected


def test_what_embed_writes_is_joined_by_position(tmp_path):
    """A reader that knows nothing of the manifest gets the same: sorted names, and rows that belong together."""
    shards = captions(tmp_path, *[3] * 12)
    tarmac.embed(shards, tmp_path / "out", model=f"{HERE}:Letters", text="txt", jobs=1)
    names = sorted((tmp_path / "out/text_emb").iterdir())
    vectors = np.concatenate([np.load(name) for name in names])
    table = pa.concat_tables([pq.read_table(name) for name in sorted((tmp_path / "out/metadata").iterdir())])
    ours = tarmac.Embeddings(tmp_path / "out")
    assert np.array_equal(ours[:].astype(np.float16), vectors)
    assert table.column("image_path").to_pylist() == ours.keys() == [f"{number:06d}" for number in range(36)]
    (tmp_path / "out/embeddings.json").unlink()
    listed = tarmac.Embeddings(tmp_path / "out")
    assert listed.keys() == ours.keys()
    assert np.array_equal(listed[:], ours[:])


def test_directories_that_are_not_whole(tmp_path):
    with pytest.raises(NotFound):
        tarmac.Embeddings(tmp_path)
    with pytest.raises(UsageError):
        tarmac.Embeddings("s3://bucket/vectors")
    write_as_clip_retrieval(tmp_path, [3, 4], 8, ("img", "text"), 1)
    with pytest.raises(UsageError, match="img or text"):
        tarmac.Embeddings(tmp_path, kind="sound")
    whole = (tmp_path / "img_emb/img_emb_1.npy").read_bytes()
    (tmp_path / "img_emb/img_emb_1.npy").write_bytes(whole[:-3])
    with pytest.raises(IndexDamaged):
        tarmac.Embeddings(tmp_path)
    np.save(tmp_path / "img_emb/img_emb_1.npy", np.zeros((5, 8), np.float16))
    with pytest.raises(IndexDamaged, match="expected 4 vectors"):
        tarmac.Embeddings(tmp_path)
    (tmp_path / "img_emb/img_emb_1.npy").unlink()
    with pytest.raises(IndexDamaged, match="different parts"):
        tarmac.Embeddings(tmp_path)


def test_a_manifest_notices_other_files(tmp_path):
    shards = captions(tmp_path, 3, 3)
    tarmac.embed(shards, tmp_path / "out", model=f"{HERE}:Letters", text="txt", jobs=1)
    np.save(tmp_path / "out/text_emb/text_emb_1.npy", np.zeros((2, 32), np.float16))
    with pytest.raises(IndexDamaged, match="expected 3 vectors"):
        tarmac.Embeddings(tmp_path / "out")[5]
    facts = json.loads((tmp_path / "out/embeddings.json").read_text())
    assert facts["parts"][1]["source"] == shards[1]
    (tmp_path / "out/metadata/metadata_0.parquet").unlink()
    with pytest.raises(NotFound):
        tarmac.Embeddings(tmp_path / "out").keys()


def test_keys_and_numbers(tmp_path):
    shards = captions(tmp_path, 10, 10)
    tarmac.embed(shards, tmp_path / "out", model=f"{HERE}:Letters", text="txt", jobs=1)
    vectors = tarmac.Embeddings(tmp_path / "out")
    assert np.array_equal(vectors["000013"], vectors[13])
    assert np.array_equal(vectors[-1], vectors[19])
    assert np.array_equal(vectors[[5, 15, 0]], vectors[:][[5, 15, 0]])
    assert vectors.find(["000019", "no", "000000"]).tolist() == [19, -1, 0]
    assert np.array_equal(vectors[["000013", "000002"]], vectors[[13, 2]])
    assert np.array_equal(vectors[vectors.where("key >= '000017'")], vectors[17:])
    assert vectors.keys(vectors.where("key < '000002'")) == ["000000", "000001"]
    assert vectors[np.zeros(20, bool)].shape == (0, 32)
    assert [key in vectors for key in ("000019", "no", 7)] == [True, False, False]
    with pytest.raises(KeyError):
        vectors["no"]
    with pytest.raises(IndexError):
        vectors[20]
    for wrong in (1.5, None, [True], np.ones(19, bool), [0.5, 1.5], b"000013"):
        with pytest.raises(UsageError, match="expected numbers, keys or a mask of 20 values"):
            vectors[wrong]
    assert vectors.metadata([3], "caption").column_names == ["caption"]
    with pytest.raises(UsageError, match="no column 'captoin'"):
        vectors.metadata([3], ["key", "captoin"])
    assert [start for start, _ in vectors.blocks(4)] == [0, 4, 8, 10, 14, 18]
    assert "20 vectors of 32 numbers" in repr(vectors)


def test_keys_that_several_samples_have(tmp_path):
    """Shards often number their samples from zero: the vector is that of the shard, or there is an error."""
    texts = {}
    for name in ("a", "b"):
        with tarmac.TarWriter(tmp_path / f"{name}.tar") as writer:
            for number in range(4):
                texts[f"{tmp_path}/{name}.tar", str(number)] = f"{name * 5} {number}"
                writer.write({"__key__": str(number), "txt": f"{name * 5} {number}"})
        with tarmac.TarWriter(tmp_path / f"other-{name}.tar") as writer:
            writer.write({"__key__": "3", "txt": "x"})
    tarmac.embed(f"{tmp_path}/?.tar", tmp_path / "out", model=f"{HERE}:Letters", text="txt", jobs=1)
    vectors = tarmac.Embeddings(tmp_path / "out")
    samples = list(tarmac.Dataset(f"{tmp_path}/?.tar").map(vectors.add))
    assert len(samples) == 8
    for sample in samples:
        counts = letters(texts[sample["__url__"], sample["__key__"]])
        assert np.allclose(sample["text_emb"], counts / np.linalg.norm(counts), atol=1e-3)
    assert vectors.find(["3", "4", "0"]).tolist() == [3, -1, 0]
    assert vectors.find_all("3").tolist() == [3, 7]
    with pytest.raises(UsageError, match="2 vectors have the key '3'"):
        vectors["3"]
    with pytest.raises(UsageError, match="2 vectors have the key '3'"):
        list(tarmac.Dataset(f"{tmp_path}/other-a.tar").map(vectors.add))


def write_one(folder: Path, vectors: np.ndarray, **columns: list) -> Path:
    """Write one part with these columns."""
    for name in ("img_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    np.save(folder / "img_emb/img_emb_0.npy", vectors)
    pq.write_table(pa.table(columns), folder / "metadata/metadata_0.parquet")
    return folder


def test_keys_that_are_numbers(tmp_path):
    vectors = np.eye(5, dtype=np.float16)
    one = write_one(tmp_path / "one", vectors, image_path=list(range(5)), caption=[f"c{n}" for n in range(5)])
    two = write_one(tmp_path / "two", vectors, key=list("vwxyz"), caption=list(range(5)), shard=[1] * 5)
    embeddings = tarmac.Embeddings(one)
    assert embeddings.keys() == embeddings.keys(range(5)) == list("01234")
    assert np.array_equal(embeddings["3"], vectors[3])
    tarmac.Knn.build(one, tmp_path / "index")
    knn = tarmac.Knn(tmp_path / "index")
    knn.add(two)
    hits = knn.query(vectors=vectors[3], k=2)
    assert {(hit.key, hit.caption, hit.shard) for hit in hits} == {("3", "c3", ""), ("y", "3", "1")}
    assert knn.query(key="3", k=1)[0].key == "y"
    assert tarmac.dedup([one, two], tmp_path / "keep.txt").written == 5
    assert (tmp_path / "keep.txt").read_text().split() == list("01234")


def test_columns_of_other_types_in_other_parts(tmp_path):
    (tmp_path / "img_emb").mkdir()
    (tmp_path / "metadata").mkdir()
    for number, value in enumerate((3, 4.5, "six", None)):
        np.save(tmp_path / f"img_emb/img_emb_{number}.npy", np.ones((1, 4), np.float16))
        table = pa.table({"image_path": [str(number)], "x": [value]})
        pq.write_table(table, tmp_path / f"metadata/metadata_{number}.parquet")
    vectors = tarmac.Embeddings(tmp_path)
    assert vectors.metadata([2, 0, 3, 1], ["x"]).column("x").to_pylist() == ["six", "3", None, "4.5"]
    assert vectors.metadata([1, 0], ["x"]).column("x").to_pylist() == [4.5, 3.0]
    assert vectors.where("x = 'six'").tolist() == [False, False, True, False]
