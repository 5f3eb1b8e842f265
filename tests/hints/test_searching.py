"""Hints of knn."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image

import tarmac
from harness.hints import follows, hinted
from harness.vectors import clusters, sphere, write_embeddings
from hints.commands import done, refused

pytestmark = pytest.mark.usefixtures("home")
AGAIN = "tarmac knn build DIR -o INDEX --overwrite."


@pytest.fixture
def embeddings(tmp_path):
    return write_embeddings(tmp_path / "embeddings", clusters(1200, 16))


@follows("`max_memory` {}.")
def test_memory_for_no_index(embeddings, tmp_path, capsys):
    hint = refused(capsys, "knn", "build", embeddings, "-o", tmp_path / "index", "--max-memory", 1000)
    assert hint.startswith("--max-memory ")
    flag, size = hint.removesuffix(".").split(" ")
    done(capsys, "knn", "build", embeddings, "-o", tmp_path / "index", flag, size)
    with hinted("`max_memory` {}."):
        tarmac.Knn.build(embeddings, tmp_path / "other", max_memory=1000)


@follows("`max_memory` {}, which is enough for any recall.")
def test_memory_for_no_such_recall(tmp_path, monkeypatch):
    """The error says how much memory would do, and it does."""
    path = write_embeddings(tmp_path / "embeddings", sphere(2000, 32))
    monkeypatch.setattr("tarmac.searching.measure.MOST_CANDIDATES", 50)
    with hinted("`max_memory` {}, which is enough for any recall.") as caught:
        tarmac.Knn.build(path, tmp_path / "index", max_memory="80KB", target_recall=0.999)
    assert "codes of 1 bit: recall@10 0." in str(caught.value)
    enough = caught.value.hint.split(" ")[1].removesuffix(",")

    report = tarmac.Knn.build(path, tmp_path / "index", max_memory=enough, target_recall=0.999)

    assert report.facts.recall.low >= 0.999
    assert report.facts.choice.kind == "ivf"


@follows("tarmac knn build DIR -o INDEX.")
def test_no_index(embeddings, tmp_path, capsys):
    (tmp_path / "index").mkdir()
    with hinted("tarmac knn build DIR -o INDEX."):
        tarmac.Knn(tmp_path / "index")
    done(capsys, "knn", "build", embeddings, "-o", tmp_path / "index")
    assert len(tarmac.Knn(tmp_path / "index")) == 1200


@follows("tarmac knn build DIR -o INDEX --overwrite.")
def test_indexes_that_are_damaged_or_stale(embeddings, tmp_path, capsys):
    index = tmp_path / "index"
    done(capsys, "knn", "build", embeddings, "-o", index)

    def broken():
        yield (index / "knn.json").write_text("{}")
        yield (index / "index.faiss").write_bytes(b"short")
        content = (index / "index.faiss").read_bytes()
        yield (index / "index.faiss").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        yield (index / "index.faiss").unlink()
        shutil.rmtree(embeddings)
        yield write_embeddings(embeddings, clusters(300, 16, seed=3))

    for _ in broken():
        with hinted(AGAIN):
            tarmac.Knn(index)
        done(capsys, "knn", "build", embeddings, "-o", index, "--overwrite")
        assert tarmac.Knn(index).query(key="000001", k=1)


@follows("tarmac knn build DIR -o INDEX --overwrite.")
def test_working_files_that_are_damaged(embeddings, tmp_path, monkeypatch):
    from tarmac.searching import job

    with monkeypatch.context() as patched:
        patched.setattr(job.KnnJob, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tarmac.Knn.build(embeddings, tmp_path / "index", max_memory="60KB")
    (trained,) = (tmp_path / "index").rglob("trained.npz")
    for content in (trained.read_bytes()[:100], b""):
        trained.write_bytes(content)
        with hinted(AGAIN):
            tarmac.Knn.build(embeddings, tmp_path / "index", max_memory="60KB")
    np.savez(trained, other=np.zeros(3))
    with hinted(AGAIN):
        tarmac.Knn.build(embeddings, tmp_path / "index", max_memory="60KB")
    report = tarmac.Knn.build(embeddings, tmp_path / "index", max_memory="60KB", overwrite=True)
    assert report.facts.recall.low >= 0.95


@follows("`embeddings`, where each directory that was moved is now.")
def test_embeddings_that_were_moved(embeddings, tmp_path, capsys):
    done(capsys, "knn", "build", embeddings, "-o", tmp_path / "index")
    embeddings.rename(tmp_path / "moved")
    hint = refused(capsys, "knn", "query", tmp_path / "index", "--key", "000001")
    assert hint.startswith("--embeddings")
    done(capsys, "knn", "query", tmp_path / "index", "--key", "000001", "--embeddings", tmp_path / "moved")
    with hinted("`embeddings`, where each directory that was moved is now."):
        tarmac.Knn(tmp_path / "index")


@follows("`embeddings`, where each directory that was moved is now.")
def test_one_of_two_directories_that_was_moved(embeddings, tmp_path, capsys):
    index, other = (
        tmp_path / "index",
        write_embeddings(tmp_path / "other", clusters(50, 16, seed=1), first=2000),
    )
    done(capsys, "knn", "build", embeddings, "-o", index)
    done(capsys, "knn", "add", index, other)
    other.rename(tmp_path / "moved")
    assert refused(capsys, "knn", "query", index, "--key", "002001").startswith("--embeddings, where each")
    for named in (["moved"], ["embeddings", "moved"], ["moved", "embeddings"]):
        options = [text for name in named for text in ("--embeddings", tmp_path / name)]
        assert "\t" in done(capsys, "knn", "query", index, "--key", "002001", *options)


@follows("`vectors`, made by the same model.")
def test_a_model_that_is_unknown(embeddings, tmp_path, capsys):
    done(capsys, "knn", "build", embeddings, "-o", tmp_path / "index")
    assert refused(capsys, "knn", "query", tmp_path / "index", "--image", "x.jpg").startswith("--vectors")
    np.save(tmp_path / "q.npy", clusters(1, 16))
    done(capsys, "knn", "query", tmp_path / "index", "--vectors", tmp_path / "q.npy")
    with hinted("`vectors`, made by the same model."):
        tarmac.Knn(tmp_path / "index").query(text="a dog")


@follows("open it again, with tarmac.Knn.")
def test_an_index_that_another_program_has_changed(embeddings, tmp_path, capsys):
    done(capsys, "knn", "build", embeddings, "-o", tmp_path / "index")
    knn, other = tarmac.Knn(tmp_path / "index"), write_embeddings(tmp_path / "other", clusters(10, 16))
    done(capsys, "knn", "add", tmp_path / "index", other)
    with hinted("open it again, with tarmac.Knn."):
        knn.add(other)
    assert tarmac.Knn(tmp_path / "index").add(other).vectors == 1210


@follows("`vectors`, that of one of them.")
def test_a_key_that_repeats(tmp_path, capsys):
    vectors = clusters(100, 16)
    keys = {"key": [str(number % 50) for number in range(100)]}
    path = write_embeddings(tmp_path / "embeddings", vectors, columns=keys)
    done(capsys, "knn", "build", path, "-o", tmp_path / "index")
    assert refused(capsys, "knn", "query", tmp_path / "index", "--key", "7").startswith("--vectors")
    with hinted("`vectors`, that of one of them."):
        tarmac.Knn(tmp_path / "index").query(key="7")
    np.save(tmp_path / "q.npy", tarmac.Embeddings(path)[[57]])
    done(capsys, "knn", "query", tmp_path / "index", "--vectors", tmp_path / "q.npy")


@follows("the samples that were embedded, or without `samples`.", "`samples`, their manifest.")
def test_samples_of_hits(embeddings, tmp_path, capsys):
    done(capsys, "knn", "build", embeddings, "-o", tmp_path / "index")
    for name, rows in (("some", 10), ("all", 1200)):
        with tarmac.TarWriter(tmp_path / f"{name}.tar") as writer:
            for row in range(rows):
                writer.write({"__key__": f"{row:06d}", "png": Image.new("RGB", (4, 4))})
    knn = tarmac.Knn(tmp_path / "index")
    with hinted("the samples that were embedded, or without `samples`."):
        knn.query(key="000700", samples=tmp_path / "some.tar")
    with hinted("`samples`, their manifest."):
        knn.query(key="000700").write_sheet(tmp_path / "x.png")
    assert knn.query(key="000700", samples=tmp_path / "all.tar").write_sheet(tmp_path / "x.png") == 10
