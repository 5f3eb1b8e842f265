"""Files of a directory, and never outside it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tarmac
from harness.faultfs import Fault, descriptors, faulty
from harness.waiting import TIMEOUT
from tarmac.cli import main
from tarmac.errors import BadName, CommitFailed, DiskFull
from tarmac.tools.show import extract
from tarmac.tools.show.extract import Extractor, safe_parts


def sample(key, **fields):
    return {"__key__": key, "__url__": "u"} | fields


def put(directory, key, overwrite=False, **fields):
    with Extractor(str(directory), overwrite=overwrite) as extractor:
        extractor.add(sample(key, **fields))
        return extractor.files


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.txt", ["a.txt"]),
        ("./a/b.txt", ["a", "b.txt"]),
        ("a//b.txt", ["a", "b.txt"]),
        ("..a/...txt", ["..a", "...txt"]),
        ("a\\..\\b", ["a\\..\\b"]),
    ],
)
def test_safe_names(name, parts):
    assert safe_parts(name) == parts


@pytest.mark.parametrize("name", ["../a.txt", "a/../b.txt", "a/..", "/a.txt", "//a", "a\0b", "", ".", "./"])
def test_unsafe_names(name):
    with pytest.raises(BadName):
        safe_parts(name)


def test_odd_names_are_kept(tmp_path):
    for key in ("a b", "é€", "x\udc80", "new\nline", "d.d/e", "*?", "-rf"):
        assert put(tmp_path / "d", key, txt=key.encode("utf-8", "surrogateescape")) == 1
    results = sorted(os.listdir(os.fsencode(tmp_path / "d")))
    assert results == sorted(
        [b"a b.txt", "é€.txt".encode(), b"x\x80.txt", b"new\nline.txt", b"d.d", b"*?.txt", b"-rf.txt"]
    )


def test_nothing_of_a_sample_with_an_unsafe_name_is_written(tmp_path):
    with pytest.raises(BadName):
        put(tmp_path / "d", "a", **{"txt": b"1", "x/../../../y": b"2"})
    assert os.listdir(tmp_path / "d") == []


def test_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f.txt").write_bytes(b"mine")
    target = tmp_path / "d"
    target.mkdir()
    (target / "link").symlink_to(outside)
    (target / "f.txt").symlink_to(outside / "f.txt")
    with pytest.raises(CommitFailed, match="d/link"):
        put(target, "link/x", txt=b"1")
    with pytest.raises(CommitFailed, match=r'"f\.txt".*`overwrite`'):
        put(target, "f", txt=b"mine")  # the same bytes, but behind a link
    put(target, "f", overwrite=True, txt=b"new")
    assert (outside / "f.txt").read_bytes() == b"mine"
    assert not (target / "f.txt").is_symlink()
    assert os.listdir(outside) == ["f.txt"]


def test_existing_files_stay_without_overwrite(tmp_path):
    put(tmp_path, "a", txt=b"1")
    assert put(tmp_path, "a", txt=b"1") == 1
    with pytest.raises(CommitFailed, match=r'"a\.txt".*`overwrite`'):
        put(tmp_path, "a", txt=b"2")
    with pytest.raises(CommitFailed, match=r'"a\.txt".*`overwrite`'):
        put(tmp_path, "a", txt=b"12")
    put(tmp_path, "a", overwrite=True, txt=b"2")
    assert (tmp_path / "a.txt").read_bytes() == b"2"
    assert os.listdir(tmp_path) == ["a.txt"]
    with pytest.raises(CommitFailed, match=r"a\.txt"):
        put(tmp_path, "a.txt/b", txt=b"")
    (tmp_path / "b.txt").mkdir()
    with pytest.raises(CommitFailed, match=r'"b\.txt".*`overwrite`'):
        put(tmp_path, "b", txt=b"")


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    put(tmp_path, "a", txt=b"1")
    (leftover,) = [name for name in _parts_while_writing(tmp_path) if name.startswith(".tarmac-part")]
    (tmp_path / leftover).write_bytes(b"half")
    put(tmp_path, "b", txt=b"whole")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt"]


def _parts_while_writing(folder):
    """What is in the directory while b.txt is being written."""
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:

        def interrupted(*_args, **_options):
            results.extend(os.listdir(folder))
            raise KeyboardInterrupt

        results: list[str] = []
        patch.setattr(os, "link", interrupted)
        put(folder, "b", txt=b"whole")
    assert sorted(os.listdir(folder)) == ["a.txt"]
    return results


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, CommitFailed)])
def test_a_disk_that_fails(tmp_path, code, kind):
    with Extractor(str(tmp_path)) as extractor:
        with faulty(Fault(1, code, ("write",))), pytest.raises(kind, match=r"a\.txt"):
            extractor.add(sample("a", txt=b"1"))
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_hard_links(tmp_path):
    with faulty(Fault(1, errno.EPERM, ("link",))):
        put(tmp_path, "a", txt=b"1")
    assert (tmp_path / "a.txt").read_bytes() == b"1"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_many_directories(tmp_path):
    with Extractor(str(tmp_path)) as extractor:
        for number in range(200):
            extractor.add(sample(f"{number % 100}/d/{number}", txt=b"%d" % number))
        assert extractor.files == 200
    assert (tmp_path / "7/d/107.txt").read_bytes() == b"107"


def test_a_target_that_is_a_file(tmp_path):
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(CommitFailed, match=re.escape(str(tmp_path / "f"))):
        Extractor(str(tmp_path / "f"))
    with pytest.raises(CommitFailed, match=os.strerror(errno.ENAMETOOLONG)):
        put(tmp_path, "x" * 300, txt=b"")


def test_two_samples_that_would_be_the_same_file(tmp_path):
    put(tmp_path, "a", txt=b"0")
    with Extractor(str(tmp_path), overwrite=True) as extractor:
        extractor.add(sample("a", txt=b"1"))
        with pytest.raises(CommitFailed, match=r'"a\.txt"'):
            extractor.add(sample("./a", cls=b"2", txt=b"2"))
    assert (tmp_path / "a.txt").read_bytes() == b"1"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_two_writers_of_one_name(tmp_path, monkeypatch, overwrite):
    """The second begins when the first has written all, and has written half when the first publishes."""
    begun, halfway, published = (threading.Event() for _ in range(3))
    write = extract._write

    def slow(fd, data):
        if data == b"first":
            write(fd, data)
            begun.set()
            assert halfway.wait(TIMEOUT)
        else:
            assert begun.wait(TIMEOUT)
            write(fd, data[:3])
            halfway.set()
            assert published.wait(TIMEOUT)
            write(fd, data[3:])

    def second():
        assert begun.wait(TIMEOUT)
        put(tmp_path, "a", overwrite, txt=b"second")

    monkeypatch.setattr(extract, "_write", slow)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(second)
        try:
            put(tmp_path, "a", overwrite, txt=b"first")
            assert (tmp_path / "a.txt").read_bytes() == b"first"
        finally:
            published.set()
        if overwrite:
            other.result(TIMEOUT)
        else:
            with pytest.raises(CommitFailed, match=r'"a\.txt".*`overwrite`'):
                other.result(TIMEOUT)
    assert (tmp_path / "a.txt").read_bytes() == (b"second" if overwrite else b"first")
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_part_file_that_others_clear_away(tmp_path, monkeypatch):
    """Between its creation and its lock a part file looks like one that was left."""
    real, times = extract.claim, iter(range(9))

    def late(fd):
        if not next(times):
            put(tmp_path, "a", overwrite=True, txt=b"other")
        return real(fd)

    monkeypatch.setattr(extract, "claim", late)
    put(tmp_path, "a", overwrite=True, txt=b"mine")
    assert (tmp_path / "a.txt").read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_part_file_that_may_be_in_use_stays(tmp_path, monkeypatch):
    """Where there are no locks it stays, and blocks no writer."""
    monkeypatch.setattr(extract, "try_lock", lambda _fd: False)
    put(tmp_path, "a", txt=b"1")
    (leftover,) = [name for name in _parts_while_writing(tmp_path) if name.startswith(".tarmac-part")]
    (tmp_path / leftover).write_bytes(b"half")
    put(tmp_path, "b", txt=b"whole")
    assert sorted(os.listdir(tmp_path)) == [leftover, "a.txt", "b.txt"]
    assert (tmp_path / "b.txt").read_bytes() == b"whole"
    assert (tmp_path / leftover).read_bytes() == b"half"


@pytest.mark.parametrize("depth", [1, 2, 3, 63, 64, 65, 1500])
def test_any_depth(tmp_path, depth):
    """Directories are walked by descriptors, few at a time: neither the stack nor their number is a bound."""
    before = descriptors()
    with Extractor(str(tmp_path)) as extractor:
        for key in ("a/" * depth + "x", "a/" * (depth - 1) + "b/x", "a/" * depth + "y", "c/" * depth + "x"):
            assert extractor.add({"__key__": key, "txt": b"deep"}) == 4
            assert len(descriptors() - before) < 80
        assert extractor.files == 4
    assert not descriptors() - before
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        below = os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    assert sorted(os.listdir(folder)) == ["x.txt", "y.txt"]
    os.close(folder)
    remove_deep(tmp_path)


@pytest.mark.parametrize("verb", ["export", "show"])
def test_deep_keys_on_the_command_line(tmp_path, monkeypatch, capfd, verb):
    """Whatever the depth, it works or an error says why; running it again finds what is there."""
    monkeypatch.chdir(tmp_path)
    with tarmac.TarWriter("deep.tar") as writer:
        writer.write({"__key__": "ab/" * 1500 + "x", "txt": "deep"})
    arguments = {"export": ["--to", "dir", "-o", "out", "-j", "1"], "show": ["--extract", "out"]}[verb]
    for _ in range(2):
        with pytest.raises(SystemExit) as done:
            main([verb, "deep.tar", *arguments])
        assert done.value.code in (0, None), capfd.readouterr().err
    remove_deep(tmp_path)


def test_directories_that_become_links_while_files_are_written(tmp_path, monkeypatch):
    """Between any two calls somebody swaps a directory for a link to elsewhere: nothing is written there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    calls = ("mkdir", "open", "link", "replace")
    for overwrite, moment in itertools.product((False, True), range(12)):
        out = tmp_path / f"out-{overwrite}-{moment}"
        (out / "a").mkdir(parents=True)
        left = [moment]

        def racing(inner, out=out, left=left):
            def call(*args, **more):
                left[0] -= 1
                if left[0] == 0 and not (out / "a").is_symlink():
                    os.rename(out / "a", out / "moved")
                    os.symlink(elsewhere, out / "a")
                return inner(*args, **more)

            return call

        with (
            monkeypatch.context() as patch,
            contextlib.suppress(CommitFailed),
            Extractor(str(out), overwrite=overwrite) as extractor,
        ):
            for name in calls:
                patch.setattr(f"tarmac.tools.show.extract.os.{name}", racing(getattr(os, name)))
            for key in ("a/b/x", "a/y", "a/b/z"):
                extractor.add({"__key__": key, "txt": b"mine"})
        assert os.listdir(elsewhere) == []


def remove_deep(folder: Path) -> None:
    """Remove directories that are too deep for shutil, which calls itself for each."""
    subprocess.run(["rm", "-rf", "--", *map(str, folder.iterdir())], check=True)
