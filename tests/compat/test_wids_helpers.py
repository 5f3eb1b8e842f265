"""Helpers of wids: files in tars, downloads, directories."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from harness.shards import LONG, plain
from tarmac.compat.wids.wids import group_by_key, splitname
from tarmac.compat.wids.wids_cleanup import keep_most_recent_files
from tarmac.compat.wids.wids_dl import download_and_open, download_file
from tarmac.compat.wids.wids_mmtar import MMIndexedTar, keep_while_reading
from tarmac.compat.wids.wids_tar import TarFileReader, find_index_file
from tarmac.errors import NotFound

FILES = [("a/0.cls", b"7"), ("a/0.txt", b"caption"), ("a/1.cls", b"")]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain(FILES))
    return str(path)


def test_names():
    assert splitname("a.b/c.seg.png") == ("a.b/c", ".seg.png")
    with pytest.raises(ValueError, match="README"):
        splitname("README")
    assert group_by_key(["a.x", "README", "a.y", "b.x"]) == [[0, 2], [3]]
    assert find_index_file("a.tar") == "a.tar.index"


def test_files_by_number_and_name(path):
    assert TarFileReader is MMIndexedTar
    tar = MMIndexedTar(path)
    assert len(tar) == 3
    assert tar.names() == [name for name, _ in FILES]
    assert tar[1] == tar["a/0.txt"] == ("a/0.txt", b"caption")
    assert list(tar) == FILES
    name, file = tar.get_file(1)
    assert (name, file.read()) == ("a/0.txt", b"caption")
    tar.close()
    tar.close()
    with open(path, "rb") as stream:
        assert list(MMIndexedTar(stream)) == FILES
    assert list(MMIndexedTar(io.BytesIO(plain(FILES)))) == FILES


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_and_repeated_names(tmp_path, form):
    """In wids the list of names was shorter than that of files, which shifted all later positions."""
    files = [(f"{LONG}.txt", b"1"), ("b.txt", b"2"), ("b.txt", b"3"), ("c.txt", b"4")]
    (tmp_path / "a.tar").write_bytes(plain(files, form))
    tar = MMIndexedTar(str(tmp_path / "a.tar"))
    assert tar.names() == [name for name, _ in files]
    assert [tar.get_file(number)[1].read() for number in range(4)] == [b"1", b"2", b"3", b"4"]
    assert tar["b.txt"] == ("b.txt", b"3")
    tar.close()


def test_a_file_is_removed_by_its_last_reader(path):
    first, second = (MMIndexedTar(path, cleanup_callback=keep_while_reading) for _ in range(2))
    first.close()
    assert os.path.exists(path)
    assert second[0] == FILES[0]
    second.close()
    assert not os.path.exists(path)
    keep_while_reading(None, -1, "end")
    with pytest.raises(ValueError, match="middle"):
        keep_while_reading(path, 0, "middle")
    with pytest.raises(ValueError, match="delay"):
        keep_while_reading(path, 0, "end", delay=1)


@pytest.mark.processes
def test_downloads_appear_when_complete(path, tmp_path):
    local = str(tmp_path / "copy.tar")
    for _ in range(2):
        with download_and_open(f"pipe:cat {path}", local) as stream:
            assert stream.read() == plain(FILES)
    with pytest.raises(NotFound):
        download_and_open(str(tmp_path / "none"), str(tmp_path / "x"))
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "copy.tar"]  # no lock and part files


def test_downloads_by_functions(tmp_path):
    def fetch(remote, local):
        with open(local, "w") as file:
            file.write(remote)
        if "bad" in remote:
            raise OSError("broken")

    local = str(tmp_path / "x")
    with pytest.raises(OSError, match="broken"):
        download_file("mine://bad", local, handlers={"mine": fetch})
    assert os.listdir(tmp_path) == []
    assert download_file("mine://good", local, handlers={"mine": fetch}) == local
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [({}, "01234"), ({"maxfiles": 2}, "34"), ({"maxsize": 30}, "234"), ({"maxsize": 29}, "34")],
)
def test_the_newest_files_are_kept(tmp_path, limits, kept):
    for number in range(5):
        file = tmp_path / f"{number}.tar"
        file.write_bytes(bytes(10))
        os.utime(file, (number, number))
    (tmp_path / "other").touch()
    keep_most_recent_files(str(tmp_path / "*.tar"), **limits)
    assert sorted(os.listdir(tmp_path)) == [*(f"{number}.tar" for number in kept), "other"]
