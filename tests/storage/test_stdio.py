"""`-`: standard input as a shard, standard output as a target."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tarmac
from harness.waiting import TIMEOUT

WRITE = """
import tarmac
with tarmac.TarWriter('-') as shard:
  for i in range(100): shard.write({'__key__': str(i), 'txt': 'x' * 1000})
""".strip()
READ = "import tarmac; print(len(list(tarmac.read('-'))))"
STAT = "from tarmac.storage import stat; print(stat('-').size)"


def python(script: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", script], input=data, capture_output=True, timeout=TIMEOUT)


def test_through_a_pipe():
    written = python(WRITE)
    assert written.returncode == 0
    assert python(READ, written.stdout).stdout == b"100\n"
    cut = python(READ, written.stdout[:50_000])
    assert cut.returncode == 1
    assert b"Truncated" in cut.stderr


def test_a_failed_writer_leaves_no_end_marker():
    failed = python(WRITE + "\n  1/0")
    assert failed.returncode == 1
    assert not failed.stdout.endswith(bytes(1024))
    assert b"Truncated" in python(READ, failed.stdout).stderr


def test_a_reader_that_closes_the_pipe(tmp_path):
    script = WRITE.replace("range(100)", "range(100000)")
    command = f'{sys.executable} -c "$0" 2> {tmp_path}/err | head -c 1000 > /dev/null; true'
    subprocess.run(["bash", "-c", command, script], timeout=TIMEOUT, check=True)
    assert b"WriteError" in (tmp_path / "err").read_bytes()


def test_stat(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    with (tmp_path / "x").open("rb") as file:
        done = subprocess.run([sys.executable, "-c", STAT], stdin=file, capture_output=True, timeout=TIMEOUT)
    assert done.stdout == b"5\n"
    assert b"UnsupportedScheme" in python(STAT, b"x").stderr
    with pytest.raises(tarmac.errors.UnsupportedScheme):
        tarmac.storage.read_range("-", 0, 1)
