"""Remote shards in lists: downloaded once and completely, under distinct names."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from compat.conftest import ALL, keys, shard
from harness.faultserver import Action, FaultServer
from tarmac.compat.wids.wids import (
    CacheLocalname,
    DefaultLocalname,
    ShardListDataset,
)
from tarmac.errors import NotATar, NotFound, ShortRead, TarmacError, UnsafeUrl
from tarmac.storage import FileStore, register_scheme


def entries(directory):
    return sorted(path.name.partition("-")[2] for path in Path(directory).iterdir() if path.is_file())


def test_downloads_are_kept(shards, remote, tmp_path):
    for _ in range(2):
        dataset = ShardListDataset(shards, cache_dir=tmp_path / "cache")
        assert keys(dataset) == ALL
    assert remote.fetched == [item["url"] for item in shards]
    assert entries(tmp_path / "cache") == ["x-0.tar", "x-1.tar", "x-2.tar"]
    assert dataset.cache_dir == str(tmp_path / "cache")


def test_shards_with_equal_file_names_are_distinct(shards, remote, tmp_path):
    """In wids, they had one file in a custom directory."""
    (tmp_path / "y.tar").write_bytes(shard(7, 1))
    other = [{"url": "remote://other/x-0.tar", "nsamples": 1}]
    register_scheme("remote", FileStore(lambda url: io.BytesIO((tmp_path / url.split("/")[-1]).read_bytes())))
    assert len(keys(ShardListDataset(shards[:1], cache_dir=tmp_path / "cache"))) == 3
    register_scheme("remote", FileStore(lambda url: io.BytesIO(shard(7, 1))))
    assert keys(ShardListDataset(other, cache_dir=tmp_path / "cache")) == ["7/0"]


def test_a_broken_download_leaves_nothing(shards, remote, tmp_path):
    """wids used the part that had arrived as the shard."""
    remote.broken = 1
    dataset = ShardListDataset(shards, cache_dir=tmp_path / "cache")
    with pytest.raises(ShortRead):
        dataset[0]
    assert entries(tmp_path / "cache") == []
    assert keys(dataset) == ALL


def test_error_pages_are_not_kept(tmp_path):
    """wids kept the body of a 404 response as the shard."""
    with FaultServer(shard(0, 3)) as server:
        shards = [{"url": server.url, "nsamples": 3}]
        dataset = ShardListDataset(shards, cache_dir=tmp_path / "cache")
        server.script([], then=Action(status=404))
        with pytest.raises(NotFound):
            dataset[0]
        assert not (tmp_path / "cache").exists() or entries(tmp_path / "cache") == []
        server.script([])
        assert len(keys(dataset)) == 3


def test_cache_size(shards, remote, tmp_path):
    size = (tmp_path / "x-2.tar").stat().st_size
    dataset = ShardListDataset(shards, cache_dir=tmp_path / "cache", cache_size=size + 1, lru_size=1)
    assert keys(dataset) == ALL
    assert entries(tmp_path / "cache") == ["x-2.tar"]
    tiny = ShardListDataset(shards, cache_dir=tmp_path / "tiny", cache_size=4)
    assert keys(tiny) == ALL  # larger than the cache: held in memory
    assert entries(tmp_path / "tiny") == []


def test_keep(shards, remote, tmp_path):
    dataset = ShardListDataset(shards, cache_dir=tmp_path / "cache", cache_size=4, keep=True)
    assert keys(dataset) == ALL
    assert len(entries(tmp_path / "cache")) == 3
    spec = {"wids_version": 1, "keep": True, "shardlist": shards}
    kept = ShardListDataset(io.StringIO(json.dumps(spec)), cache_dir=tmp_path / "kept", cache_size=4)
    assert keys(kept) == ALL
    assert len(entries(tmp_path / "kept")) == 3


def test_custom_localname(shards, remote, tmp_path):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "x-0.tar").write_bytes((tmp_path / "x-0.tar").read_bytes())

    def localname(url):
        return str(tmp_path / "mirror" / url.rpartition("/")[2])

    dataset = ShardListDataset(shards, localname=localname)
    assert keys(dataset) == ALL
    assert remote.fetched == [item["url"] for item in shards[1:]]  # the first exists
    assert sorted(path.name for path in (tmp_path / "mirror").iterdir()) == ["x-0.tar", "x-1.tar", "x-2.tar"]
    for number in range(3):
        path = tmp_path / "mirror" / f"x-{number}.tar"
        assert path.read_bytes() == (tmp_path / f"x-{number}.tar").read_bytes()
    assert dataset.cache_dir is None
    (tmp_path / "mirror" / "x-0.tar").write_bytes(b"<html>" * 200)
    with pytest.raises(NotATar):
        ShardListDataset(shards, localname=localname)[0]


def test_what_is_not_a_shard_does_not_stay_under_its_localname(shards, remote, tmp_path):
    (tmp_path / "x-0.tar").write_bytes(b"<html>" * 200)
    local = tmp_path / "local.tar"
    dataset = ShardListDataset(shards[:1], localname=lambda url: str(local))
    with pytest.raises(NotATar, match="remote://host/x-0"):
        dataset[0]
    remote.broken = 1
    (tmp_path / "x-0.tar").write_bytes(shard(0, 3))
    with pytest.raises(ShortRead):
        dataset[0]
    assert not local.exists()
    assert keys(dataset) == ALL[:3]
    assert local.read_bytes() == shard(0, 3)


def test_default_directories(shards, remote, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "env"))
    assert keys(ShardListDataset(shards)) == ALL
    assert len(entries(tmp_path / "env")) == 3
    monkeypatch.delenv("WIDS_CACHE")
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    dataset = ShardListDataset(shards)
    assert dataset.cache_dir == str(tmp_path / "home" / "wids")
    assert not (tmp_path / "home").exists()
    assert DefaultLocalname("/d")("s3://b/x.tar") == "/d/s3%3A%2F%2Fb%2Fx.tar"
    assert CacheLocalname("/d")("s3://b/x.tar?sig=1") == "/d/x.tar"


def test_commands_of_code(shards, tmp_path, monkeypatch):
    path = shards[0]["url"]
    commands = [f"pipe:cat {path}", f"pipe:echo noise; cp '{path}' {{local}}"]
    for command in commands:
        dataset = ShardListDataset([{"url": command, "nsamples": 3}], cache_dir=tmp_path / "cache")
        assert keys(dataset) == ALL[:3]
    assert len(entries(tmp_path / "cache")) == 2
    text = json.dumps({"wids_version": 1, "shardlist": [{"url": commands[0], "nsamples": 3}]})
    with pytest.raises(UnsafeUrl, match="commands"):
        ShardListDataset(io.StringIO(text))


def test_a_command_that_fails_is_an_error(tmp_path):
    shards = [{"url": "pipe:false {local}", "nsamples": 3}]
    with pytest.raises(TarmacError):
        ShardListDataset(shards, cache_dir=tmp_path / "cache")[0]


def test_import_creates_no_directories(tmp_path):
    """wids created a directory when it was imported."""
    code = """
        import os, sys
        created = []
        sys.addaudithook(lambda event, args: created.append(args) if event == "os.mkdir" else None)
        import tarmac.compat.wids.wids as s
        s.ShardListDataset([{"url": "remote://a/b.tar", "nsamples": 1}], cache_dir=sys.argv[1] + "/c")
        s.LRUShards(1)
        assert created == [] and os.listdir(sys.argv[1]) == []
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], check=True)
