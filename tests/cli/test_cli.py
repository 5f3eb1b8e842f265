"""The command line: help, exit status, errors on one line, completion, and quick starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from cli.running import PROGRAM, program, run, shell
from harness.shards import plain
from harness.waiting import TIMEOUT
from tarmac.cli import VERBS, exit_code
from tarmac.errors import BadHeader, HookFailed, JobMismatch, NotFound, ShortRead, TooManyShards, UsageError


def test_help_and_version(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert all(verb in out for verb in VERBS)
    for verb in VERBS:
        status, out, _ = run(capsys, verb, "--help")
        assert (status, out.startswith(f"Usage: tarmac {verb}")) == (0, True)
    assert run(capsys, "--version")[1].startswith("tarmac ")
    assert run(capsys, "nonsense")[0] == 2
    assert run(capsys, "show")[0] == 2


def test_help_shows_flags_in_groups(capsys):
    _, out, _ = run(capsys, "copy", "--help")
    headings = [line.removesuffix(":") for line in out.split("\n") if re.fullmatch(r"[A-Z]\w+:", line)]
    assert headings == ["Arguments", "Options", "Select", "Order", "Write", "Run", "Access"]


@pytest.mark.parametrize(
    "command", [["--help"], ["copy", "--help"], ["show", "a.tar", "-n", "1"]], ids=" ".join
)
def test_quick_commands_import_no_large_library(tmp_path, monkeypatch, command):
    """A start takes tens of milliseconds; numpy and pyarrow alone would take hundreds."""
    (tmp_path / "a.tar").write_bytes(plain())
    monkeypatch.chdir(tmp_path)
    code = (
        "import atexit, sys\nfrom tarmac.cli import main\n"
        "atexit.register(lambda: print({'numpy', 'pyarrow', 'PIL', 'obstore'} & sys.modules.keys()))\n"
        f"main({command!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nset()\n"), done.stdout[-200:]


def test_errors_are_one_line(tmp_path, capsys):
    status, out, err = run(capsys, "show", tmp_path / "absent.tar")
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("tarmac: ")
    assert run(capsys, "show", "{0..99999999999}.tar")[0] == 2
    assert run(capsys, "show", "nope://x")[0] == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ShortRead("x."), 3),
        (NotFound("x."), 3),
        (TooManyShards("x."), 2),
        (UsageError("x."), 2),
        (JobMismatch("x."), 2),
        (HookFailed("x."), 1),
        (BadHeader("x."), 1),
    ],
)
def test_exit_codes(error, status):
    assert exit_code(error) == status


def test_a_reader_may_close_the_pipe(tmp_path):
    path = tmp_path / "many.tar"
    path.write_bytes(plain([(f"{i:06d}.txt", b"") for i in range(20_000)]))
    done = shell(f"tarmac show {path} | head -n 1")
    assert done.stdout == b"000000\ttxt 0\n"
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_interrupt(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [*PROGRAM, "show", "--allow-exec", f"pipe:cat {fifo}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    with open(fifo, "wb"):  # opens when the command reads
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert b"Traceback" not in stderr


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_shells_complete_verbs_and_flags(shell_name):
    def complete(task, **more):
        environment = os.environ | {"_TARMAC_COMPLETE": f"{shell_name}_{task}"} | more
        return program(env=environment, text=True).stdout

    if shell_name != "bash":  # whose version click checks by running it
        assert "_TARMAC_COMPLETE" in complete("source")
    for typed, matches, other in [
        ("tarmac co", ["copy"], "sort"),
        ("tarmac copy --max", ["--max-samples", "--max-bytes"], "--manifest"),
        ("tarmac copy --missing s", ["skip"], "error"),
    ]:
        position = typed.split()[-1] if shell_name == "fish" else str(typed.count(" "))
        words = re.findall(r"[\w-]+", complete("complete", COMP_WORDS=typed, COMP_CWORD=position))
        assert set(matches) <= set(words)
        assert other not in words
