"""Notes of cache entries, and the check that an entry is a shard."""

from __future__ import annotations

import gzip

import pytest

from harness.shards import plain
from tarmac.errors import ArchiveError, NotATar
from tarmac.storage.cache import check_shard
from tarmac.storage.cachedirs import MAX_NOTE, Note, open_cache_dirs
from tarmac.storage.local import LocalSource

SHARD = plain()


def test_notes_round_trip(tmp_path):
    note = Note("key", 3, "digest", None, "http://h/x.tar")
    with open_cache_dirs(tmp_path, create=True) as dirs:
        dirs.write_note("x", note)
        assert dirs.read_note("x") == note
        assert dirs.notes.names() == ["x"]
        assert dirs.parts.names() == []
        assert dirs.read_note("none") is None


def test_a_note_is_read_up_to_a_bound(tmp_path):
    """Other users can write to a shared cache; a huge note must not use unbounded memory."""
    with open_cache_dirs(tmp_path, create=True) as dirs:
        (tmp_path / ".tarmac/notes/x").write_bytes(b'{"url": "' + b"a" * MAX_NOTE + b'"}')
        assert dirs.read_note("x") is None


@pytest.mark.parametrize("data", [SHARD, gzip.compress(SHARD, mtime=0), bytes(512), SHARD[:512]])
def test_shards(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with LocalSource(str(tmp_path / "x")) as source:
        check_shard(source)


@pytest.mark.parametrize(
    "data", [b"", b"<html>", b"{}" * 400, SHARD[:511], gzip.compress(b"<html>" * 200, mtime=0)]
)
def test_not_shards(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with LocalSource(str(tmp_path / "x")) as source, pytest.raises(NotATar):
        check_shard(source)


def test_a_damaged_first_header(tmp_path):
    (tmp_path / "x").write_bytes(SHARD[:3] + b"?" + SHARD[4:])
    with LocalSource(str(tmp_path / "x")) as source, pytest.raises(ArchiveError):
        check_shard(source)
