"""What a job has made is looked for, on disks and in stores."""

from __future__ import annotations

import pytest

from tarmac.errors import AccessDenied, ConnectFailed, NotFound
from tarmac.jobs import outputs
from tarmac.jobs.outputs import UNTOLD, marks_of, sizes_there
from tarmac.storage.types import ObjectInfo


def test_files(tmp_path):
    (tmp_path / "a").write_text("abc")
    (tmp_path / "b").write_text("")
    urls = [str(tmp_path / name) for name in "abc"]
    assert sizes_there(urls) == {urls[0]: 3, urls[1]: 0}
    assert sizes_there([]) == {}


def test_objects(monkeypatch):
    def stat(url, _storage):
        if url.endswith("absent"):
            raise NotFound("no.", url=url)
        if url.endswith("secret"):
            raise AccessDenied("no.", url=url)
        if url.endswith("down"):
            raise ConnectFailed("no.", url=url)
        return ObjectInfo(7, "v")

    monkeypatch.setattr(outputs, "stat", stat)
    urls = [f"s3://b/{name}" for name in ("there", "absent", "secret")]
    assert sizes_there(urls) == {urls[0]: 7, urls[2]: UNTOLD}
    with pytest.raises(ConnectFailed):
        sizes_there([*urls, "s3://b/down"])


def test_a_file_is_known_again_by_what_is_in_it(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 4096)
    before = marks_of([str(path)])
    path.rename(tmp_path / "y")
    (tmp_path / "y").rename(path)
    assert marks_of([str(path)]) == before
    other = bytearray(path.read_bytes())
    other[0] = 1
    path.write_bytes(other)
    assert marks_of([str(path)]) != before
    path.write_bytes(b"")
    assert marks_of([str(path), str(tmp_path), str(tmp_path / "absent"), "s3://b/x"]).keys() == {str(path)}
