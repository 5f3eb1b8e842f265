"""Notes of cache entries, and the check that an entry is a shard."""

from __future__ import annotations

import gzip

import pytest

from harness.shards import plain
from tarmac.errors import ArchiveError, NotATar
from tarmac.storage.folder import Folder
from tarmac.storage.local import LocalSource
from tarmac.storage.notes import MAX_NOTE, Note, check_shard, digest_of, read_note, write_note

SHARD = plain()


def test_notes_round_trip(tmp_path):
    note = Note("key", 3, "digest", None, "http://h/x.tar")
    with Folder(tmp_path) as folder:
        write_note(folder, "draft", folder, "x", note)
        assert read_note(folder, "x") == note
        assert folder.names() == ["x"]
        assert read_note(folder, "none") is None


def test_a_note_is_read_up_to_a_bound(tmp_path):
    """Other users can write to a shared cache; a huge note must not use unbounded memory."""
    (tmp_path / "x").write_bytes(b'{"url": "' + b"a" * MAX_NOTE + b'"}')
    with Folder(tmp_path) as folder:
        assert read_note(folder, "x") is None


@pytest.mark.parametrize("data", [SHARD, gzip.compress(SHARD, mtime=0), bytes(512), SHARD[:512]])
def test_shards(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with LocalSource(str(tmp_path / "x")) as source:
        check_shard(source)
        assert source.read(3) == data[:3]  # the position is unchanged
        before = digest_of(source)
        assert digest_of(source) == before


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
