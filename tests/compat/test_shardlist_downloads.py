"""Remote shards in lists: downloaded once, whole, under names of their own."""

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
from tarmac.compat.shardlist import (
    CacheLocalname,
    DefaultLocalname,
    ShardListDataset,
)
from tarmac.errors import NotATar, NotFound, ShortRead, TarmacError, UnsafeUrl
from tarmac.storage import FileStore, register_scheme


def entries(directory):
    return sorted(path.name.partition("-")[2] for path in Path(directory).iterdir() if path.is_file())


def test_downloads_are_kept(listed, far, tmp_path):
    for _ in range(2):
        dataset = ShardListDataset(listed, cache_dir=tmp_path / "cache")
        assert keys(dataset) == ALL
    assert far.fetched == [item["url"] for item in listed]
    assert entries(tmp_path / "cache") == ["x-0.tar", "x-1.tar", "x-2.tar"]
    assert dataset.cache_dir == str(tmp_path / "cache")


def test_names_that_end_alike_stay_apart(listed, far, tmp_path):
    """In wids a directory of one's own had one file for all of them."""
    (tmp_path / "y.tar").write_bytes(shard(7, 1))
    other = [{"url": "far://other/x-0.tar", "nsamples": 1}]
    register_scheme("far", FileStore(lambda url: io.BytesIO((tmp_path / url.split("/")[-1]).read_bytes())))
    assert len(keys(ShardListDataset(listed[:1], cache_dir=tmp_path / "cache"))) == 3
    register_scheme("far", FileStore(lambda url: io.BytesIO(shard(7, 1))))
    assert keys(ShardListDataset(other, cache_dir=tmp_path / "cache")) == ["7/0"]


def test_a_broken_download_leaves_nothing(listed, far, tmp_path):
    """wids took what had arrived for the shard, from then on."""
    far.broken = 1
    dataset = ShardListDataset(listed, cache_dir=tmp_path / "cache")
    with pytest.raises(ShortRead):
        dataset[0]
    assert entries(tmp_path / "cache") == []
    assert keys(dataset) == ALL


def test_pages_about_errors_are_no_shards(tmp_path):
    """wids kept the page that a web server sends with a 404 as the shard."""
    with FaultServer(shard(0, 3)) as server:
        listed = [{"url": server.url, "nsamples": 3}]
        dataset = ShardListDataset(listed, cache_dir=tmp_path / "cache")
        server.script([], then=Action(status=404))
        with pytest.raises(NotFound):
            dataset[0]
        assert not (tmp_path / "cache").exists() or entries(tmp_path / "cache") == []
        server.script([])
        assert len(keys(dataset)) == 3


def test_cache_size_has_its_effect(listed, far, tmp_path):
    size = (tmp_path / "x-2.tar").stat().st_size
    dataset = ShardListDataset(listed, cache_dir=tmp_path / "cache", cache_size=size + 1, lru_size=1)
    assert keys(dataset) == ALL
    assert entries(tmp_path / "cache") == ["x-1.tar", "x-2.tar"]  # the second was open when the third came
    tiny = ShardListDataset(listed, cache_dir=tmp_path / "tiny", cache_size=4)
    assert keys(tiny) == ALL  # larger than the directory may become: held in memory
    assert entries(tmp_path / "tiny") == []


def test_keep_has_its_effect(listed, far, tmp_path):
    dataset = ShardListDataset(listed, cache_dir=tmp_path / "cache", cache_size=4, keep=True)
    assert keys(dataset) == ALL
    assert len(entries(tmp_path / "cache")) == 3
    spec = {"wids_version": 1, "keep": True, "shardlist": listed}
    kept = ShardListDataset(io.StringIO(json.dumps(spec)), cache_dir=tmp_path / "kept", cache_size=4)
    assert keys(kept) == ALL
    assert len(entries(tmp_path / "kept")) == 3


def test_names_of_ones_own(listed, far, tmp_path):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "x-0.tar").write_bytes((tmp_path / "x-0.tar").read_bytes())

    def localname(url):
        return str(tmp_path / "mirror" / url.rpartition("/")[2])

    dataset = ShardListDataset(listed, localname=localname)
    assert keys(dataset) == ALL
    assert far.fetched == [item["url"] for item in listed[1:]]  # the first was there
    assert entries(tmp_path / "mirror") == ["0.tar", "x-1.tar", "x-2.tar"]
    assert dataset.cache_dir is None
    (tmp_path / "mirror" / "x-0.tar").write_bytes(b"<html>" * 200)
    with pytest.raises(NotATar):
        ShardListDataset(listed, localname=localname)[0]


def test_where_downloads_go_when_nobody_says(listed, far, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "env"))
    assert keys(ShardListDataset(listed)) == ALL
    assert len(entries(tmp_path / "env")) == 3
    monkeypatch.delenv("WIDS_CACHE")
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    dataset = ShardListDataset(listed)
    assert dataset.cache_dir == str(tmp_path / "home" / "wids")
    assert not (tmp_path / "home").exists()
    assert DefaultLocalname("/d")("s3://b/x.tar") == "/d/s3%3A%2F%2Fb%2Fx.tar"
    assert CacheLocalname("/d")("s3://b/x.tar?sig=1") == "/d/x.tar"


def test_commands_of_code(listed, tmp_path, monkeypatch):
    path = listed[0]["url"]
    commands = [f"pipe:cat {path}", f"pipe:echo noise; cp '{path}' {{local}}"]
    for command in commands:
        dataset = ShardListDataset([{"url": command, "nsamples": 3}], cache_dir=tmp_path / "cache")
        assert keys(dataset) == ALL[:3]
    assert len(entries(tmp_path / "cache")) == 2
    text = json.dumps({"wids_version": 1, "shardlist": [{"url": commands[0], "nsamples": 3}]})
    with pytest.raises(UnsafeUrl, match="commands"):
        ShardListDataset(io.StringIO(text))


def test_a_command_that_fails_is_an_error(tmp_path):
    listed = [{"url": "pipe:false {local}", "nsamples": 3}]
    with pytest.raises(TarmacError):
        ShardListDataset(listed, cache_dir=tmp_path / "cache")[0]


def test_importing_it_makes_no_directories(tmp_path):
    """wids made a folder with a fixed name when it was imported."""
    code = """
        import os, sys
        made = []
        sys.addaudithook(lambda event, args: made.append(args) if event == "os.mkdir" else None)
        import tarmac.compat.shardlist as s
        s.ShardListDataset([{"url": "far://a/b.tar", "nsamples": 1}], cache_dir=sys.argv[1] + "/c")
        s.LRUShards(1)
        assert made == [] and os.listdir(sys.argv[1]) == []
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], check=True)
