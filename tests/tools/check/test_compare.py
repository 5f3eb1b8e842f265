"""Compare shards with their index and manifest."""

from __future__ import annotations

import os

import pytest

import tarmac
from harness.shards import plain
from tarmac.errors import DigestMismatch, IndexDamaged, IndexMissing, IndexStale
from tarmac.tools.check.shard import entries_of

FILES = [(f"s{n}.{field}", f"{field} {n}".encode()) for n in range(4) for field in ("cls", "txt")]


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain(FILES))
    tarmac.index([str(path)], str(tmp_path / "all.json"), digests=True)
    return path


def rewrite(path, data):
    """Change the file so that neither size nor time show it."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def kinds(shards, **checks):
    (result,) = tarmac.check(shards, all_errors=True, **checks).shards
    return [type(error) for error in result.errors]


def test_as_it_was_indexed(shard, tmp_path):
    assert kinds([str(shard)], digests=True) == []
    assert kinds([str(shard)], manifest=str(tmp_path / "all.json")) == []
    assert kinds([str(tmp_path / "all.json")]) == []


def test_a_byte_that_changed(shard, tmp_path):
    data = bytearray(shard.read_bytes())
    data[data.index(b"txt 2")] ^= 1
    rewrite(shard, bytes(data))
    assert kinds([str(shard)]) == []  # which no archive can see
    for how in ({"digests": True}, {"manifest": str(tmp_path / "all.json")}):
        (result,) = tarmac.check([str(shard)], **how).shards
        assert isinstance(result.error, DigestMismatch)
        assert result.error.key == "s2"
    assert kinds([str(tmp_path / "all.json")]) == [DigestMismatch]


def test_other_samples_than_indexed(shard):
    rewrite(shard, plain([("s0.cls", b"cls 0"), *FILES[3:], ("s9.txt", b""), ("s9.x", b"")]))
    assert set(kinds([str(shard)], digests=True)) == {IndexStale}
    rewrite(shard, plain([*FILES[:2], ("x.cls", b"")]))
    assert kinds([str(shard)], digests=True) == [IndexStale, IndexStale]
    rewrite(shard, plain([(name, b"longer" + data) for name, data in FILES]))
    assert IndexStale in kinds([str(shard)], digests=True)
    rewrite(shard, plain([*FILES, ("t.cls", b"")]))
    assert IndexStale in kinds([str(shard)], digests=True)


def test_copied_and_written_again(shard):
    os.utime(shard, ns=(0, 0))
    assert kinds([str(shard)], digests=True) == []
    shard.write_bytes(plain(FILES, mtime=1))
    assert kinds([str(shard)], digests=True) == [IndexStale]


def test_indexes_that_are_not_there_or_not_right(shard, tmp_path):
    sidecar = tmp_path / "a.tar.arrow"
    content = sidecar.read_bytes()
    sidecar.write_bytes(content[:100])
    assert kinds([str(shard)], digests=True) == [IndexDamaged]
    sidecar.unlink()
    assert kinds([str(shard)], digests=True) == [IndexMissing]
    tarmac.index([str(shard)])
    assert kinds([str(shard)], digests=True) == [IndexMissing]  # no digests in it
    assert kinds([str(shard)], manifest=str(tmp_path / "all.json")) == []
    other = tmp_path / "b.tar"
    other.write_bytes(plain(FILES))
    assert kinds([str(other)], manifest=str(tmp_path / "all.json")) == [IndexMissing]
    shard.write_bytes(plain(FILES[2:]))
    tarmac.index([str(shard)])
    assert kinds([str(tmp_path / "all.json")]) == [IndexDamaged, IndexStale]


def test_paths_are_compared_as_locations(shard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    manifest = tarmac.read_manifest("all.json")
    assert [entry is not None for entry in entries_of(manifest, ["a.tar", str(shard), "b.tar"])] == [
        True,
        True,
        False,
    ]
