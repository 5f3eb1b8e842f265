"""Existing outputs of a job: their sizes, on disk and in stores, and sampled digests."""

from __future__ import annotations

import pytest

from tarmac.errors import AccessDenied, ConnectFailed, NotFound
from tarmac.jobs import outputs
from tarmac.jobs.outputs import UNKNOWN_SIZE, existing_sizes, sampled_digests
from tarmac.storage.types import ObjectInfo


def test_sizes_of_files(tmp_path):
    (tmp_path / "a").write_text("abc")
    (tmp_path / "b").write_text("")
    urls = [str(tmp_path / name) for name in "abc"]
    assert existing_sizes(urls) == {urls[0]: 3, urls[1]: 0}
    assert existing_sizes([]) == {}


def test_sizes_of_objects(monkeypatch):
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
    assert existing_sizes(urls) == {urls[0]: 7, urls[2]: UNKNOWN_SIZE}
    with pytest.raises(ConnectFailed):
        existing_sizes([*urls, "s3://b/down"])


def test_sampled_digests_survive_moving_and_detect_changes(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 4096)
    before = sampled_digests([str(path)])
    path.rename(tmp_path / "y")
    (tmp_path / "y").rename(path)
    assert sampled_digests([str(path)]) == before
    changed = bytearray(path.read_bytes())
    changed[0] = 1
    path.write_bytes(changed)
    assert sampled_digests([str(path)]) != before
    path.write_bytes(b"")
    others = [str(tmp_path), str(tmp_path / "absent"), "s3://b/x"]
    assert sampled_digests([str(path), *others]).keys() == {str(path)}
