"""What names a dataset: a manifest, shards with an index, shards without."""

from __future__ import annotations

import json
import os

import pytest

from harness.datasets import write_shards
from harness.faultserver import FaultServer
from harness.shards import plain
from tarmac.errors import BadManifest, NotFound, TransferError, Truncated
from tarmac.indexing import build as indexing
from tarmac.indexing.auto import manifest_of
from tarmac.indexing.build import IndexOptions
from tarmac.indexing.manifest import Manifest, Shard, write_manifest
from tarmac.storage import StorageOptions

FAST = StorageOptions(backoff=0.001, max_backoff=0.005, retries=1, idle_timeout=60)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def found(source):
    return manifest_of(source)


def test_a_manifest_is_itself():
    manifest = Manifest([Shard("a.tar", 1)])
    assert found(manifest) is manifest


def test_a_manifest_by_name(tmp_path):
    write_manifest(Manifest([Shard(str(tmp_path / "a.tar"), 1)], "name"), str(tmp_path / "M.JSON"))
    for source in (tmp_path / "M.JSON", str(tmp_path / "M.JSON")):
        assert found(source).name == "name"
    (tmp_path / "x.json").write_text(json.dumps({}))
    with pytest.raises(BadManifest):
        found(tmp_path / "x.json")


def test_shards_are_read_only_the_first_time(tmp_path, monkeypatch):
    urls = write_shards(tmp_path, [2, 3], index=False)
    read, real = [], indexing.read_members

    def counted(source, *args, url, **kw):
        read.append(url)
        return real(source, *args, url=url, **kw)

    monkeypatch.setattr(indexing, "read_members", counted)
    for source in (urls, str(tmp_path / "s*.tar"), str(tmp_path / "s{000..001}.tar"), iter(urls)):
        manifest = found(source)
        assert [(s.url, s.samples) for s in manifest.shards] == list(zip(urls, [2, 3], strict=True))
        assert all(s.fingerprint and s.size == os.path.getsize(s.url) for s in manifest.shards)
    assert read == urls


def test_shards_in_a_store_are_indexed_among_our_own_files(home):
    data = plain()
    with FaultServer(data) as server:
        urls = [f"{server.url}?{number}" for number in range(20)]
        manifest = manifest_of(urls, IndexOptions(storage=FAST))
        assert [(shard.url, shard.samples, shard.size) for shard in manifest.shards] == [
            (url, 3, len(data)) for url in urls
        ]
        assert len(os.listdir(home / "index")) == 20
        assert not [name for name in os.listdir(home / "index") if "?" in name]
        # Every URL gives the shard here, also that of the index; what it gives is no index.
        server.clear()
        assert manifest_of(urls[:1], IndexOptions(storage=FAST)).shards == manifest.shards[:1]
    with pytest.raises(TransferError):
        manifest_of(urls, IndexOptions(storage=FAST))


def test_one_bad_shard_is_an_error(tmp_path):
    urls = write_shards(tmp_path, [2, 3], index=False)
    with open(urls[1], "r+b") as file:
        file.truncate(1024)
    with pytest.raises(Truncated, match=r"s001\.tar"):
        found(urls)
    with pytest.raises(NotFound):
        found([])


def test_progress(tmp_path, capsys):
    urls = write_shards(tmp_path, [1, 1])
    manifest_of(urls, show=False)
    assert capsys.readouterr().err == ""
