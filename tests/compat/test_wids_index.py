"""The command `widsindex`."""

from __future__ import annotations

import hashlib
import io
import json
import sys

import pytest

from harness.shards import plain
from tarmac.compat.wids.wids import ShardListDataset
from tarmac.compat.wids.wids_index import (
    AtomicJsonUpdate,
    format_with_suffix,
    main,
    shorten_name,
    urldirbase,
    urlfile,
)


@pytest.fixture
def directory(tmp_path, monkeypatch):
    for number in range(2):
        files = [(f"{number}{i}.cls", b"%d" % i) for i in range(3)]
        (tmp_path / f"set-{number}.tar").write_bytes(plain(files))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def index(directory):
    return json.loads((directory / "shardindex.json").read_text())


@pytest.mark.processes
def test_create(directory, monkeypatch):
    main(["create", "set-{0..1}.tar"])
    result = index(directory)
    assert result["name"] == "set"
    data = (directory / "set-0.tar").read_bytes()
    assert result["shardlist"][0] == {
        "url": "set-0.tar",
        "md5sum": hashlib.md5(data).hexdigest(),
        "nsamples": 3,
        "filesize": len(data),
    }
    assert len(ShardListDataset("shardindex.json")) == 6
    monkeypatch.setattr(sys, "stdin", io.StringIO("set-1.tar\npipe:cat set-0.tar\n"))
    (directory / "info").write_text("about it")
    main(["create", "-", "-o", "other.json", "-n", "", "-i", "info", "-b", "s3://b"])
    other = json.loads((directory / "other.json").read_text())
    assert [shard["nsamples"] for shard in other["shardlist"]] == [3, 3]
    assert (other["info"], other["base"]) == ("about it", "s3://b")
    assert "name" not in other


def test_update_keeps_other_values(directory):
    """In wids every update set keep=False."""
    main(["create", "set-0.tar"])
    main(["update", "shardindex.json", "-n", "new"])
    assert index(directory)["name"] == "new"
    assert "keep" not in index(directory)
    main(["update", "shardindex.json", "--keep"])
    assert index(directory)["keep"] is True
    main(["update", "shardindex.json", "-i", "x"])
    assert index(directory)["keep"] is True
    main(["update", "shardindex.json", "-K"])
    assert index(directory)["keep"] is False
    assert json.loads((directory / "shardindex.json.bak").read_text())["keep"] is True


def test_update_of_directories(directory):
    main(["create", f"{directory}/set-0.tar"])
    main(["update", "shardindex.json", "--rebase"])
    assert index(directory)["base"] == f"file://{directory}"
    assert index(directory)["shardlist"][0]["url"] == "set-0.tar"
    assert ShardListDataset("shardindex.json")[0]["__key__"] == "00"
    main(["update", "shardindex.json", "-d", "s3://b/c"])
    assert index(directory)["shardlist"][0]["url"] == "s3://b/c/set-0.tar"
    main(["update", "shardindex.json", "--nodir"])
    assert index(directory)["shardlist"][0]["url"] == "set-0.tar"
    with AtomicJsonUpdate("shardindex.json") as data:
        data["shardlist"].append({"url": "s3://elsewhere/x.tar", "nsamples": 1})
    existing = (directory / "shardindex.json").read_bytes()
    with pytest.raises(SystemExit, match="2 directories"):
        main(["update", "shardindex.json", "--rebase"])
    assert (directory / "shardindex.json").read_bytes() == existing


def test_info_and_sample(directory, capfdbinary):
    main(["create", "set-0.tar", "set-1.tar", "-n", "mine"])
    main(["info", "shardindex.json"])
    assert b"total samples: 6.0" in capfdbinary.readouterr().out
    main(["info", "-t", "shardindex.json"])
    size = (directory / "set-0.tar").stat().st_size
    assert capfdbinary.readouterr().out.splitlines()[1].split(b"\t")[1:4] == [
        b"mine",
        b"%d" % (2 * size),
        b"6",
    ]
    main(["sample", "shardindex.json", "4"])
    assert b".cls           1\n" in capfdbinary.readouterr().out
    main(["sample", "shardindex.json", "4", "-r"])
    assert b".cls           b'1'\n" in capfdbinary.readouterr().out
    main(["sample", "shardindex.json", "4", "-c", ".cls"])
    assert capfdbinary.readouterr().out == b"1"


def test_helpers():
    assert [format_with_suffix(number) for number in (1, 1500, 2e6, 1e16)] == ["1.0", "1.5k", "2.0M", "10.0E"]
    assert shorten_name("s3://bucket/train/train-000") == "s3-bucket-train"
    assert urlfile("s3://b/c.tar?x=1") == "c.tar"
    assert urlfile("d/c#1.tar") == "c#1.tar"
    assert urldirbase("s3://b/d/c.tar") == "s3://b/d"
    assert urldirbase("/d/c.tar") == "file:///d"


def test_a_file_with_the_name_of_a_command_is_a_file(directory):
    """Neither in a list nor in a manifest."""
    name = "pipe:touch canary"
    (directory / name).write_bytes((directory / "set-0.tar").read_bytes())
    (directory / "list.txt").write_text(f"file:{name}\n")
    (directory / "list.json").write_text(
        json.dumps({"wids_version": 1, "shardlist": [{"url": f"file:{name}", "nsamples": 3}]})
    )
    for source in ("@list.txt", "list.json"):
        main(["create", source])
        assert [shard["nsamples"] for shard in index(directory)["shardlist"]] == [3]
    assert not (directory / "canary").exists()


def test_info_shows_neither_secrets_nor_control_characters(directory, capsys):
    shard = {"url": "http://u:hunter2@h/x.tar?sig=hunter2", "nsamples": 1, "filesize": 1}
    spec = {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "shardlist": [shard],
        "name": "a\x1b[31m\nb",
    }
    (directory / "x.json").write_text(json.dumps(spec))
    for more in ([], ["-t"]):
        main(["info", "x.json", *more])
        shown = capsys.readouterr().out
        assert "hunter2" not in shown
        assert all(line.replace("\t", "").isprintable() for line in shown.split("\n"))
