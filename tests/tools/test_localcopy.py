"""Remote and compressed files are copied, and lists name no more than data may."""

from __future__ import annotations

import gzip
import os

import pytest

from tarmac.errors import NotFound, ObjectChanged, UnsafeUrl
from tarmac.storage import FileStore, register_scheme, schemes
from tarmac.tools.localcopy import ensure_local, resolve_name


def test_a_local_file_is_not_copied(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x")
    local = ensure_local(f"file:{tmp_path}/a.csv", "/nowhere")
    assert local.path == str(tmp_path / "a.csv")
    with pytest.raises(NotFound, match="directory"):
        ensure_local(str(tmp_path), "/nowhere")
    with pytest.raises(NotFound):
        ensure_local(str(tmp_path / "b.csv"), "/nowhere")


def test_copies(tmp_path, monkeypatch):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"content"))
    (tmp_path / "copies").mkdir()
    copies = str(tmp_path / "copies")
    local = ensure_local(str(tmp_path / "a.csv.gz"), copies)
    with open(local.path, "rb") as file:
        assert file.read() == b"content"
    monkeypatch.setattr(schemes, "_registered", {})
    register_scheme("mem", FileStore(lambda url: open(tmp_path / "a.csv.gz", "rb")))
    again = ensure_local("mem://a.csv.gz", copies)
    assert again.path != local.path
    assert again.version == local.version
    with pytest.raises(UnsafeUrl):
        ensure_local("pipe:echo", copies)


def test_names(tmp_path):
    assert resolve_name("a.jpg", "", "lists/x.csv") == "lists/a.jpg"
    assert resolve_name("a.jpg", "base", "lists/x.csv") == "base/a.jpg"
    assert resolve_name("/abs/a.jpg", "base", "x.csv") == "/abs/a.jpg"
    assert resolve_name("a b.jpg ", "base", "x.csv") == "base/a b.jpg "
    assert resolve_name("a.jpg", "", "-") == "a.jpg"
    assert resolve_name("a.jpg", "", "s3://b/d/x.csv") == "s3://b/d/a.jpg"
    assert resolve_name("a.jpg", "s3://b/e", "x.csv") == "s3://b/e/a.jpg"
    assert resolve_name("https://h/a.jpg", "base", "x.csv") == "https://h/a.jpg"
    for name, listed_in in [("pipe:rm", "x.csv"), ("-", "x.csv"), ("/etc/passwd", "s3://b/x.csv")]:
        with pytest.raises(UnsafeUrl):
            resolve_name(name, "", listed_in)


def test_a_changed_file_is_an_error(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"x")
    local = ensure_local(str(path), "/nowhere")
    with local.opened("mine.csv") as fd:
        assert os.read(fd, 9) == b"x"
    os.utime(path, ns=(0, 10**9))
    with (
        pytest.raises(ObjectChanged, match=r"mine\.csv: "),
        local.opened("mine.csv"),
    ):
        pass
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"content"))
    (tmp_path / "copies").mkdir()
    copy = ensure_local(str(tmp_path / "a.csv.gz"), str(tmp_path / "copies"))
    (tmp_path / "a.csv.gz").unlink()  # which does not matter to the copy
    with copy.opened("a.csv.gz") as fd:
        assert os.read(fd, 9) == b"content"
