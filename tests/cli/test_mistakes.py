"""Common mistakes: the message says what is wrong, and its hint works."""

from __future__ import annotations

import errno
import os
import pty
import re
import shutil
import signal
import subprocess
import sys

import pytest

import tarmac
from cli.running import PROGRAM, program, run
from harness.faultfs import Fault, faulty
from harness.folder import folder
from harness.shards import plain
from tools.shards import make


def test_a_directory_as_output(tmp_path, capsys):
    (shard,) = make(tmp_path, 2)
    notes = tmp_path / "notes"
    notes.mkdir()
    for name in "ab":
        (notes / f"{name}.txt").write_text(name)
    verbs = (["copy"], ["copy", "--overwrite"], ["map", "-c", "true"], ["sort"], ["pack"])
    for number, (verb, *more) in enumerate(verbs):
        target, source = tmp_path / str(number), notes if verb == "pack" else shard
        target.mkdir()
        status, _, stderr = run(capsys, verb, source, "-o", target, *more)
        assert status == 2, stderr
        outputs = re.search(r"directory\. Try: (\S+\.tar), or (\S+/) for shards that keep", stderr).groups()
        for output in outputs[: 1 if verb in ("sort", "pack") else 2]:
            assert run(capsys, verb, source, "-o", output, *more)[0] == 0
            shards = list(target.glob("*.tar"))
            assert len(list(tarmac.read(str(shards[0])))) == 2
            shards[0].unlink()


def test_a_directory_as_a_shard(tmp_path):
    with pytest.raises(tarmac.errors.CommitFailed) as info:
        tarmac.TarWriter(str(tmp_path))
    name = re.fullmatch(r"a name in it: (\S+)", info.value.hint)[1]
    tarmac.TarWriter(name).close()
    assert os.path.exists(name)


def test_globs_of_web_servers(tmp_path, capsys):
    make(tmp_path, 2, 2)
    with folder(tmp_path) as url:
        for pattern in ("*.tar", "0000[01].tar", "x-%2A.tar"):
            status, _, stderr = run(capsys, "copy", f"{url}/{pattern}", "-o", tmp_path / "out.tar")
            assert status == 3
            assert "web servers cannot be listed" in stderr
            assert "{0000..0009}" in stderr
        status, _, stderr = run(capsys, "copy", f"{url}/missing.tar?x=*", "-o", tmp_path / "out.tar")
        assert "listed" not in stderr


INTERRUPT = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "tarmac.tools.rewrite":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
runpy.run_module("tarmac", run_name="__main__")
"""


@pytest.mark.parametrize(("output", "continues"), [("x-{i}.tar", True), ("-", False)])
def test_interrupts_say_so_in_one_line(tmp_path, output, continues):
    (shard,) = make(tmp_path, 2)
    command = [sys.executable, "-c", INTERRUPT, "copy", shard, "-o", output]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    again = "; run the same command again to continue" if continues else ""
    assert done.stderr == f"tarmac: interrupted{again}.\n"


def test_a_full_disk_after_the_first_shard(tmp_path, capsys):
    (shard,) = make(tmp_path, 4)
    writes = 0
    while True:  # until the second shard is the one that does not fit
        writes += 1
        for path in tmp_path.glob("out-*"):
            path.unlink()
        shutil.rmtree(tmp_path / ".tarmac", ignore_errors=True)
        with faulty(Fault(writes, errno.ENOSPC, ("write",))):
            output = tmp_path / "out-{i}.tar"
            status, _, stderr = run(capsys, "copy", shard, "-o", output, "--max-samples", 2, "-j", 1)
        if (tmp_path / "out-0.tar").exists() and "free space" in stderr:
            break
        assert writes < 50
    assert status != 0
    assert "out-1.tar" in stderr
    assert "no part of this file was published" in stderr


def test_a_ledger_without_permission(tmp_path, capsys):
    (shard,) = make(tmp_path, 2)
    with faulty(Fault(1, errno.EACCES, ("open",)), under=tmp_path / "locked"):
        status, _, stderr = run(capsys, "copy", shard, "-o", tmp_path / "locked" / "x.tar")
    assert "Permission denied" in stderr
    assert status == 3


def test_shards_are_not_written_to_a_terminal(tmp_path):
    (shard,) = make(tmp_path, 2)
    master, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [*PROGRAM, "copy", shard, "-o", "-"],
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        text = subprocess.run(
            [*PROGRAM, "export", shard, "--to", "jsonl", "-o", "-"], stdout=terminal, check=False
        )
    finally:
        os.close(terminal)
        shown = os.read(master, 100)
        os.close(master)
    assert done.returncode == 2
    assert "terminal" in done.stderr
    assert text.returncode == 0
    assert shown.startswith(b"{")
    assert program("copy", shard, "-o", "-").stdout[257:262] == b"ustar"


def test_warming_says_why_a_shard_is_not_cached(tmp_path, capsys):
    (shard,) = make(tmp_path, 2)
    local = run(capsys, "cache", "warm", shard, "--cache", tmp_path / "cache")[2]
    assert f"{shard} is local\n" in local
    with folder(tmp_path) as url:
        remote = f"{url}/{os.path.basename(shard)}"
        large = run(capsys, "cache", "warm", remote, "--cache", tmp_path / "cache", "--max-bytes", "1")[2]
    assert "is larger than the cache\n" in large
    assert "local" not in large


def test_a_number_as_a_slice(tmp_path, capsys):
    (shard,) = make(tmp_path, 5)
    status, _, stderr = run(capsys, "copy", shard, "-o", tmp_path / "x.tar", "--slice", "2")
    assert status == 2
    one, before = re.search(r"Try: (\S+) for this sample, (\S+) for those before it", stderr).groups()
    for value, count in ((one, 1), (before, 2)):
        target = tmp_path / f"{count}.tar"
        assert run(capsys, "copy", shard, "-o", target, "--slice", value)[0] == 0
        assert len(list(tarmac.read(target))) == count


def hinted(stderr, flag):
    """Return the flag and the value that a hint suggests."""
    return re.search(rf"(--{flag}) ([\w=-]+)", stderr.partition("Try: ")[2]).groups()


def test_hints_for_damaged_archives_are_flags(tmp_path, capsys):
    first, second = plain([("a.txt", b"1")]), plain([("b.txt", b"2")])
    (tmp_path / "torn.tar").write_bytes(first[:700])
    (tmp_path / "joined.tar").write_bytes(first + second)
    for name in ("torn.tar", "joined.tar"):
        path = tmp_path / name
        status, _, stderr = run(capsys, "show", path)
        assert status == 1
        assert "TarOptions" not in stderr + "".join(run(capsys, "check", path)[1:])
        assert run(capsys, "show", path, *hinted(stderr, "tar"))[0] == 0


def test_hints_for_names_with_dots_are_flags(tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "t.csv").write_text("key,txt\na.b,x\nc.d,y\n")
    for name in ("x.v1.1.txt", "x.v1.2.txt", "at 10.11 x.txt"):
        (folder / name).write_text(name)
    for number, (source, more) in enumerate(
        [(tmp_path / "t.csv", ()), (folder, ()), (folder, ("--split-name", "first-dot"))]
    ):
        target = tmp_path / f"{number}.tar"
        status, _, stderr = run(capsys, "pack", source, "-o", target, *more)
        assert status == 1
        assert run(capsys, "pack", source, "-o", target, *hinted(stderr, "split-name"))[0] == 0
        assert len(list(tarmac.read(target, split_name=tarmac.last_dot))) == len(list(folder.iterdir())) - (
            not number
        )


def test_skipped_samples_have_no_hint_to_skip_them(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("key,txt,cls\na,x,1\nb,y,\n")
    command = ["pack", tmp_path / "t.csv", "-o", tmp_path / "x.tar", "--require", "cls"]
    assert "--on-error" in run(capsys, *command)[2]
    status, _, stderr = run(capsys, *command, "--on-error", "skip")
    assert status == 1
    assert "FAILED" in stderr
    assert "--on-error" not in stderr


def test_one_sample_is_not_several(tmp_path, capsys):
    (shard,) = make(tmp_path, 1)
    for command in (["check", shard], ["index", shard], ["copy", shard, "-o", tmp_path / "x.tar"]):
        output = "".join(map(str, run(capsys, *command)[1:]))
        assert "1 sample" in output
        assert not re.search(r"\b1 (samples|shards|bytes|copies)\b", output)


def test_repair_without_regrouping_says_what_it_loses(tmp_path, capsys):
    (tmp_path / "x.tar").write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")]))
    command = ["check", tmp_path / "x.tar", "--repair", "-o", f"{tmp_path}/clean/"]
    assert "--regroup keeps 1 sample " in run(capsys, *command)[2]
    assert run(capsys, *command, "--regroup", "--overwrite")[0] == 0
    assert [sample["__key__"] for sample in tarmac.read(tmp_path / "clean/x.tar")] == ["a", "b"]
