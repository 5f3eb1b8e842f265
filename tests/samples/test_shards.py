"""Numbered shards: names, sizes, indexes, and failures."""

from __future__ import annotations

import logging
import os

import pytest

import tarmac
from tarmac.errors import UrlError, UsageError
from tarmac.indexing.manifest import read_manifest
from tarmac.samples.shards import ShardWriter, fill_pattern


def fill(writer, count, size=10):
    for i in range(count):
        writer.write({"__key__": f"{i:04d}", "txt": "x" * size})


@pytest.mark.parametrize("pattern", ["a-%03d.tar", "a-{i:03d}.tar", "a-{:03d}.tar"])
def test_names(pattern, tmp_path):
    with ShardWriter(str(tmp_path / pattern), max_samples=3, start_shard=5) as shards:
        fill(shards, 7)
    assert sorted(os.listdir(tmp_path)) == ["a-005.tar", "a-006.tar", "a-007.tar"]
    assert [len(list(tarmac.read(tmp_path / name))) for name in sorted(os.listdir(tmp_path))] == [3, 3, 1]


@pytest.mark.parametrize(
    "pattern", ["a.tar", "a-{j}.tar", "a-{.tar", "a-{i.x}.tar", "a-{i:z}.tar", "my%20data.tar", "%d0.tar"]
)
def test_invalid_patterns(pattern):
    with pytest.raises(UrlError) as caught:
        ShardWriter(pattern)
    assert caught.value.url == pattern


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("50%/a-{i}.tar", "50%/a-3.tar"),
        ("s3://b/my%20data-%06d.tar", "s3://b/my%20data-000003.tar"),
        ("%d0/%02d-%d.tar", "%d0/03-3.tar"),
        ("{i:03d}-%06d.tar", "003-%06d.tar"),
    ],
)
def test_percent_signs_in_patterns(pattern, name):
    assert fill_pattern(pattern, 3) == name


def test_max_bytes(tmp_path):
    with ShardWriter(str(tmp_path / "a-%d.tar"), max_bytes=100) as shards:
        fill(shards, 25, size=10)
        assert shards.samples_written == 25
    assert len(os.listdir(tmp_path)) == 3
    for argument in ("max_samples", "max_bytes"):
        with pytest.raises(UsageError) as caught:
            ShardWriter("a-%d.tar", **{argument: 0})
        assert caught.value.field == argument


def test_no_shard_without_samples(tmp_path):
    with ShardWriter(str(tmp_path / "a-%d.tar")):
        pass
    assert os.listdir(tmp_path) == []


def test_on_shard_is_called_for_complete_shards_only(tmp_path):
    seen = []

    def record(name):
        seen.append((os.path.basename(name), len(list(tarmac.read(name)))))

    with (
        pytest.raises(RuntimeError),
        ShardWriter(str(tmp_path / "a-%d.tar"), max_samples=2, on_shard=record) as shards,
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


def test_each_shard_is_logged(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "tarmac"), ShardWriter(str(tmp_path / "a-%d.tar")) as shards:
        fill(shards, 2)
    (message,) = caplog.messages
    assert "2 samples" in message


def test_writer_options_reach_the_shards(tmp_path):
    with ShardWriter(str(tmp_path / "a-%d.tar"), mtime=9, encoder=False, compress="xz") as shards:
        fill(shards, 1)
    assert (tmp_path / "a-0.tar").read_bytes().startswith(b"\xfd7zXZ")


@pytest.mark.parametrize("as_path", [False, True])
def test_index_and_manifest(tmp_path, as_path):
    manifest = tmp_path / "all.json"
    (tmp_path / "d").mkdir()
    with ShardWriter(
        str(tmp_path / "d/a-%d.tar"), max_samples=2, index=manifest if as_path else str(manifest)
    ) as shards:
        fill(shards, 5)
        assert not manifest.exists()  # it names complete shards only
    result = read_manifest(str(manifest))
    assert (result.name, result.samples) == ("all", 5)
    assert [(os.path.basename(s.url), s.samples, s.size) for s in result.shards] == [
        (f"a-{i}.tar", n, (tmp_path / f"d/a-{i}.tar").stat().st_size) for i, n in enumerate([2, 2, 1])
    ]
    ds = tarmac.Dataset(manifest, verify=True)
    assert list(ds) == list(tarmac.read(str(tmp_path / "d/a-{0..2}.tar")))
    shards.close()
    assert read_manifest(str(manifest)) == result


def test_index_without_a_manifest(tmp_path):
    with ShardWriter(str(tmp_path / "a-%d.tar"), max_samples=1, index=True) as shards:
        fill(shards, 2)
    names = ["a-0.tar", "a-0.tar.arrow", "a-1.tar", "a-1.tar.arrow"]
    assert sorted(os.listdir(tmp_path)) == names


def test_no_manifest_after_a_failure_or_without_samples(tmp_path):
    with pytest.raises(RuntimeError), ShardWriter(str(tmp_path / "a-%d.tar"), index="m.json") as shards:
        fill(shards, 1)
        raise RuntimeError
    with ShardWriter(str(tmp_path / "a-%d.tar"), index=str(tmp_path / "m.json")):
        pass
    assert os.listdir(tmp_path) == []
