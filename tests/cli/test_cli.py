"""The command line as a person runs it: output, exit status, errors on one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from harness.shards import plain
from harness.waiting import TIMEOUT
from tarmac.cli import exit_code
from tarmac.errors import BadHeader, NotFound, ShortRead, TooManyShards


def tarmac(*arguments, **options):
    command = [sys.executable, "-m", "tarmac", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    return path


def test_help_and_version():
    for arguments in (["--help"], ["show", "--help"], ["check", "--help"]):
        done = tarmac(*arguments)
        assert done.returncode == 0
        assert "Usage" in done.stdout
    assert tarmac("--version").stdout.startswith("tarmac ")
    assert tarmac("nonsense").returncode == 2
    assert tarmac("show").returncode == 2


def test_show(shard):
    assert tarmac("show", shard, "-n", 2).stdout == "s0\tcls 1  txt 17\ns1\tcls 0  txt 512\n"
    lines = [json.loads(line) for line in tarmac("show", shard, "--json").stdout.splitlines()]
    assert lines[0] == {"key": "s0", "url": str(shard), "sizes": {"cls": 1, "txt": 17}}
    assert len(lines) == 3


def test_show_by_number_and_what_a_manifest_says(shard, tmp_path):
    assert tarmac("index", shard, "-o", tmp_path / "all.json").returncode == 0
    assert tarmac("show", tmp_path / "all.json", "--at", 1, "--at", -3).stdout == (
        "s1\tcls 0  txt 512\ns0\tcls 1  txt 17\n"
    )
    assert tarmac("show", shard, "--at", 7).returncode == 2
    assert "samples\t3\n" in tarmac("show", tmp_path / "all.json", "--info").stdout
    assert json.loads(tarmac("show", tmp_path / "all.json", "--info", "--json").stdout)["shards"] == 1


def test_show_standard_input(shard):
    with shard.open("rb") as file:
        assert tarmac("show", "-", stdin=file).stdout.count("\n") == 3


def test_check(shard, tmp_path):
    done = tarmac("check", shard)
    assert (done.returncode, done.stderr) == (0, "1 shards, 3 samples, 0 not whole\n")
    assert done.stdout.startswith("ok ")
    bad = tmp_path / "bad.tar"
    bad.write_bytes(plain()[:1500])
    done = tarmac("check", shard, bad)
    assert done.returncode == 1
    assert "BAD" in done.stdout
    assert "Traceback" not in done.stderr
    assert tarmac("check", shard, "-q").stdout == ""
    assert tarmac("check", shard, "--require", "cls,txt").returncode == 0
    assert tarmac("check", shard, "--require", "jpg").returncode == 1
    assert tarmac("check", tmp_path / "absent.tar").returncode == 3
    records = [json.loads(line) for line in tarmac("check", shard, bad, "--json").stdout.splitlines()]
    assert [record["ok"] for record in records] == [True, False]
    assert records[1]["error"]["kind"] == "Truncated"


def test_errors_are_one_line(tmp_path):
    done = tarmac("show", tmp_path / "absent.tar")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("tarmac: ")
    assert tarmac("show", "{0..99999999999}.tar").returncode == 2
    assert tarmac("show", "nope://x").returncode == 2


def test_exit_codes():
    assert exit_code(ShortRead("x.")) == 3
    assert exit_code(NotFound("x.")) == 3
    assert exit_code(TooManyShards("x.")) == 2
    assert exit_code(BadHeader("x.")) == 1


def test_a_reader_that_has_seen_enough(tmp_path):
    path = tmp_path / "many.tar"
    path.write_bytes(plain([(f"{i:06d}.txt", b"") for i in range(20_000)]))
    command = f"{sys.executable} -m tarmac show {path} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "000000\ttxt 0\n"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_interrupt(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "tarmac", "show", "--allow-exec", f"pipe:cat {fifo}"], stderr=subprocess.PIPE
    )
    with open(fifo, "wb"):  # opens when the command reads
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert b"Traceback" not in stderr


def completing(task, **more):
    """What a shell gets that asks `tarmac` for its script or for the words that fit."""
    script = [sys.executable, "-c", "import sys; sys.argv = ['tarmac']; from tarmac.cli import main; main()"]
    environment = os.environ | {"_TARMAC_COMPLETE": task} | more
    return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=TIMEOUT).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_verbs_and_flags(shell):
    assert f"_TARMAC_COMPLETE=complete_{shell}" in completing(f"source_{shell}")
    for typed, fitting, other in [
        ("tarmac co", ["copy"], "sort"),
        ("tarmac copy --max", ["--max-samples", "--max-bytes"], "--manifest"),
        ("tarmac copy --missing s", ["skip"], "error"),
    ]:
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        if shell != "bash":
            words = {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        found = re.findall(r"[\w-]+", completing(f"complete_{shell}", **words))
        assert set(fitting) <= set(found)
        assert other not in found
