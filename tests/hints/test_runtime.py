"""Follow the hints of worker processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tarmac
from harness.hints import follows
from harness.shards import plain
from tarmac.runtime.processes import GUARD

pytestmark = pytest.mark.processes
AGAIN = "run the same command again, with fewer processes if memory ran out."
FUNCTION = """
import os, pathlib, signal

def function(sample):
    if not pathlib.Path("again").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return sample
"""


@pytest.fixture(autouse=True)
def shard(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("x.tar").write_bytes(plain())
    Path("f.py").write_text(FUNCTION)
    return "x.tar"


def script(text: str) -> subprocess.CompletedProcess[str]:
    Path("script.py").write_text(text)
    return subprocess.run([sys.executable, "script.py"], capture_output=True, text=True)


@follows("run the same command again, with fewer processes if memory ran out.")
@pytest.mark.parametrize("processes", [2, 1])
def test_a_worker_that_is_killed(processes):
    def work(jobs):
        return script(f'import tarmac\ntarmac.map("x.tar", "out.tar", "f.py:function", jobs={jobs})')

    assert work(2).stderr.rstrip().endswith(f"Try: {AGAIN}")
    Path("again").touch()  # there is enough memory now
    assert work(processes).returncode == 0
    assert len(list(tarmac.read("out.tar"))) == 3


@follows("{} In a script, {}")
def test_a_script_without_a_guard():
    Path("again").touch()
    work = (
        '\n    tarmac.map("x.tar", "out.tar", "f.py:function", jobs=2)\n'  # obstore does not survive a fork
    )
    assert f"Try: {AGAIN} In a script, {GUARD}" in script(f"import obstore, tarmac\nif True:{work}").stderr
    guarded = script(f'import obstore, tarmac\nif __name__ == "__main__":{work}')
    assert guarded.returncode == 0, guarded.stderr
    assert len(list(tarmac.read("out.tar"))) == 3
