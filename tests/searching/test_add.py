"""Adding vectors: they are searched like the others, the report says how well they fit, and a kill leaves an index."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import tarmac
from harness.vectors import clusters, sphere, write_embeddings
from searching.data import brute_force, choice_of, recall
from tarmac.errors import IndexDamaged, IndexStale, JobBusy, NotFound, UsageError
from tarmac.searching import facts as knn_facts

COUNT, MORE, DIMENSION = 2000, 200, 32


@pytest.fixture(scope="module")
def vectors():
    return clusters(COUNT + MORE, DIMENSION)


@pytest.fixture
def embeddings(tmp_path, vectors):
    return write_embeddings(tmp_path / "embeddings", vectors[:COUNT])


def built(embeddings, index, kind, monkeypatch):
    if kind == "hnsw":
        monkeypatch.setattr("tarmac.searching.choice.FLAT", 0)
    tarmac.Knn.build(embeddings, index, max_memory=choice_of(kind, COUNT, DIMENSION).memory)
    return tarmac.Knn(index)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf", "rabitq1"])
def test_a_directory_that_grew(tmp_path, embeddings, vectors, monkeypatch, kind):
    knn = built(embeddings, tmp_path / "index", kind, monkeypatch)
    assert knn.add().added == 0
    write_embeddings(embeddings, vectors[COUNT:], first=COUNT)
    assert len(tarmac.Knn(tmp_path / "index")) == COUNT  # it searches what was indexed

    report = knn.add()

    assert (report.added, report.vectors) == (MORE, COUNT + MORE)
    assert report.before.mean - min(report.recall.mean, report.new.mean) <= 0.02  # of 200 queries
    assert not [remark for remark in report.remarks if "recall" in remark or "keys" in remark]
    for index in (knn, tarmac.Knn(tmp_path / "index")):
        _, numbers = index.search(vectors[COUNT:], 10)
        assert (numbers[:, 0] == np.arange(COUNT, COUNT + MORE)).mean() > 0.97
        assert recall(numbers, brute_force(vectors[COUNT:], vectors, 10)) >= 0.94
        assert [hit.key for hit in index.query(vectors=vectors[COUNT + 7], k=1)] == [f"{COUNT + 7:06d}"]
    assert index.add().added == 0


def test_another_directory_and_the_first_again(tmp_path, embeddings, vectors):
    tarmac.Knn.build(embeddings, tmp_path / "index", max_memory=choice_of("rabitq1", COUNT, DIMENSION).memory)
    other = write_embeddings(tmp_path / "other", vectors[COUNT : COUNT + 100], first=COUNT)
    knn = tarmac.Knn(tmp_path / "index")

    assert knn.add(other).added == 100
    write_embeddings(embeddings, vectors[COUNT + 100 :], first=COUNT + 100)
    assert knn.add().added == 100

    assert knn.add(other).added == 0
    again = tarmac.Knn(tmp_path / "index")
    everything = np.asarray(vectors, np.float16).astype(np.float32)
    np.testing.assert_array_equal(again.vectors.take(np.arange(len(again))), everything)
    assert again.vectors.keys([5, COUNT + 5, COUNT + 150]) == ["000005", "002005", "002150"]
    assert again.vectors.find(["002150", "000005", "002005", "x"]).tolist() == [2150, 5, 2005, -1]
    assert again.vectors.where("key >= '002000'").sum() == 200
    _, numbers = again.search(vectors, 1, where="key >= '002000'")
    assert (numbers >= COUNT).all()
    copies = [tmp_path / "moved", tmp_path / "moved-other", tmp_path / "moved"]
    embeddings.rename(copies[0])
    other.rename(copies[1])
    assert len(tarmac.Knn(tmp_path / "index", embeddings=copies)) == COUNT + MORE


def test_directories_that_were_moved_are_recognised(tmp_path, embeddings, vectors):
    other = write_embeddings(tmp_path / "other", vectors[COUNT : COUNT + 100], first=COUNT)
    tarmac.Knn.build(embeddings, tmp_path / "index")
    tarmac.Knn(tmp_path / "index").add(other)
    copied = shutil.copytree(embeddings, tmp_path / "copied")
    moved = other.rename(tmp_path / "moved")
    everything = np.asarray(vectors[: COUNT + 100], np.float16).astype(np.float32)
    for named in (moved, [moved], [copied, moved], [moved, copied]):
        knn = tarmac.Knn(tmp_path / "index", embeddings=named)
        np.testing.assert_array_equal(knn.vectors.take(np.arange(len(knn))), everything)
    more = write_embeddings(tmp_path / "more", vectors[COUNT + 100 :], first=COUNT + 100)
    knn.add(more)  # which is where the index records it
    assert len(knn) == len(tarmac.Knn(tmp_path / "index", embeddings=moved)) == COUNT + MORE
    with pytest.raises(NotFound, match="not there"):
        tarmac.Knn(tmp_path / "index", embeddings=copied)
    unknown = write_embeddings(tmp_path / "unknown", vectors[:10])
    with pytest.raises(IndexStale):
        tarmac.Knn(tmp_path / "index", embeddings=[moved, unknown])


def test_directories_of_equal_fingerprints(tmp_path, vectors):
    """Those of other programs have only the sizes of their files: one that is not where it was is the moved one."""
    paths = [
        write_embeddings(tmp_path / name, vectors[start : start + 100], first=start)
        for name, start in (("a", 0), ("b", 100))
    ]
    for path in paths:
        (path / "embeddings.json").unlink()
    tarmac.Knn.build(paths[0], tmp_path / "index")
    tarmac.Knn(tmp_path / "index").add(paths[1])
    moved = paths[1].rename(tmp_path / "moved")
    for named in (moved, [paths[0], moved]):
        knn = tarmac.Knn(tmp_path / "index", embeddings=named)
        assert knn.vectors.keys([0, 100]) == ["000000", "000100"]


def test_two_programs_add(tmp_path, embeddings, vectors):
    """Neither loses what the other has added."""
    tarmac.Knn.build(embeddings, tmp_path / "index")
    others = [
        write_embeddings(tmp_path / name, vectors[COUNT + start : COUNT + start + 100], first=COUNT + start)
        for name, start in (("a", 0), ("b", 100))
    ]
    knn, second = tarmac.Knn(tmp_path / "index"), tarmac.Knn(tmp_path / "index")
    with knn_facts.unchanged(knn.directory, knn.facts), pytest.raises(JobBusy):
        second.add(others[1])
    knn.add(others[0])
    with pytest.raises(IndexStale, match="changed since it was opened"):
        second.add(others[1])
    tarmac.Knn(tmp_path / "index").add(others[1])
    assert len(tarmac.Knn(tmp_path / "index")) == COUNT + MORE
    assert {path.name for path in (tmp_path / "index").iterdir()} <= {".tarmac", "index.faiss", "knn.json"}


def test_drift_adds_up(tmp_path, embeddings):
    """Each addition is compared with the index as it was built, not with the one before."""
    tarmac.Knn.build(embeddings, tmp_path / "index", max_memory=choice_of("rabitq1", COUNT, DIMENSION).memory)
    knn = tarmac.Knn(tmp_path / "index")
    built = knn.facts.recall
    reports = []
    for number in range(3):
        other = write_embeddings(tmp_path / f"other-{number}", sphere(700, DIMENSION, seed=number))
        reports.append(knn.add(other))

    assert [report.before for report in reports] == [built] * 3
    assert reports[-1].recall.mean < built.mean - 0.01
    assert any("build it again" in remark for remark in reports[-1].remarks)
    assert all(any("700 added vectors have keys" in each for each in report.remarks) for report in reports)
    assert tarmac.Knn(tmp_path / "index").facts.built == built


def test_vectors_of_another_kind_are_noticed(tmp_path, embeddings):
    """Vectors without structure, where the index knows clusters."""
    tarmac.Knn.build(embeddings, tmp_path / "index", max_memory=choice_of("rabitq1", COUNT, DIMENSION).memory)
    other = write_embeddings(tmp_path / "other", sphere(2000, DIMENSION))

    report = tarmac.Knn(tmp_path / "index").add(other)

    assert report.fit < report.fit_before - 0.1
    assert any("build it again" in remark for remark in report.remarks)
    assert any("more than the" in remark for remark in report.remarks)
    assert "2000 vectors added" in str(report)


def test_an_index_is_as_it_was_after_an_error(tmp_path, embeddings, vectors):
    """Of vectors that cannot be added, none stays in the index in memory."""
    memory = choice_of("rabitq1", COUNT, DIMENSION).memory
    tarmac.Knn.build(embeddings, tmp_path / "index", max_memory=memory)
    knn = tarmac.Knn(tmp_path / "index")
    new = vectors[COUNT:].copy()
    new[-1, 0] = np.nan
    broken = write_embeddings(tmp_path / "broken", new, first=COUNT, part_rows=50)
    with pytest.raises(UsageError, match="not numbers"):
        knn.add(broken)
    nameless = write_embeddings(tmp_path / "nameless", vectors[COUNT:], columns={"key": [None] * MORE})
    with pytest.raises(IndexDamaged, match="have no key"):
        knn.add(nameless)
    for index in (knn, tarmac.Knn(tmp_path / "index")):
        _, numbers = index.search(vectors[COUNT:], 10)
        assert (len(index), numbers.max() < COUNT) == (COUNT, True)
    assert knn.add(write_embeddings(tmp_path / "good", vectors[COUNT:], first=COUNT)).added == MORE


def test_vectors_that_cannot_be_added(tmp_path, embeddings, vectors):
    path = write_embeddings(tmp_path / "named", vectors[:100], model="sentence:a")
    tarmac.Knn.build(path, tmp_path / "index")
    knn = tarmac.Knn(tmp_path / "index")
    with pytest.raises(UsageError, match="expected vectors of 32 numbers, got 8"):
        knn.add(write_embeddings(tmp_path / "short", sphere(10, 8)))
    with pytest.raises(UsageError, match="expected vectors of sentence:a, got sentence:b"):
        knn.add(write_embeddings(tmp_path / "b", vectors[:10], model="sentence:b"))
    with pytest.raises(NotFound):
        knn.add(tmp_path / "absent")
    assert len(tarmac.Knn(tmp_path / "index")) == 100


@pytest.mark.parametrize("step", ["before", "between", "after"])
def test_a_kill_while_the_index_is_replaced(tmp_path, embeddings, vectors, monkeypatch, step):
    """The index is the old one or the new one, with the manifest that belongs to it."""
    tarmac.Knn.build(embeddings, tmp_path / "index")
    write_embeddings(embeddings, vectors[COUNT:], first=COUNT)
    knn = tarmac.Knn(tmp_path / "index")
    replace = knn_facts.os.replace

    def killed(source, target, **more):
        if str(target).endswith("index.faiss"):
            if step == "after":
                replace(source, target, **more)
            raise KeyboardInterrupt
        if step == "before":
            raise KeyboardInterrupt
        replace(source, target, **more)

    with monkeypatch.context() as patched:
        patched.setattr(knn_facts.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            knn.add()

    expected = COUNT + MORE if step == "after" else COUNT
    again = tarmac.Knn(tmp_path / "index")
    assert len(again) == expected
    _, numbers = again.search(vectors[:5], 1)
    assert numbers[:, 0].tolist() == [*range(5)]
    again.add()
    assert len(tarmac.Knn(tmp_path / "index")) == COUNT + MORE


# Damage


def test_damaged_and_foreign_indexes(tmp_path, embeddings):
    import faiss

    index = tmp_path / "index"
    tarmac.Knn.build(embeddings, index)
    file, manifest = index / "index.faiss", index / "knn.json"
    content, text = file.read_bytes(), manifest.read_text()
    for damaged in (content[:-1], content[:1000], b"", content + b"x"):
        file.write_bytes(damaged)
        with pytest.raises(IndexDamaged, match="bytes"):
            tarmac.Knn(index)
    for position in (3, 100, len(content) // 2, len(content) - 1):  # every byte is looked at
        file.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(IndexDamaged, match="not as it was written"):
            tarmac.Knn(index)
    file.unlink()
    with pytest.raises(NotFound):
        tarmac.Knn(index)
    foreign = faiss.IndexFlatIP(8)
    foreign.add(sphere(10, 8))
    faiss.write_index(foreign, str(file))
    with pytest.raises(IndexDamaged):
        tarmac.Knn(index)
    manifest.unlink()
    with pytest.raises(NotFound, match="another program"):
        tarmac.Knn(index)
    for wrong in (
        "",
        "{",
        "[]",
        "{}",
        '{"format": "other"}',
        text.replace('"ip"', '"cos"'),
        text[: len(text) // 2],
    ):
        manifest.write_text(wrong)
        with pytest.raises(tarmac.errors.BadManifest):
            tarmac.Knn(index)
    shutil.rmtree(index)
    with pytest.raises(NotFound):
        tarmac.Knn(index)


def test_embeddings_that_have_changed(tmp_path, embeddings, vectors):
    tarmac.Knn.build(embeddings, tmp_path / "index")
    shutil.rmtree(embeddings)
    write_embeddings(embeddings, vectors[1 : COUNT + 1])
    with pytest.raises(tarmac.errors.IndexStale):
        tarmac.Knn(tmp_path / "index")
    shutil.rmtree(embeddings)
    write_embeddings(embeddings, vectors[:1000])
    with pytest.raises(tarmac.errors.IndexStale):
        tarmac.Knn(tmp_path / "index")
