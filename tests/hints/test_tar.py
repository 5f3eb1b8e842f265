"""Follow the hints of archives: limits, compression and hard links."""

from __future__ import annotations

import gzip
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

import tarmac
from harness.commands import run
from harness.folder import folder
from harness.hints import follows, hinted
from harness.shards import LONG, members, plain, with_hard_links
from tarmac import Limits


@pytest.fixture(autouse=True)
def shard(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("x.tar").write_bytes(plain())
    return "x.tar"


def count(shards="x.tar", **options) -> int:
    return len(list(tarmac.read(shards, **options)))


def limited(limits: str) -> list[str]:
    return ["check", "x.tar", "-j", "1", "--limits", limits]


@follows("raise Limits.member_bytes, or do not select this field.")
def test_a_large_member(capsys):
    with hinted("raise Limits.member_bytes, or do not select this field."):
        count(limits=Limits(member_bytes=512))
    assert count(limits=Limits(member_bytes=513)) == 3
    assert count(limits=Limits(member_bytes=512), fields=["cls"]) == 3
    assert run(limited("member_bytes=512")) == 1
    assert "Try: raise --limits member_bytes=N, or do not select this field." in capsys.readouterr().out
    assert run(limited("member_bytes=513")) == 0


@follows("raise Limits.extension_bytes if you trust the shard.")
def test_a_large_extended_header(capsys):
    Path("x.tar").write_bytes(plain([(f"{LONG}.txt", b"1")], tarfile.PAX_FORMAT))
    with hinted("raise Limits.extension_bytes if you trust the shard."):
        count(limits=Limits(extension_bytes=100))
    assert count(limits=Limits(extension_bytes=1000)) == 1
    assert run(limited("extension_bytes=100")) == 1
    assert "Try: raise --limits extension_bytes=N if you trust the shard." in capsys.readouterr().out
    assert run(limited("extension_bytes=1000")) == 0


@follows("raise Limits.expansion if you trust the shard.")
def test_a_large_expansion(capsys):
    Path("x.tar").write_bytes(gzip.compress(plain([("a.bin", bytes(100_000))])))
    with hinted("raise Limits.expansion if you trust the shard."):
        count(limits=Limits(expansion=2, expansion_floor=1000))
    assert count(limits=Limits(expansion=2000, expansion_floor=1000)) == 1
    assert run(limited("expansion=2,expansion_floor=1000")) == 1
    assert "Try: raise --limits expansion=N if you trust the shard." in capsys.readouterr().out
    assert run(limited("expansion=2000,expansion_floor=1000")) == 0


@follows("download or write the shard again.")
def test_data_after_a_compressed_stream():
    Path("x.tar.gz").write_bytes(gzip.compress(plain()) + b"more")
    with hinted("download or write the shard again."):
        count("x.tar.gz")
    with tarmac.TarWriter("x.tar.gz") as writer:
        for sample in tarmac.read("x.tar"):
            writer.write(sample)
    assert count("x.tar.gz") == 3


@pytest.mark.processes
@follows("pack the files again, with tar --hard-dereference.")
def test_a_link_without_its_file():
    Path("a.txt").write_text("1")
    os.link("a.txt", "b.txt")
    Path("x.tar").write_bytes(members([(tarfile.LNKTYPE, "b.txt", b"a.txt")]))
    with hinted("pack the files again, with tar --hard-dereference."):
        count()
    subprocess.run(["tar", "--hard-dereference", "-cf", "x.tar", "a.txt", "b.txt"], check=True)
    with tarfile.open("x.tar") as archive:
        assert all(member.isreg() for member in archive)
    assert count() == 2


@pytest.mark.processes
@follows(
    "read it uncompressed, from a local file or through a `cache`; tarmac copy LOCAL.tar -o NEW.tar replaces links "
    "by files."
)
def test_a_link_in_a_stream(tmp_path):
    hint = (
        "read it uncompressed, from a local file or through a `cache`; tarmac copy LOCAL.tar -o NEW.tar replaces "
        "links by files."
    )
    Path("LOCAL.tar").write_bytes(with_hard_links())
    Path("x.tar.gz").write_bytes(gzip.compress(with_hard_links()))
    with folder(tmp_path) as url:
        for shards in ("x.tar.gz", f"{url}/LOCAL.tar"):
            with hinted(hint):
                count(shards)
        samples = count("LOCAL.tar")
        assert count(f"{url}/LOCAL.tar", cache=tarmac.Cache("cache")) == samples
        assert run(["copy", "LOCAL.tar", "-o", "NEW.tar", "-j", "1"]) == 0
        assert count(f"{url}/NEW.tar") == samples
