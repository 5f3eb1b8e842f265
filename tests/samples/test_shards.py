"""Numbered shards: when one is full, what they are called, what happens when something fails."""

from __future__ import annotations

import io
import logging
import os

import pytest

import tarmac
from tarmac.errors import UrlError
from tarmac.indexing.manifest import read_manifest
from tarmac.samples.shards import ShardWriter, shard_name


def fill(writer, count, size=10):
    for i in range(count):
        writer.write({"__key__": f"{i:04d}", "txt": "x" * size})


@pytest.mark.parametrize("pattern", ["a-%03d.tar", "a-{i:03d}.tar", "a-{:03d}.tar"])
def test_names(pattern, tmp_path):
    with ShardWriter(str(tmp_path / pattern), maxcount=3, start_shard=5) as shards:
        fill(shards, 7)
    assert sorted(os.listdir(tmp_path)) == ["a-005.tar", "a-006.tar", "a-007.tar"]
    assert [len(list(tarmac.read(tmp_path / name))) for name in sorted(os.listdir(tmp_path))] == [3, 3, 1]


@pytest.mark.parametrize("pattern", ["a.tar", "a-{j}.tar", "a-{.tar"])
def test_patterns_that_cannot_number(pattern):
    with pytest.raises(UrlError):
        ShardWriter(pattern)


def test_percent_in_directories():
    assert shard_name("50%/a-{i}.tar", 3) == "50%/a-3.tar"


def test_maxsize(tmp_path):
    with ShardWriter(str(tmp_path / "a-%d.tar"), maxsize=100) as shards:
        fill(shards, 25, size=10)
        assert shards.total == 25
    assert len(os.listdir(tmp_path)) == 3
    for bad in ({"maxcount": 0}, {"maxsize": 0}):
        with pytest.raises(ValueError, match="positive"):
            ShardWriter("a-%d.tar", **bad)


def test_no_samples_no_shard(tmp_path):
    with ShardWriter(str(tmp_path / "a-%d.tar")):
        pass
    assert os.listdir(tmp_path) == []


def test_post_is_called_for_whole_shards_only(tmp_path):
    seen = []

    def post(name):
        seen.append((os.path.basename(name), len(list(tarmac.read(name)))))

    with (
        pytest.raises(RuntimeError),
        ShardWriter(str(tmp_path / "a-%d.tar"), maxcount=2, post=post) as shards,
    ):
        fill(shards, 5)
        raise RuntimeError
    assert seen == [("a-0.tar", 2), ("a-1.tar", 2)]
    assert sorted(os.listdir(tmp_path)) == ["a-0.tar", "a-1.tar"]


def test_closing_twice(tmp_path):
    shards = ShardWriter(str(tmp_path / "a-%d.tar"))
    fill(shards, 2)
    shards.close()
    shards.close()
    assert os.listdir(tmp_path) == ["a-0.tar"]


def test_opener_gets_names_and_compression_and_is_closed():
    opened = {}

    class Kept(io.BytesIO):
        def close(self):
            self.content = self.getvalue()
            super().close()

    def opener(name):
        opened[name] = Kept()
        return opened[name]

    with ShardWriter("a-%d.tar.gz", maxcount=2, opener=opener) as shards:
        fill(shards, 3)
    assert sorted(opened) == ["a-0.tar.gz", "a-1.tar.gz"]
    assert all(file.closed and file.content.startswith(b"\x1f\x8b") for file in opened.values())


def test_verbose_logs(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "tarmac"):
        with ShardWriter(str(tmp_path / "a-%d.tar"), verbose=1) as shards:
            fill(shards, 2)
        with ShardWriter(str(tmp_path / "b-%d.tar"), verbose=0) as shards:
            fill(shards, 2)
    assert len(caplog.messages) == 1
    assert "2 samples" in caplog.messages[0]


def test_writer_options_reach_the_shards(tmp_path):
    with ShardWriter(str(tmp_path / "a-%d.tar"), mtime=9, encoder=False, compress="xz") as shards:
        fill(shards, 1)
    assert (tmp_path / "a-0.tar").read_bytes().startswith(b"\xfd7zXZ")


@pytest.mark.parametrize("as_path", [False, True])
def test_index_and_manifest(tmp_path, as_path):
    manifest = tmp_path / "all.json"
    (tmp_path / "d").mkdir()
    with ShardWriter(
        str(tmp_path / "d/a-%d.tar"), maxcount=2, index=manifest if as_path else str(manifest)
    ) as shards:
        fill(shards, 5)
        assert not manifest.exists()  # it names whole shards only
    found = read_manifest(str(manifest))
    assert (found.name, found.samples) == ("all", 5)
    assert [(os.path.basename(s.url), s.samples, s.size) for s in found.shards] == [
        (f"a-{i}.tar", n, (tmp_path / f"d/a-{i}.tar").stat().st_size) for i, n in enumerate([2, 2, 1])
    ]
    ds = tarmac.Dataset(manifest, verify=True)
    assert list(ds) == list(tarmac.read(str(tmp_path / "d/a-{0..2}.tar")))
    shards.close()
    assert read_manifest(str(manifest)) == found


def test_index_without_a_manifest(tmp_path):
    with ShardWriter(str(tmp_path / "a-%d.tar"), maxcount=1, index=True) as shards:
        fill(shards, 2)
    names = ["a-0.tar", "a-0.tar.arrow", "a-1.tar", "a-1.tar.arrow"]
    assert sorted(os.listdir(tmp_path)) == names


def test_no_manifest_of_what_failed_and_none_of_nothing(tmp_path):
    with pytest.raises(RuntimeError), ShardWriter(str(tmp_path / "a-%d.tar"), index="m.json") as shards:
        fill(shards, 1)
        raise RuntimeError
    with ShardWriter(str(tmp_path / "a-%d.tar"), index=str(tmp_path / "m.json")):
        pass
    assert os.listdir(tmp_path) == []


def test_no_index_with_an_opener():
    with pytest.raises(ValueError, match="opener"):
        ShardWriter("a-%d.tar", index=True, opener=lambda name: io.BytesIO())
