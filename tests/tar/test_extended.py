"""Records of extended headers are applied as by GNU tar and Python, or rejected."""

from __future__ import annotations

import tarfile

import pytest

from harness.damage import pax_header
from harness.oracle import digest, external, python_tarfile
from harness.shards import plain
from tarmac.errors import ArchiveError, UnsupportedMember
from tarmac.tar import read_members

FILES = [("good.txt", b"0123456789"), ("next.txt", b"x")]
RECORDS = [
    (b"path", b"evil.txt"),
    (b"linkpath", b"evil.txt"),
    (b"size", b"3"),
    (b"GNU.sparse.name", b"evil.txt"),
    (b"GNU.sparse.size", b"3"),
    (b"GNU.sparse.realsize", b"3"),
    (b"GNU.sparse.major", b"1"),
    (b"GNU.sparse.map", b"0,3"),
    (b"GNU.volume.filename", b"good.txt"),
    (b"GNU.volume.offset", b"5"),
    (b"SCHILY.realsize", b"3"),
    (b"SUN.holesdata", b" 0 3"),
    (b"mtime", b"1.5"),
    (b"comment", b"of git archive"),
    (b"uid", b"7"),
    (b"SCHILY.xattr.user.x", b"y"),
    (b"hdrcharset", b"BINARY"),
]


def ours(data):
    return [(name.decode(), size, digest(content)) for name, _, size, content in read_members(data)]


@pytest.mark.parametrize("kind", [b"x", b"g"])
@pytest.mark.parametrize(("key", "value"), RECORDS, ids=[key.decode() for key, _ in RECORDS])
def test_records_are_unambiguous(kind, key, value, tmp_path):
    data = pax_header(key, value, kind) + plain(FILES)
    try:
        listing = ours(data)
    except ArchiveError:
        return
    assert listing == python_tarfile(data).listing
    (tmp_path / "x.tar").write_bytes(data)
    (tmp_path / "out").mkdir()
    listed = external("tar", tmp_path / "x.tar", tmp_path / "out")
    assert listed.listing == listing


@pytest.mark.parametrize("key", [key for key, _ in RECORDS[:12]], ids=str)
def test_fields_of_one_member_are_rejected_in_global_headers(key):
    with pytest.raises(UnsupportedMember, match=rf"\b{key.decode()}\b"):
        ours(pax_header(key, dict(RECORDS)[key], b"g") + plain(FILES))


def test_both_global_sparse_records_at_once():
    """GNU tar and Python list evil.txt with 3 bytes; good.txt with 10 would be another interpretation."""
    data = (
        pax_header(b"GNU.sparse.name", b"evil.txt", b"g")
        + pax_header(b"GNU.sparse.size", b"3", b"g")
        + plain(FILES, tarfile.USTAR_FORMAT)
    )
    with pytest.raises(UnsupportedMember, match=r"GNU\.sparse\.name"):
        ours(data)


@pytest.mark.parametrize("key", [b"mtime", b"comment", b"uid", b"SCHILY.xattr.user.x"], ids=str)
def test_other_records_are_ignored(key):
    assert len(ours(pax_header(key, dict(RECORDS)[key], b"g") + plain(FILES))) == 2
