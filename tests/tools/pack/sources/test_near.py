"""Lists are copied when they are far or packed, and name no more than data may."""

from __future__ import annotations

import gzip
import os

import pytest

from tarmac.errors import NotFound, ObjectChanged, UnsafeUrl
from tarmac.storage import register_scheme, schemes
from tarmac.tools.pack.sources.near import bring_near, resolved


def test_a_local_file_stays_where_it_is(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x")
    found = bring_near(f"file:{tmp_path}/a.csv", "/nowhere")
    assert found.path == str(tmp_path / "a.csv")
    with pytest.raises(NotFound, match="directory"):
        bring_near(str(tmp_path), "/nowhere")
    with pytest.raises(NotFound):
        bring_near(str(tmp_path / "b.csv"), "/nowhere")


def test_copies(tmp_path, monkeypatch):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"content"))
    (tmp_path / "copies").mkdir()
    copies = str(tmp_path / "copies")
    found = bring_near(str(tmp_path / "a.csv.gz"), copies)
    with open(found.path, "rb") as file:
        assert file.read() == b"content"
    monkeypatch.setattr(schemes, "_registered", {})
    register_scheme("mem", lambda url: open(tmp_path / "a.csv.gz", "rb"))
    again = bring_near("mem://a.csv.gz", copies)
    assert again.path != found.path
    assert again.version == found.version
    with pytest.raises(UnsafeUrl):
        bring_near("pipe:echo", copies)


def test_names(tmp_path):
    assert resolved("a.jpg", "", "lists/x.csv") == "lists/a.jpg"
    assert resolved("a.jpg", "base", "lists/x.csv") == "base/a.jpg"
    assert resolved("/abs/a.jpg", "base", "x.csv") == "/abs/a.jpg"
    assert resolved("a b.jpg ", "base", "x.csv") == "base/a b.jpg "
    assert resolved("a.jpg", "", "-") == "a.jpg"
    assert resolved("a.jpg", "", "s3://b/d/x.csv") == "s3://b/d/a.jpg"
    assert resolved("a.jpg", "s3://b/e", "x.csv") == "s3://b/e/a.jpg"
    assert resolved("https://h/a.jpg", "base", "x.csv") == "https://h/a.jpg"
    for name, listed_in in [("pipe:rm", "x.csv"), ("-", "x.csv"), ("/etc/passwd", "s3://b/x.csv")]:
        with pytest.raises(UnsafeUrl):
            resolved(name, "", listed_in)


def test_the_file_is_still_the_one_that_was_planned_with(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"x")
    found = bring_near(str(path), "/nowhere")
    with found.opened("mine.csv") as fd:
        assert os.read(fd, 9) == b"x"
    os.utime(path, ns=(0, 10**9))
    with (
        pytest.raises(ObjectChanged, match=r"mine\.csv.*run the same command again"),
        found.opened("mine.csv"),
    ):
        pass
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"content"))
    (tmp_path / "copies").mkdir()
    copy = bring_near(str(tmp_path / "a.csv.gz"), str(tmp_path / "copies"))
    (tmp_path / "a.csv.gz").unlink()  # which does not matter to the copy
    with copy.opened("a.csv.gz") as fd:
        assert os.read(fd, 9) == b"content"
