"""Trees of files become samples; other files are counted, and links that form a loop are skipped."""

from __future__ import annotations

import os

import pytest

from harness import required
from harness.servers import seaweed_s3
from tarmac.errors import AccessDenied, NotFound, UrlError
from tarmac.storage import StorageOptions, open_write
from tools.pack.trees import read_all, source, write_tree

TREE = {
    "b/2.jpg": b"J2", "b/2.cls": b"2", "a/1.seg.png": b"P", "a/1.jpg": b"J1", "10.txt": b"t", "9.txt": b"u",
}  # fmt: skip


def test_samples_are_sorted_by_key(tmp_path):
    samples, skipped = read_all(source(write_tree(tmp_path, TREE)))
    assert samples == [
        {"__key__": "10", "txt": b"t"},
        {"__key__": "9", "txt": b"u"},
        {"__key__": "a/1", "jpg": b"J1", "seg.png": b"P"},
        {"__key__": "b/2", "cls": b"2", "jpg": b"J2"},
    ]
    assert not skipped
    assert [item[1] for item in source(tmp_path, needs_sizes=True).items(skipped)] == [1, 1, 3, 3]


def test_odd_names(tmp_path):
    odd = [
        "grüße 1.txt",
        "ein bild.jpg",
        ".DS_Store",
        "README",
        "d/.hidden/x.txt",
        "d.1/x.txt",
        "end.",
        "x/._y.jpg",
    ]
    write_tree(tmp_path, dict.fromkeys(odd, b"."))
    os.mkfifo(tmp_path / "pipe.txt")
    with open(os.fsencode(tmp_path) + b"/\xff.txt", "wb"):
        pass
    samples, skipped = read_all(source(f"{tmp_path}/"))
    assert {sample["__key__"] for sample in samples} == {"grüße 1", "ein bild", "d.1/x", "\udcff"}
    assert skipped.counts == {
        "hidden": 2, "without an extension": 2, "hidden folders": 1, "not plain files": 1,
    }  # fmt: skip


def test_links(tmp_path):
    root = write_tree(tmp_path / "root", {"a/1.txt": b"1", "b/2.txt": b"2"})
    write_tree(tmp_path / "other", {"3.txt": b"3"})
    os.symlink("..", root / "a" / "loop")
    os.symlink(tmp_path, root / "b" / "above")
    os.symlink(tmp_path / "other", root / "c")
    os.symlink("1.txt", root / "a" / "4.txt")
    samples, skipped = read_all(source(root))
    assert [sample["__key__"] for sample in samples] == ["a/1", "a/4", "b/2", "b/above/other/3", "c/3"]
    assert skipped.counts == {"links that form a loop": 2}


def test_a_broken_link_is_an_error(tmp_path):
    os.symlink("nothing", tmp_path / "a.txt")
    with pytest.raises(NotFound, match=r"a\.txt"):
        read_all(source(tmp_path))


def test_folders_that_cannot_be_listed(tmp_path, monkeypatch):
    (tmp_path / "absent").mkdir()
    opened = source(tmp_path / "absent")
    (tmp_path / "absent").rmdir()
    with pytest.raises(NotFound, match="absent"):
        read_all(opened)

    def deny(_):
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(AccessDenied):
        read_all(source(tmp_path))


def test_a_store_that_cannot_be_listed():
    with pytest.raises(UrlError, match="http://localhost/x/"):
        read_all(source("http://localhost/x/"))


@pytest.fixture(scope="module")
def s3():
    with required(seaweed_s3()) as server:
        server.make_bucket("data")
        yield server


def test_a_bucket(s3):
    storage = StorageOptions(config=s3.config(), backoff=0.01, retries=3)
    for name, data in (TREE | {".hid/x.txt": b"", "README": b""}).items():
        sink = open_write(f"s3://data/tree/{name}", storage)
        sink.write(data)
        sink.commit()
    samples, skipped = read_all(source("s3://data/tree/", storage=storage))
    assert [sample["__key__"] for sample in samples] == ["10", "9", "a/1", "b/2"]
    assert samples[3] == {"__key__": "b/2", "cls": b"2", "jpg": b"J2"}
    assert skipped.counts == {"hidden": 1, "without an extension": 1}
