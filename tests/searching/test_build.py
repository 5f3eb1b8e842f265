"""Building an index: what is chosen, what is written, what is refused, and what continues."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import tarmac
from harness.crash import crash
from harness.vectors import clusters, sphere, write_embeddings
from searching.data import brute_force, choice_of, recall
from tarmac.errors import IndexDamaged, JobMismatch, NotFound, UsageError
from tarmac.searching import job as knn_job
from tarmac.searching.choice import all_choices, choices

COUNT, DIMENSION = 2500, 32


@pytest.fixture(scope="module")
def vectors():
    return clusters(COUNT, DIMENSION)


@pytest.fixture
def embeddings(tmp_path, vectors):
    return write_embeddings(tmp_path / "embeddings", vectors)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr("tarmac.searching.choice.PART_ROWS", 1024)


def memory_of(name):
    return choice_of(name, COUNT, DIMENSION).memory


@pytest.mark.parametrize(
    ("vectors", "memory", "kind"),
    [
        (9_000, 4 << 30, "flat"),
        (90_000, 4 << 30, "hnsw"),
        (1_000_000, 4 << 30, "ivf"),
        (1_000_000, 120_000_000, "rabitq1"),
        (200_000, 60_000_000, "rabitq1"),
    ],
)
def test_the_kind_follows_from_size_and_memory(vectors, memory, kind):
    chosen = next(choices(vectors, 512, memory))

    assert chosen.name == kind
    assert chosen.memory <= memory


def test_sizes_that_the_research_measured():
    """A million vectors of 512 numbers: codes of 1 bit need about 100 MB, 16-bit floats ten times more."""
    sizes = {choice.name: choice.memory for choice in all_choices(1_000_000, 512)}

    assert 85e6 < sizes["rabitq1"] < 120e6
    assert 1.0e9 < sizes["ivf"] < 1.1e9


@pytest.mark.parametrize("index", ["flat", "hnsw", "ivf", "rabitq1", "rabitq4"])
def test_faiss_reads_the_index_and_its_ids_are_numbers_of_vectors(
    tmp_path, embeddings, vectors, monkeypatch, index
):
    import faiss

    if index in ("hnsw", "rabitq4"):  # which are not the best choice for these vectors
        monkeypatch.setattr(
            "tarmac.searching.build.choices", lambda *sizes: [choice_of(index, COUNT, DIMENSION)]
        )
    tarmac.Knn.build(embeddings, tmp_path / "index", max_memory=memory_of(index))
    plain = faiss.read_index(str(tmp_path / "index" / "index.faiss"))

    assert (plain.ntotal, plain.d) == (COUNT, DIMENSION)
    assert tarmac.Knn(tmp_path / "index").facts.choice.name == index
    if index not in ("flat", "hnsw"):
        faiss.extract_index_ivf(plain).nprobe = 64
    _, numbers = plain.search(vectors[:200], 50)
    assert recall(numbers, brute_force(vectors[:200], vectors, 1)) > 0.95


def test_codes_of_parts_are_those_of_one_part(tmp_path, embeddings, small_parts):
    report = tarmac.Knn.build(embeddings, tmp_path / "a", max_memory=memory_of("ivf"), jobs=1)

    assert report.units == 3
    assert report.read == report.written == COUNT
    knn = tarmac.Knn(tmp_path / "a")
    scores, numbers = knn.search(knn.vectors.take(np.arange(COUNT)), 1, probes=knn.facts.choice.lists)
    assert (numbers[:, 0] == np.arange(COUNT)).all()
    np.testing.assert_allclose(scores, 1, atol=5e-3)


def test_building_again_does_nothing(tmp_path, embeddings):
    first = tarmac.Knn.build(embeddings, tmp_path / "index", max_memory=memory_of("rabitq1"))
    before = (tmp_path / "index" / "index.faiss").stat()

    again = tarmac.Knn.build(embeddings, tmp_path / "index", max_memory=memory_of("rabitq1"))

    assert (tmp_path / "index" / "index.faiss").stat() == before
    assert again.facts == first.facts
    assert "nothing to do" in str(again)


def test_other_options_or_vectors_are_refused_unless_overwritten(tmp_path, embeddings, vectors):
    index = tmp_path / "index"
    tarmac.Knn.build(embeddings, index, max_memory="100KB")

    with pytest.raises(JobMismatch, match="target_recall"):
        tarmac.Knn.build(embeddings, index, max_memory="100KB", target_recall=0.9)
    with pytest.raises(JobMismatch, match=r"knn\.json: .* max_memory 100000 -> 4000000000\."):
        tarmac.Knn.build(embeddings, index)  # another kind
    write_embeddings(embeddings, vectors[:100], first=COUNT)
    with pytest.raises(JobMismatch, match="other vectors"):
        tarmac.Knn.build(embeddings, index, max_memory="100KB")
    report = tarmac.Knn.build(embeddings, index, overwrite=True)
    assert report.facts.choice.name == "flat"
    assert len(tarmac.Knn(index)) == COUNT + 100


def test_a_dry_run_says_what_would_be_built(tmp_path, embeddings):
    report = tarmac.Knn.build(embeddings, tmp_path / "index", max_memory=memory_of("rabitq1"), dry_run=True)

    assert "codes of 1 bit" in str(report)
    assert not (tmp_path / "index").exists()


def test_one_and_two_vectors(tmp_path):
    for count in (1, 2):
        path = write_embeddings(tmp_path / f"e{count}", sphere(count, 8))
        tarmac.Knn.build(path, tmp_path / f"i{count}")
        scores, numbers = tarmac.Knn(tmp_path / f"i{count}").search(sphere(count, 8), 3)
        assert numbers[:, 0].tolist() == [*range(count)]
        assert (numbers[:, count:] == -1).all()
        assert np.isneginf(scores[:, count:]).all()


def test_the_vectors_of_texts(tmp_path, vectors):
    path = write_embeddings(tmp_path / "embeddings", vectors[:50], kind="text")
    tarmac.Knn.build(path, tmp_path / "index", kind="text")
    assert tarmac.Knn(tmp_path / "index").facts.sources[0].kind == "text"
    with pytest.raises(UsageError, match="expected text, got 'img'"):
        tarmac.Knn.build(path, tmp_path / "other", kind="img")


def test_arguments_are_checked(tmp_path, embeddings):
    for name, value in [("target_recall", 0), ("target_recall", 1.1), ("target_recall", "0.9"), ("metric", "cos"),
                        ("max_memory", "many"), ("max_memory", 0), ("max_memory", None)]:  # fmt: skip
        with pytest.raises(UsageError) as error:
            tarmac.Knn.build(embeddings, tmp_path / "index", **{name: value})
        assert error.value.field == name
    with pytest.raises(UsageError) as error:
        tarmac.Knn.build(embeddings, "s3://bucket/index")
    assert error.value.field == "output"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="expected a directory"):
        tarmac.Knn.build(embeddings, tmp_path / "file")


def test_nothing_to_index(tmp_path):
    path = write_embeddings(tmp_path / "embeddings", np.zeros((0, 8)))
    (path / "embeddings.json").write_text(
        json.dumps({"format": "tarmac-embeddings-1", "parts": [], "kinds": {"img": 8}})
    )
    with pytest.raises(UsageError, match="no vectors"):
        tarmac.Knn.build(path, tmp_path / "index")
    with pytest.raises(NotFound):
        tarmac.Knn.build(tmp_path / "absent", tmp_path / "index")


def test_parts_that_differ_or_are_missing(tmp_path, embeddings):
    array = embeddings / "img_emb" / "img_emb_000001.npy"
    content = array.read_bytes()
    np.save(array, np.zeros((1000, DIMENSION + 1), np.float16))
    with pytest.raises(IndexDamaged, match=r"expected 1000 vectors of 32 numbers"):
        tarmac.Knn.build(embeddings, tmp_path / "index")
    array.write_bytes(content[:1000])
    with pytest.raises(IndexDamaged):
        tarmac.Knn.build(embeddings, tmp_path / "index")
    array.unlink()
    with pytest.raises(NotFound):
        tarmac.Knn.build(embeddings, tmp_path / "index")
    assert not (tmp_path / "index" / "knn.json").exists()


@pytest.mark.parametrize("index", ["flat", "rabitq1"])
def test_a_number_that_is_not_one(tmp_path, vectors, index):
    broken = vectors.copy()
    broken[1234, 5] = np.nan
    path = write_embeddings(tmp_path / "embeddings", broken)
    with pytest.raises(UsageError, match="not numbers"):
        tarmac.Knn.build(path, tmp_path / "index", max_memory=memory_of(index), jobs=1)


def test_embeddings_of_clip_retrieval(tmp_path, embeddings, vectors):
    (embeddings / "embeddings.json").unlink()
    tarmac.Knn.build(embeddings, tmp_path / "index")
    knn = tarmac.Knn(tmp_path / "index")
    assert knn.query(vectors=vectors[77], k=1)[0].key == "000077"


# Parts: on engines, in tasks, and after kills


def test_tasks_share_the_parts(tmp_path, embeddings, small_parts):
    options = {"max_memory": memory_of("rabitq1"), "jobs": 1}
    done = [
        tarmac.Knn.build(embeddings, tmp_path / "index", task=(number, 2), **options) for number in (0, 1)
    ]

    assert sum(report.done for report in done) == 3
    assert len(tarmac.Knn(tmp_path / "index")) == COUNT


def test_another_task_finishes_first(tmp_path, embeddings, monkeypatch):
    """It has published the index, and removed the parts that this one was about to read."""
    options = {"max_memory": memory_of("rabitq1"), "jobs": 1, "task": (0, 2)}
    finish = knn_job.KnnJob.finish

    def late(job, outcomes):
        with monkeypatch.context() as patched:
            patched.setattr(knn_job.KnnJob, "finish", finish)
            tarmac.Knn.build(embeddings, tmp_path / "index", **options | {"task": (1, 2)})
        finish(job, outcomes)

    monkeypatch.setattr(knn_job.KnnJob, "finish", late)
    report = tarmac.Knn.build(embeddings, tmp_path / "index", **options)

    assert (report.kept, report.facts) == (1, tarmac.Knn(tmp_path / "index").facts)


@pytest.mark.processes
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_parts_of_processes(tmp_path, embeddings, vectors, small_parts, engine):
    options = {"max_memory": memory_of("rabitq1"), "engine": engine, "jobs": 2}
    report = tarmac.Knn.build(embeddings, tmp_path / "index", **options)

    assert report.done == 3
    assert report.facts.recall.low >= 0.95
    _, numbers = tarmac.Knn(tmp_path / "index").search(vectors[:300], 11)
    assert recall(numbers, brute_force(vectors[:300], vectors, 10)) >= 0.95


def test_parts_that_are_done_are_kept(tmp_path, embeddings, small_parts, monkeypatch):
    options = {"max_memory": memory_of("rabitq1"), "jobs": 1}
    coded = []
    encode = knn_job.encode_part

    def stops(sources, start, stop, coder, path):
        coded.append(start)
        if len(coded) == 3:
            raise KeyboardInterrupt
        return encode(sources, start, stop, coder, path)

    monkeypatch.setattr(knn_job, "encode_part", stops)
    with pytest.raises(KeyboardInterrupt):
        tarmac.Knn.build(embeddings, tmp_path / "index", **options)
    report = tarmac.Knn.build(embeddings, tmp_path / "index", **options)

    assert coded == [0, 1024, 2048, 2048]
    assert (report.kept, report.done) == (2, 1)
    assert len(tarmac.Knn(tmp_path / "index")) == COUNT


def test_parts_of_other_centroids_are_not_used(tmp_path, embeddings, small_parts, monkeypatch):
    options = {"max_memory": memory_of("rabitq1"), "jobs": 1}
    with monkeypatch.context() as patched:
        patched.setattr(knn_job.KnnJob, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tarmac.Knn.build(embeddings, tmp_path / "index", **options)
    (home,) = (tmp_path / "index" / ".tarmac" / "parts").iterdir()
    (home / "trained.npz").unlink()
    monkeypatch.setattr("tarmac.searching.train.ROUNDS", 1)

    report = tarmac.Knn.build(embeddings, tmp_path / "index", **options)

    assert (report.kept, report.done) in ((0, 3), (3, 0))  # the same centroids again, or parts coded again
    assert report.facts.recall.low >= 0.95


SCRIPT = """
import sys, tarmac, faiss, tarmac.searching.knn
tarmac.searching.choice.PART_ROWS = 1024
print("ready", flush=True)
tarmac.Knn.build(sys.argv[1], sys.argv[2], max_memory=int(sys.argv[3]), jobs=1)
"""


@pytest.mark.processes
@pytest.mark.long
def test_killed_at_any_time(tmp_path, embeddings, vectors):
    index = tmp_path / "index"
    for seed in range(4):
        crash(SCRIPT, [str(embeddings), str(index), str(memory_of("rabitq1"))], seed, 1.5)
        if (index / "knn.json").exists():  # then it is whole
            assert len(tarmac.Knn(index)) == COUNT
            shutil.rmtree(index)
    report = tarmac.Knn.build(embeddings, index, max_memory=memory_of("rabitq1"))

    assert report.facts.recall.low >= 0.95
    _, numbers = tarmac.Knn(index).search(vectors[:300], 11)
    assert recall(numbers, brute_force(vectors[:300], vectors, 10)) >= 0.95
    assert sorted(path.name for path in index.iterdir()) == [".tarmac", "index.faiss", "knn.json"]
