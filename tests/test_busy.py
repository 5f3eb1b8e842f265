"""The load of `make busy` is there while its command runs, and never after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.waiting import FOREVER, gone

ROOT = Path(__file__).parent.parent


def start(script):
    command = [sys.executable, "-m", "tests.busy", sys.executable, "-c", script]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"LOAD": "3"}, stdout=subprocess.PIPE)


def test_its_status_is_that_of_the_command():
    siblings = (
        "import psutil; print(len(psutil.Process().parent().children()), flush=True); raise SystemExit(7)"
    )
    with start(siblings) as busy:
        assert int(busy.stdout.read()) == 4  # three loops and the command
    assert busy.returncode == 7


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_loops_end_with_it(how):
    with start(f"import time; print('ready', flush=True); time.sleep({FOREVER})") as busy:
        assert busy.stdout.readline() == b"ready\n"
        family = psutil.Process(busy.pid).children()
        assert len(family) == 4
        busy.send_signal(how)
        family[-1].kill()  # the command, which has nothing to do with it
        busy.wait()
        assert gone(family)
