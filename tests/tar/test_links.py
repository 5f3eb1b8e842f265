"""Hard links are data: every reader returns their bytes, like tools that extract them, or raises."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
import tarmac.webdataset as wds
from harness.damage import bit_flips, cuts, expect_no_silence
from harness.oracle import digest, external, python_tarfile
from harness.shards import header_offsets, members, with_hard_links
from tarmac.cli import main
from tarmac.errors import TarmacError, UnsupportedMember
from tarmac.tar import read_members

FORMS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def listing(data):
    return [(name.decode(), size, digest(content)) for name, _, size, content in read_members(data)]


def run(*words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code


def fields(samples):
    return {s["__key__"]: {f: bytes(v) for f, v in s.items() if f[:2] != "__"} for s in samples}


@pytest.mark.parametrize("form", FORMS)
def test_links_are_read_like_other_tools_extract_them(form, tmp_path):
    data = with_hard_links(form)
    ours = listing(data)
    assert len(ours) == 9
    assert ours == python_tarfile(data).listing
    (tmp_path / "x.tar").write_bytes(data)
    for tool in ("tar", "bsdtar"):
        into = tmp_path / tool
        into.mkdir()
        assert external(tool, tmp_path / "x.tar", into).listing == ours


@pytest.mark.parametrize("form", ["ustar", "gnu", "posix", "v7"])
def test_files_that_gnu_tar_packs_twice(form, tmp_path):
    for name in ("a.jpg", "b.txt", "b" * (40 if form in ("ustar", "v7") else 140) + ".bin"):
        (tmp_path / name).write_bytes(os.urandom(700))
    os.link(tmp_path / "a.jpg", tmp_path / "c.jpg")
    names = sorted(os.listdir(tmp_path))
    shard = tmp_path / "x.tar"
    command = ["tar", f"--format={form}", "-cf", shard, *(f"./{name}" for name in names)]
    subprocess.run(command, cwd=tmp_path, check=True)
    with tarfile.open(shard) as archive:
        assert any(info.islnk() for info in archive)
    assert {name: content for name, _, _, content in read_members(shard.read_bytes())} == {
        f"./{name}".encode(): (tmp_path / name).read_bytes() for name in names
    }


KEYS = st.sampled_from(["a", "b", "c", "d"])


@settings(max_examples=80, deadline=None)
@given(
    entries=st.lists(
        st.tuples(
            st.booleans(), KEYS, st.sampled_from(["", "./", "/", "d/../"]), KEYS, st.binary(max_size=600)
        ),
        max_size=10,
    )
)
def test_links_resolve_as_in_tarfile(entries):
    """A link refers to the last preceding file of that name; a broken link is an error."""
    entries = [
        (tarfile.LNKTYPE, f"{name}.x", f"{before}{target}.x".encode())
        if link and before != "/"
        else (tarfile.REGTYPE, f"{name}.x", content)
        for link, name, before, target, content in entries
    ]
    data = members(entries)
    theirs = python_tarfile(data)
    try:
        ours = listing(data)
    except UnsupportedMember:
        assert not theirs.ok
        return
    assert ours == theirs.listing


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(with_hard_links())
    return path


def test_all_readers_return_the_same_fields(shard, tmp_path, capsys):
    expected = fields(tarmac.read(shard))
    assert expected["s3"] == {"cls": b"7", "txt": b"far away"}
    assert expected["s2"]["txt"] == expected["s1"]["txt"]
    assert fields(tarmac.read(shard, fields=["txt"]))["s3"] == {"txt": b"far away"}
    assert fields(tarmac.WebDataset(str(shard))) == expected
    assert fields(tarmac.WebDataset(str(shard), handler=wds.ignore_and_continue)) == expected
    assert fields(tarmac.Dataset(str(shard), verify=True)) == expected
    assert run("check", shard) == 0
    assert run("copy", shard, "-o", tmp_path / "copy.tar") == 0
    assert fields(tarmac.read(tmp_path / "copy.tar")) == expected
    with tarfile.open(tmp_path / "copy.tar") as archive:
        assert all(info.isreg() for info in archive)
    assert run("export", shard, "--to", "dir", "-o", tmp_path / "out/") == 0
    assert (tmp_path / "out" / "s2.txt").read_bytes() == expected["s2"]["txt"]
    assert run("index", shard, "-o", tmp_path / "all.json", "--digests") == 0
    assert run("check", tmp_path / "all.json", "--digests") == 0


def test_streams_and_ranges_of_a_shard_with_links(shard, tmp_path):
    """Links in a stream have offsets, but reading their bytes is an error."""
    data = shard.read_bytes()
    extents = [member[:3] for member in read_members(data)]
    assert [member[:3] for member in read_members(io.BytesIO(data), payload=False)] == extents
    with pytest.raises(UnsupportedMember, match=r"s0\.cls.*`cache`"):
        list(read_members(io.BytesIO(data)))
    with pytest.raises(UnsupportedMember, match=r"s0\.cls"):
        list(tarmac.read(shard, mmap=False))
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(data))
    with pytest.raises(UnsupportedMember, match=r"s2\.cls"):
        list(tarmac.WebDataset(str(tmp_path / "x.tar.gz")))


def test_a_broken_link_is_an_error_in_every_reader(tmp_path, capsys):
    path = tmp_path / "x.tar"
    path.write_bytes(members([(tarfile.REGTYPE, "a.txt", b"1"), (tarfile.LNKTYPE, "b.txt", b"c.txt")]))
    for door in (tarmac.read, tarmac.WebDataset, tarmac.Dataset):
        with pytest.raises(UnsupportedMember, match=r'member "b.txt": .*c.txt'):
            list(door(str(path)))
    assert run("check", path) == 1
    later = [(tarfile.LNKTYPE, "b.txt", b"c.txt"), (tarfile.REGTYPE, "c.txt", b"1")]
    with pytest.raises(UnsupportedMember):
        list(read_members(members(later)))


def test_symbolic_links_are_counted_by_check(tmp_path, capsys):
    path = tmp_path / "x.tar"
    path.write_bytes(members([(tarfile.REGTYPE, "a.txt", b"1"), (tarfile.SYMTYPE, "b.txt", b"a.txt")]))
    assert run("check", path) == 0
    assert "symbolic link" in capsys.readouterr().out


def test_damage_to_links_is_never_silent():
    good = with_hard_links(tarfile.GNU_FORMAT)
    regions = [(start, start + 512) for start in header_offsets(good)[4:]]
    tally = expect_no_silence(listing, good, [*cuts(good, 97), *bit_flips(good, regions, 23)])
    assert tally.errors > 1000


@pytest.mark.skipif(not shutil.which("tar"), reason="needs GNU tar")
@pytest.mark.parametrize("cut", range(700, 7168, 900))
def test_repair_invents_nothing_from_links(cut, shard, tmp_path, capsys):
    expected = fields(tarmac.read(shard))
    shard.write_bytes(shard.read_bytes()[:cut])
    try:
        run("check", shard, "--repair", "-o", f"{tmp_path}/fixed/")
        result = fields(tarmac.read(tmp_path / "fixed" / "x.tar"))
    except TarmacError:
        return
    assert result.items() <= expected.items()
