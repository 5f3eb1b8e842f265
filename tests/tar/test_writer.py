"""Written members are readable by every tool, and their bytes are reproducible."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import BadName, UsageError, WriteError
from tarmac.tar import member_block, read_members
from tarmac.tar.writer import END_MARKER, HeaderBuilder, Owner

FORMS = ["auto", "ustar", "gnu", "pax"]


def archive(files, form="auto", owner=Owner()):
    headers = HeaderBuilder(owner, form)
    return b"".join(member_block(headers, name, data) for name, data in files) + END_MARKER


names = st.binary(min_size=1, max_size=400).filter(
    lambda name: b"\0" not in name and not name.startswith(b"/")
)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    st.lists(st.tuples(names, st.binary(max_size=2000)), max_size=5), st.sampled_from(["auto", "gnu", "pax"])
)
def test_round_trip(files, form):
    members = [(name, data) for name, _, _, data in read_members(archive(files, form))]
    assert members == files


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", ["n", "n" * 99, "n" * 100, "p" * 20 + "/" + "n" * 80, "p" * 155 + "/" + "n" * 100]
)
def test_tarfile_reads_every_format(form, name):
    data = archive([(name.encode(), b"hello")], form)
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        (info,) = opened.getmembers()
        assert (info.name, info.size, info.mode, info.uname, info.mtime) == (name, 5, 0o444, "bigdata", 0)


def test_plain_members_cost_one_header():
    assert len(archive([(b"a.txt", b"x")])) == 512 + 512 + 1024
    assert len(archive([("ü.txt".encode(), b"x")])) == 512 + 512 + 1024


def test_limits_of_ustar():
    with pytest.raises(BadName, match="ustar"):
        archive([(b"n" * 101, b"")], "ustar")
    with pytest.raises(WriteError, match="ustar"):
        HeaderBuilder(Owner(), "ustar").header(b"a", 8**11)


@pytest.mark.parametrize("form", ["auto", "gnu", "pax"])
@pytest.mark.parametrize("size", [8**11 - 1, 8**11, 3 << 40])
def test_sizes_beyond_eight_gibibytes(form, size):
    """Test the header alone, without the huge payload."""
    header = HeaderBuilder(Owner(), form).header(b"big.bin", size)
    with tarfile.open(fileobj=io.BytesIO(header + END_MARKER)) as opened:
        assert opened.next().size == size
    with pytest.raises(Exception, match=f"{size} bytes"):
        list(read_members(header))


def test_owner_is_written_and_validated():
    data = archive([(b"a", b"")], owner=Owner("me", "us", 0o644, 1234))
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        info = opened.next()
    assert (info.uname, info.gname, info.mode, info.mtime) == ("me", "us", 0o644, 1234)
    for field, value in (
        ("user", "u" * 32),
        ("mode", -1),
        ("mtime", -1),
        ("mtime", 1 << 40),
        ("group", "a\0b"),
    ):
        with pytest.raises(UsageError, match=field):
            Owner(**{field: value})
    with pytest.raises(ValueError, match="format"):
        HeaderBuilder(Owner(), "zip")
