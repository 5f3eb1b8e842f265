"""Delete files and objects, and read back what is not published yet."""

from __future__ import annotations

import os

import pytest

from storage.test_relay import in_child
from tarmac.errors import NotFound, UnsupportedScheme, WriteError
from tarmac.storage import StorageOptions, delete, open_write, stat, write_all
from tarmac.storage.types import ReadableSink


@pytest.fixture(params=["disk", "store"])
def location(request, tmp_path, s3):
    if request.param == "disk":
        return f"{tmp_path}/x", StorageOptions()
    return f"s3://data/{tmp_path.name}/x", StorageOptions(config=s3.config())


def test_deleted_objects_are_gone(location):
    url, storage = location
    write_all(url, b"abc", storage)
    delete(url, storage)
    with pytest.raises(NotFound):
        stat(url, storage)
    delete(url, storage)  # what does not exist is not an error


def test_a_forked_process_deletes_too(location):
    url, storage = location
    write_all(url, b"abc", storage)
    in_child(lambda: delete(url, storage))
    with pytest.raises(NotFound):
        stat(url, storage)


def test_what_cannot_be_deleted(tmp_path, web):
    with pytest.raises(UnsupportedScheme):
        delete(f"{web}/x")
    (tmp_path / "directory").mkdir()
    with pytest.raises(WriteError):
        delete(f"{tmp_path}/directory")


def test_written_bytes_can_be_read_before_they_are_published(location):
    url, storage = location
    sink = open_write(url, storage)
    assert isinstance(sink, ReadableSink)
    content = os.urandom(1_000_000)
    for start in range(0, len(content), 30_000):
        sink.write(content[start : start + 30_000])
        stop = min(start + 30_000, len(content))
        assert sink.tell() == stop
        assert sink.read_back(start // 2, 70_000) == content[start // 2 : min(start // 2 + 70_000, stop)]
    assert sink.read_back(len(content), 10) == b""
    sink.write(b"more")
    sink.commit()
    assert stat(url, storage).size == len(content) + 4
