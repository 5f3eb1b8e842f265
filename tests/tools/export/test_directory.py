"""Directories of files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tarmac.errors import BadName, CommitFailed, UsageError
from tarmac.tools.export import directory
from tools.export.samples import fields, odd, run, write


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }


def expected(count):
    return {
        f"k/{number:03d}.{name}": data for number in range(count) for name, data in fields(number).items()
    }


@pytest.mark.parametrize("jobs", [1, 2])
def test_files_as_they_were(tmp_path, jobs):
    report = run(write(tmp_path, [2, 0, 1]), "dir", tmp_path / "out", jobs=jobs)
    assert (report.units, report.read, report.written) == (3, 3, 3)
    assert files(tmp_path / "out") == expected(3)
    report = run([str(tmp_path / f"s{n}.tar") for n in range(3)], "dir", tmp_path / "out", jobs=jobs)
    assert (report.done, report.kept) == (0, 3)


def test_missing_files_are_written_again(tmp_path):
    urls = write(tmp_path, [2, 1])
    run(urls, "dir", tmp_path / "out")
    (tmp_path / "out/k/002.txt").unlink()
    report = run(urls, "dir", tmp_path / "out")
    assert (report.done, report.kept) == (1, 1)
    assert files(tmp_path / "out") == expected(3)


def test_existing_files_are_not_replaced(tmp_path):
    urls = write(tmp_path, [2])
    (tmp_path / "out/k").mkdir(parents=True)
    (tmp_path / "out/k/000.cls").write_bytes(b"0")  # as it would be written
    (tmp_path / "out/k/001.cls").write_bytes(b"mine")
    with pytest.raises(CommitFailed, match=r"001\.cls"):
        run(urls, "dir", tmp_path / "out")
    assert (tmp_path / "out/k/001.cls").read_bytes() == b"mine"
    run(urls, "dir", tmp_path / "out", overwrite=True)
    assert files(tmp_path / "out") == expected(2)


def test_names_that_leave_the_directory(tmp_path):
    shard = odd(
        tmp_path, [("a.txt", b"1"), ("../x.txt", b"2"), ("/tmp/y.txt", b"3"), ("b/../../z.txt", b"4")]
    )
    with pytest.raises(BadName, match=r"\.\./x"):
        run(shard, "dir", tmp_path / "out")
    report = run(shard, "dir", tmp_path / "out2", on_error="skip")
    assert (report.written, report.failed) == (1, 3)
    assert files(tmp_path / "out2") == {"a.txt": b"1"}
    assert not (tmp_path / "x.txt").exists()
    assert not (tmp_path / "z.txt").exists()


def test_directories_are_local(tmp_path):
    with pytest.raises(UsageError, match="s3://bucket/x"):
        run(write(tmp_path, [1]), "dir", "s3://bucket/x")


def equal_keys(folder):
    """Write two shards that have a file of the same name, and others that differ."""
    first = odd(folder, [("a.txt", b"0"), ("k.txt", b"1"), ("k.cls", b"1")], "0.tar")
    return [first, odd(folder, [("b.txt", b"0"), ("./k.txt", b"22")], "1.tar")]


@pytest.mark.parametrize("jobs", [1, 2])
def test_samples_that_would_be_the_same_file(tmp_path, jobs):
    shards = equal_keys(tmp_path)
    with pytest.raises(CommitFailed, match=r"k\.txt.*--rekey"):
        run(shards, "dir", tmp_path / "out", jobs=jobs, overwrite=True)
    with pytest.raises(CommitFailed, match=r"k\.txt"):
        run(shards, "dir", tmp_path / "out", jobs=jobs, overwrite=True, on_error="skip")
    with pytest.raises(CommitFailed, match=r"k\.txt"):
        run(shards, "dir", tmp_path / "out2", jobs=jobs)
    (tmp_path / "out3").mkdir()
    (tmp_path / "out3/k.txt").write_bytes(b"old")
    with pytest.raises(CommitFailed, match=r"k\.txt"):
        run(shards, "dir", tmp_path / "out3", jobs=jobs, overwrite=True)


def test_the_same_file_in_streams(tmp_path):
    packed = []
    for shard in equal_keys(tmp_path):
        packed.append(f"{shard}.gz")
        Path(packed[-1]).write_bytes(gzip.compress(Path(shard).read_bytes()))
    with pytest.raises(CommitFailed, match=r"k\.txt"):
        run(packed, "dir", tmp_path / "out", jobs=2, overwrite=True)
    with pytest.raises(CommitFailed, match=r"k\.txt"):  # also on the second run
        run(packed, "dir", tmp_path / "out")


def test_equal_keys_with_other_fields_are_other_files(tmp_path):
    shards = [odd(tmp_path, [(f"k.{name}", b"1")], f"{name}.tar") for name in ("txt", "cls")]
    for _ in range(2):  # which replaces the files of the first run
        assert run(shards, "dir", tmp_path / "out", overwrite=True).written == 2
    assert files(tmp_path / "out") == {"k.txt": b"1", "k.cls": b"1"}


def test_more_files_than_a_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "MAX_FILES", 3)
    run(write(tmp_path, [3]), "dir", tmp_path / "out", overwrite=True)
    monkeypatch.setattr(directory, "MAX_BYTES", 1)
    run(write(tmp_path, [3]), "dir", tmp_path / "out2", overwrite=True)
    assert files(tmp_path / "out") == files(tmp_path / "out2") == expected(3)
