"""Comparison with Python's tarfile, GNU tar and bsdtar: tarmac may be stricter, but never different."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path

import pytest

from harness import rounds
from harness.damage import mutations
from harness.oracle import Listing, digest, external, python_tarfile
from harness.shards import KINDS, PLAIN_KINDS
from tarmac.errors import ArchiveError, TarmacWarning
from tarmac.tar import read_members


def listing(data: bytes) -> Listing | None:
    """Return the members that tarmac reads, or None if it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TarmacWarning)
        try:
            return [
                (name.decode("utf-8", "surrogateescape"), size, digest(payload))
                for name, _, size, payload in read_members(data)
            ]
        except ArchiveError:
            return None


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_tarfile_reads_the_same(kind):
    rng = random.Random(kind)
    accepted = 0
    for case in mutations(PLAIN_KINDS[kind](), rng, rounds(1500)):
        ours = listing(case.data)
        if ours is not None:
            accepted += 1
            theirs = python_tarfile(case.data)
            assert ours == theirs.listing, case.how
    assert accepted > 0


@pytest.mark.parametrize("tool", ["tar", "bsdtar"])
def test_other_tools_read_the_same(tool, tmp_path):
    rng = random.Random(tool)
    compared = 0
    for kind in ("ustar", "gnu", "pax long names"):
        for number, case in enumerate(mutations(PLAIN_KINDS[kind](), rng, rounds(60))):
            ours = listing(case.data)
            if ours is None or any(not _harmless(name) for name, *_ in ours):
                continue
            shard, into = tmp_path / f"{number}.tar", tmp_path / f"{kind}-{number}"
            shard.write_bytes(case.data)
            into.mkdir()
            theirs = external(tool, shard, into)
            assert {name: rest for name, *rest in theirs.listing} == {name: rest for name, *rest in ours}, (
                case.how
            )
            compared += 1
    assert compared > 10


def _harmless(name: str) -> bool:
    """Names that can be extracted and listed without quoting."""
    return (
        name.isascii()
        and name.isprintable()
        and ".." not in name
        and not name.startswith("/")
        and "\\" not in name
    )


@pytest.mark.parametrize("form", ["ustar", "gnu", "posix", "v7", "oldgnu"])
def test_archives_of_gnu_tar(form, tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    for number in range(20):
        (tree / "sub" / f"{number:03d}.txt").write_bytes(os.urandom(number * 97))
        (tree / f"{number:03d}.cls").write_text(str(number))
    shard = tmp_path / "x.tar"
    assert os.system(f"tar -C {tree} --sort=name --format={form} -cf {shard} .") == 0
    ours = {name: size for name, _, size, _ in read_members(shard.read_bytes())}
    assert ours == {
        f"./{path.relative_to(tree)}".encode(): path.stat().st_size
        for path in tree.rglob("*")
        if path.is_file()
    }


def test_piped_gnu_tar_and_its_compressions(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    for flag in ("", "-z", "-j", "-J"):
        with os.popen(f"tar -C {tmp_path} {flag} -cf - a.txt", "r") as pipe:
            members = list(read_members(pipe.buffer))
        assert [(name, payload) for name, _, _, payload in members] == [(b"a.txt", b"hello")]


def test_corpus_of_regressions(tmp_path):
    """Archives of fixed bugs: NAME.ok.tar must be readable, NAME.bad.tar must raise."""
    corpus = Path(__file__).parent.parent / "corpus"
    files = sorted(corpus.glob("*.tar*"))
    assert len(files) >= 10
    for path in files:
        result = listing(path.read_bytes())
        assert (result is None) == (".bad." in path.name), path.name


def test_bsdtar_reads_all_formats_the_same(tmp_path):
    for number, make in enumerate(KINDS.values()):
        shard, into = tmp_path / f"{number}.tar", tmp_path / str(number)
        shard.write_bytes(make())
        into.mkdir()
        theirs = external("bsdtar", shard, into)
        assert theirs.ok
        names = {name for name, *_ in listing(make()) or []}
        assert names <= {name for name, *_ in theirs.listing}
