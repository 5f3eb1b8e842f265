"""Deduplicate vectors: which sample stays, leakage, reasons, and what is recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import tarmac
from deduplicating.vectors import brute_force, clusters, write
from harness.crash import crash, survive
from harness.memory import peak, reset_peak
from tarmac.cli import main
from tarmac.deduplicating.pairs import read_pairs
from tarmac.deduplicating.why import why
from tarmac.errors import BadManifest, IndexStale, JobBusy, JobMismatch, LimitExceeded, NotFound, UsageError
from tarmac.storage.locks import FileLock


def on_circle(*degrees):
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def kept(path):
    return Path(path).read_text().split()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_which_one_stays(home):
    columns = {"width": [10, 30, 20, 5], "height": [10, 10, 20, 5], "aesthetic": [None, 4.0, 6.5, 1.0]}
    source = write(home / "source", on_circle(0, 5, 10, 90), **columns)
    choices = {"first": 0, "largest": 2, "score": 2}
    for keep, stays in choices.items():
        report = tarmac.dedup(source, "keep.txt", keep=keep, score="aesthetic" if keep == "score" else None)
        assert kept("keep.txt") == [f"{stays:06d}", "000003"]
        assert report.largest_groups == [{"key": "000000", "samples": 3, "stay": 1}]
    assert tarmac.dedup(source, "keep.txt", score="width").written == 2
    assert kept("keep.txt") == ["000001", "000003"]


def test_lists_select_samples(home):
    keys = [f"{number:03d} {number % 7}" for number in range(200)]
    source = write(home / "source", clusters(200, 16), key=keys)
    with tarmac.TarWriter("all.tar") as shard:
        for key in keys:
            shard.write({"__key__": key, "txt": key})
    report = tarmac.dedup(source, "keep.txt", threshold=0.9)
    assert report.dropped > 0
    tarmac.copy("all.tar", "clean.tar", keys="keep.txt")
    stay = Path("keep.txt").read_text().splitlines()
    assert len(stay) == report.written
    assert [sample["__key__"] for sample in tarmac.read("clean.tar")] == stay
    for listed in ("keep.txt", Path("keep.txt"), stay):
        assert list(tarmac.Dataset("all.tar").select_keys(listed).keys()) == stay


def test_equal_vectors_are_not_compared_with_each_other(home):
    """A picture that occurs ten thousand times would make fifty million pairs."""
    vectors = np.concatenate([np.tile(on_circle(0), (10_000, 1)), on_circle(5, 90, 90)])
    source = write(home / "source", vectors)
    report = tarmac.dedup(source, "keep.txt", max_pairs=20_000)
    assert (report.exact, report.near, report.written) == (10_000, 1, 2)
    assert kept("keep.txt") == ["000000", "010001"]


def test_leakage(home):
    train = write(home / "train", on_circle(0, 5, 40, 80, 80, 120), rows=4)
    test = write(home / "test", on_circle(80, 128, 200))
    report = tarmac.dedup(train, "keep.txt", against=test)
    assert kept("keep.txt") == ["000000", "000002"]
    assert (report.leaked, report.exact, report.near) == (3, 2, 2)
    member = why("keep.txt", "000005").members[1]
    assert (member.key, member.against) == ("000001", True)
    assert "belongs to the other dataset" in str(why("keep.txt", "000005"))


def test_an_index_and_several_directories(home):
    vectors = clusters(300, 16)
    write(home / "one", vectors[:200])
    rest = write(home / "two", vectors[200:], key=[f"{number:06d}" for number in range(200, 300)])
    write(home / "all", vectors)
    tarmac.Knn.build("one", "index")
    tarmac.Knn("index").add(rest)
    for source in ("index", ["one", "two"], "all"):
        tarmac.dedup(source, "keep.txt", threshold=0.9, overwrite=True)
        tarmac.dedup("all", "all.txt", threshold=0.9)
        assert kept("keep.txt") == kept("all.txt")
    rest.rename("away")
    with pytest.raises(NotFound, match="embeddings of the index are not there"):
        tarmac.dedup("index", "keep.txt", overwrite=True)
    write(home / "two", vectors[100:200])
    with pytest.raises(IndexStale):
        tarmac.dedup("index", "keep.txt", overwrite=True)
    (home / "index" / "knn.json").write_text("{}")
    with pytest.raises(BadManifest, match="not an index of vectors"):
        tarmac.dedup("index", "keep.txt", overwrite=True)


def test_why(home, capsys):
    write(home / "source", on_circle(0, 10, 19, 19, 180))
    command = ["dedup", "source", "-o", "keep.txt"]
    assert run(*command) == 0
    assert "dedup: 5 samples in, 3 stay, 2 removed (1 exact and 1 near" in capsys.readouterr().err
    answers = {
        "000000": "000000 stays\ngroup of 4 samples, 2 stay:\n  000001 is removed: 000002 stays (similarity 0.9877)\n"
        "  000002 stays [through 000001]\n  000003 is removed: 000002 stays (equal) [through 000001, 000002]\n",
        "000004": "000004 stays: no sample is near it\n",
    }
    for key, answer in answers.items():
        assert run("dedup", "--why", key, "-o", "keep.txt") == 0
        assert capsys.readouterr().out == answer
    assert run("dedup", "--why", "000001", "-o", "keep.txt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["members"][0]["kept"] == "000002"
    before = Path("keep.txt").read_bytes()
    assert (
        run("dedup", "source", "--why", "000001", "-o", "keep.txt", "--threshold", "0.9", "--max-pairs", "9")
        == 2
    )
    assert "where --max-pairs, --threshold has no effect" in capsys.readouterr().err
    assert Path("keep.txt").read_bytes() == before
    assert run("dedup", "--why", "nine", "-o", "keep.txt") == 2
    assert "keep.txt: the samples that were compared have no key 'nine'" in capsys.readouterr().err
    assert run("dedup", "-o", "keep.txt") == 2


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return end.value.code


def test_errors(home):
    source = write(home / "source", on_circle(0, 5, 90), model="m")
    for threshold in (0, -1, 1.5, float("nan")):
        with pytest.raises(UsageError, match="above 0 and up to 1"):
            tarmac.dedup(source, "keep.txt", threshold=threshold)
    with pytest.raises(UsageError, match=r"vectors of 2 numbers.*got 3"):
        tarmac.dedup(source, "keep.txt", against=write(home / "other", np.eye(3), model="m"))
    with pytest.raises(UsageError, match="of the model 'm', got those of 'n'"):
        tarmac.dedup(source, "keep.txt", against=write(home / "model", np.eye(2), model="n"))
    with pytest.raises(UsageError, match=r"kind 'img'.*got 'text'"):
        tarmac.dedup(source, "keep.txt", against=write(home / "kind", np.eye(2), model="m", kind="text"))
    with pytest.raises(UsageError, match="there are no vectors"):
        tarmac.dedup(write(home / "empty", np.zeros((0, 2))), "keep.txt")
    with pytest.raises(UsageError, match="1 repeated key, such as 'a'"):
        tarmac.dedup(write(home / "twice", np.eye(2), key=["a", "a"]), "keep.txt")
    with pytest.raises(UsageError, match=r"no column 'score'.*one of key"):
        tarmac.dedup(source, "keep.txt", score="score")
    with pytest.raises(UsageError, match="no column 'width'"):
        tarmac.dedup(source, "keep.txt", keep="largest")
    with pytest.raises(UsageError, match="column of numbers"):
        tarmac.dedup(
            write(home / "words", np.eye(2), word=["a", "b"]), "keep.txt", score="word", overwrite=True
        )
    wrong = [{"keep": "score"}, {"keep": "first", "score": "x"}, {"keep": "best"}, {"max_pairs": 0}]
    wrong += [
        {"threshold": "0.9"},
        {"max_pairs": "9"},
        {"score": 5},
        {"text": 5},
        {"text": "key", "shingle": 5},
    ]
    for options in wrong:
        with pytest.raises(UsageError) as caught:
            tarmac.dedup(source, "keep.txt", **options)
        assert caught.value.field in options
    with pytest.raises(UsageError, match="expected img, got 'text'"):
        tarmac.dedup(source, "keep.txt", kind="text")
    with pytest.raises(UsageError, match="a directory of embeddings or of an index"):
        tarmac.dedup("shards.tar", "keep.txt")
    with pytest.raises(UsageError, match="as the source is"):
        tarmac.dedup(source, "keep.txt", against="shards.tar")
    with pytest.raises(UsageError, match="local files"):
        tarmac.dedup(source, "s3://bucket/keep.txt")
    with pytest.raises(UsageError, match="expected the name of a file"):
        tarmac.dedup(source, home)
    with pytest.raises(LimitExceeded, match="more than 10 pairs"):
        tarmac.dedup(write(home / "many", on_circle(*range(20))), "many.txt", max_pairs=10)
    assert not os.path.exists("many.txt")
    with pytest.raises(NotFound, match="nothing is recorded"):
        why("absent.txt", "a")


def test_other_samples_and_other_files(home):
    source = write(home / "source", on_circle(0, 5, 90))
    Path("keep.txt").write_text("mine\n")
    with pytest.raises(UsageError, match="was not written by this job"):
        tarmac.dedup(source, "keep.txt")
    assert kept("keep.txt") == ["mine"]
    tarmac.dedup(source, "keep.txt", overwrite=True)
    before = kept("keep.txt")
    other = write(home / "other", on_circle(0, 45))
    with pytest.raises(JobMismatch, match="made from other samples"):
        tarmac.dedup(other, "keep.txt")
    assert kept("keep.txt") == before
    assert tarmac.dedup(other, "keep.txt", overwrite=True).written == 2
    Path("keep.txt.dedup/pairs.parquet").write_bytes(b"torn")
    with pytest.raises(BadManifest, match="not a record"):
        tarmac.dedup(other, "keep.txt")
    lock = FileLock("keep.txt.dedup/lock")
    assert lock.acquire()
    with pytest.raises(JobBusy):
        tarmac.dedup(other, "keep.txt", overwrite=True)
    lock.release()
    assert tarmac.dedup(other, "keep.txt", overwrite=True).written == 2


def test_vectors_without_a_direction_stay(home):
    source = write(home / "source", [[0, 0], [0, 0], [np.nan, 1], [1, 0], [1, 0]])
    report = tarmac.dedup(source, "keep.txt")
    assert (report.written, report.unusable, report.exact) == (4, 3, 1)
    assert "3 samples without direction or text: compared with nothing" in report.remarks
    assert tarmac.dedup(write(home / "zeros", np.zeros((3, 4))), "zeros.txt").written == 3


SCRIPT = """
import sys, tarmac, numpy, pyarrow.parquet, tarmac.deduplicating.verb, threadpoolctl
print("ready", flush=True)
tarmac.dedup(sys.argv[1], sys.argv[2], threshold=0.9)
"""


@pytest.mark.processes
@pytest.mark.long
def test_killed_at_any_time(home):
    """The list is complete or absent, and running again gives the same bytes."""
    source = write(home / "source", clusters(20_000, 48))
    tarmac.dedup(source, "undisturbed.txt", threshold=0.9)
    expected = Path("undisturbed.txt").read_bytes()
    output, parts = home / "keep.txt", set()

    def check():
        parts.update(path.name for path in Path("keep.txt.dedup/work").glob("pairs-*.npz"))
        if output.exists():
            assert output.read_bytes() == expected
            output.unlink()
            Path("keep.txt.dedup/pairs.parquet").unlink()

    survive(5, lambda seed: crash(SCRIPT, [str(source), str(output)], seed, 1.0), check)
    tarmac.dedup(source, output, threshold=0.9)
    assert output.read_bytes() == expected
    for name in ("pairs", "groups"):
        tables = [Path(f"{each}.txt.dedup/{name}.parquet").read_bytes() for each in ("keep", "undisturbed")]
        assert tables[0] == tables[1]
    assert sorted(path.name for path in Path("keep.txt.dedup").iterdir()) == [
        "groups.parquet",
        "pairs.parquet",
    ]
    assert [path.name for path in home.iterdir() if path.name.startswith(".")] == []


def test_a_stopped_run_continues(home, monkeypatch):
    """What was compared before is read from the working files."""
    from tarmac.deduplicating import candidates

    source = write(home / "source", clusters(20_000, 48))
    tarmac.dedup(source, "undisturbed.txt", threshold=0.9)
    compared, search = [], candidates.Search.from_cell

    def stops(self, cell):
        compared.append(cell)
        if len(compared) == 60:
            raise KeyboardInterrupt
        return search(self, cell)

    monkeypatch.setattr(candidates.Search, "from_cell", stops)
    with pytest.raises(KeyboardInterrupt):
        tarmac.dedup(source, "keep.txt", threshold=0.9)
    before = len(compared)
    tarmac.dedup(source, "keep.txt", threshold=0.9)
    assert len(compared) - before < 141 - 40
    assert Path("keep.txt").read_bytes() == Path("undisturbed.txt").read_bytes()


@pytest.mark.heavy
def test_all_pairs_of_50_000_vectors(home):
    vectors = clusters(50_000, 128)
    source = write(home / "source", vectors, rows=20_000)
    tarmac.dedup(source, "keep.txt", threshold=0.96)
    pairs = read_pairs("keep.txt.dedup/pairs.parquet")
    expected = brute_force(vectors.astype(np.float32), 0.96)
    assert len(expected) > 1000
    assert set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)) == set(expected)


@pytest.mark.heavy
def test_memory_does_not_grow_with_the_vectors(home):
    growth = []
    for count in (20_000, 200_000):
        source = write(home / str(count), clusters(count, 64, planted=0.02), rows=50_000)
        before = reset_peak()
        tarmac.dedup(source, f"{count}.txt")
        growth.append(peak() - before)
    assert growth[1] < growth[0] + 200_000 * 600
