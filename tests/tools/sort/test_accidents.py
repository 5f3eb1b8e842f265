"""Sort through accidents: killed, out of disk, short of memory; nothing is lost or duplicated."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import tarmac
from harness import rounds
from harness.crash import Forked, crash, survive
from harness.faultfs import every_fault, faulty
from tarmac.errors import DiskFull, WriteError
from tools.sorting import keys, numbered, samples

sort = functools.partial(tarmac.sort, jobs=1)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path_factory.mktemp("home")))


SCRIPT = """
import sys
import tarmac.tools.sort, pyarrow
print("ready", flush=True)
folder, *urls = sys.argv[1:]
tarmac.sort(urls, folder + "/o-{i:03d}.tar", max_samples=5, jobs=2, by="cls", type="int", tmp=folder)
"""


def test_killed_at_any_moment_nothing_is_lost_or_doubled(tmp_path):
    urls = numbered(tmp_path, [i * 7919 % 50 for i in range(300)])
    out = tmp_path / "out"
    out.mkdir()
    expected = sorted(range(300), key=lambda i: i * 7919 % 50)

    def check():
        for path in out.glob("o-*.tar"):
            number = int(path.name[2:5])
            here = [sample["__key__"] for sample in tarmac.read(str(path))]
            assert here == [f"{i:05d}" for i in expected[number * 5 : number * 5 + 5]]

    output, sort = f"{out}/o-{{i:03d}}.tar", functools.partial(tarmac.sort, jobs=1, max_samples=5)
    alone = Forked(lambda: sort(urls, output, by="cls", type="int", tmp=str(out)))
    survive(rounds(10), lambda seed: alone.crash(seed, 0.15), check)
    (out / "o-000.tar").unlink(missing_ok=True)
    survive(rounds(2), lambda seed: crash(SCRIPT, [str(out), *urls], seed, 0.3), check)
    sort(urls, output, by="cls", type="int", tmp=str(out))
    assert keys(out) == [f"{i:05d}" for i in expected]
    assert not list(out.glob("*.part*"))


def test_a_full_disk_and_then_again(tmp_path):
    urls = numbered(tmp_path, [i * 7 % 20 for i in range(20)])
    sort(urls, f"{tmp_path}/whole-{{i:03d}}.tar", by="cls", type="int")
    expected, failed = keys(tmp_path, "whole-*"), 0
    for fault in every_fault(errno.ENOSPC, ("write",)):
        out = tmp_path / f"out{fault.number}"
        output = f"{out}/o-{{i:03d}}.tar"
        with contextlib.suppress(WriteError), faulty(fault):
            sort(urls, output, max_samples=4, by="cls", type="int")
        failed += bool(fault.fired)
        report = sort(urls, output, max_samples=4, by="cls", type="int")
        assert report.written == 20
        assert keys(out) == expected
    assert failed > 5


def test_no_room_for_working_files(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tarmac.tools.workdir.np.lib.format.write_array_header_1_0", full)
    with pytest.raises(DiskFull, match="tmp"):
        sort(numbered(tmp_path, [2, 1]), f"{tmp_path}/o-{{i}}.tar", tmp=str(tmp_path))
    assert not list(tmp_path.glob("tarmac-sort-*"))


MEMORY = """
import sys
sys.path.insert(0, sys.argv[3])
from harness.memory import peak
import tarmac
report = tarmac.sort(sys.argv[1], sys.argv[2] + "/o-{i:03d}.tar", max_samples=50_000, jobs=1, by="txt", memory=32 << 20)
print(report.written, peak())
"""


@pytest.mark.heavy
def test_memory_is_bounded(tmp_path):
    rng, count = random.Random(5), 200_000
    with tarmac.TarWriter(str(tmp_path / "in.tar"), encoder=False) as writer:
        for number in range(count):
            writer.write(
                {"__key__": f"{number:07d}", "txt": rng.randbytes(100).hex().encode()[:100], "cls": b"1"}
            )
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "in.tar"), str(tmp_path), tests]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=800)
    written, peak = map(int, done.stdout.split())
    assert written == count
    assert peak < 300 << 20  # the shard has 400 MB
    last = b""
    for sample in samples(tmp_path):
        assert sample["txt"] >= last
        last = sample["txt"]
