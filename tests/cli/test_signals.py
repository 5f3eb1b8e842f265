"""A signal at any moment ends the program with its status and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tarmac.cli.signals import interrupt_on_signals
from tools.shards import make

SEND = "import os, signal, sys; send = lambda *_: os.kill(os.getpid(), {number})\n"
AT_IMPORT = """
class Finder:
    def find_spec(self, name, *_):
        if name == {name!r}:
            sys.meta_path.remove(self)
            send()
sys.meta_path.insert(0, Finder())
"""
AT_EXIT = "import atexit; atexit.register(send)\n"
WHILE_FREED = """
import sys, tarmac.tools.check.verb
module = sys.modules["tarmac.tools.check.verb"]
class Freed:
    __del__ = send
def check(*args):
    Freed()
    for _ in range(1_000_000_000): pass
module.check_shard = check
"""
IN_A_WORKER = """
import tarmac.runtime.processes as module
def begin(*args, inner=module._start_worker):
    send()
    inner(*args)
module._start_worker = begin
"""
MODULES = ("tarmac.cli", "click", "tarmac.cli.check", "tarmac.tools.check.verb")
RUN = "import runpy; runpy.run_module('tarmac', run_name='__main__')"


def tarmac(prelude: str, number: int, *arguments: str) -> tuple[int, str]:
    script = SEND.format(number=int(number)) + prelude + RUN
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "prelude",
    [
        *(AT_IMPORT.format(name=name) for name in MODULES),
        AT_EXIT,
        WHILE_FREED,
    ],
    ids=["package", "library", "verbs", "verb", "exit", "freed"],
)
def test_no_moment_gives_a_traceback(tmp_path, prelude, number):
    (shard,) = make(tmp_path, 2)
    status, stderr = tarmac(prelude, number, "check", shard, "-j", "1")
    assert status in (-number, 128 + number), stderr
    assert "Traceback" not in stderr
    assert "Exception" not in stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_has_not_started_ends_silently(tmp_path, number):
    shards = make(tmp_path, 2, 2, 2)
    status, stderr = tarmac(IN_A_WORKER, number, "check", *shards, "-j", "2")
    assert status != 0
    assert "Traceback" not in stderr
    assert "KeyboardInterrupt" not in stderr


def test_handlers_are_restored():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.unraisablehook
    received: list[int] = []
    with pytest.raises(KeyboardInterrupt), interrupt_on_signals(received):
        os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGTERM]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.unraisablehook) == before
