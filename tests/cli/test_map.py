"""`tarmac map` as a person runs it, and as it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from typer.testing import CliRunner

from harness import rounds
from harness.crash import crash, survive
from harness.waiting import TIMEOUT, gone, until
from tarmac import TarWriter, read
from tarmac.cli import app


def tarmac(*arguments, **options):
    command = [sys.executable, "-m", "tarmac", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, **options)


def inside(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def shards(tmp_path):
    for shard in range(4):
        with TarWriter(str(tmp_path / f"in-{shard}.tar")) as writer:
            for number in range(5):
                writer.write({"__key__": f"k{shard}{number}", "txt": f"{shard} {number}"})
    return f"{tmp_path}/in-*.tar"


def keys(pattern):
    return [sample["__key__"] for sample in read(str(pattern))]


def test_help():
    done = inside("map", "--help")
    assert done.exit_code == 0
    for flag in (
        "--command",
        "--script",
        "--py",
        "--multi",
        "--timeout",
        "--log-field",
        "--keep-dir",
        "--decode",
    ):
        assert flag in done.output


def test_a_command(shards, tmp_path):
    done = inside("map", shards, "-c", "tr 0 x < sample.txt > sample.new", "-o", f"{tmp_path}/out/", "-j", 2)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.endswith("map: 20 samples in, 20 out, 120 bytes\n")
    done = inside("map", shards, "-c", "tr 0 x < sample.txt > sample.new", "-o", f"{tmp_path}/out/", "-j", 1)
    assert "nothing to do, all 4 were done before" in done.stderr


def test_exit_codes(shards, tmp_path):
    out = f"{tmp_path}/out/"
    assert inside("map", shards, "-c", "true", "--on-error", "skip", "-o", f"{tmp_path}/a/").exit_code == 0
    lost = ("map", shards, "-c", "test $TARMAC_KEY != k11", "--on-error", "skip", "-o", out, "--json")
    for _ in range(2):
        done = inside(*lost)
        assert done.exit_code == 1
        facts = json.loads(done.stdout)
        assert (facts["read"], facts["written"], facts["failed"], facts["dropped"]) == (20, 19, 1, 0)
    for wrong in (
        ["-c", "true", "--py", "a:b"],
        [],
        ["-c", "true", "--decode", "rgb8"],
        ["--py", "a:b", "--timeout", "3"],
        ["-c", "true", "--timeout", "-1"],
        ["-c", "true", "--interpreter", "perl"],
        ["-c", "true", "--on-error", "keep"],
    ):
        assert inside("map", shards, *wrong, "-o", f"{tmp_path}/w/").exit_code == 2, wrong
    assert inside("map", shards, "-c", "true", "-o", "-", "--json").exit_code == 2
    for wrong in (["--py", "no_such_module:f"], ["--script", "absent.sh"]):
        done = tarmac("map", shards, *wrong, "-o", f"{tmp_path}/w/")
        assert done.returncode == 2
        assert done.stderr.count(b"\n") == 1
    done = tarmac("map", shards, "-c", "echo sorry; false", "-o", f"{tmp_path}/f/")
    assert done.returncode == 1
    assert b"sorry" in done.stderr
    assert b"Traceback" not in done.stderr
    done = tarmac("map", "pipe:cat x.tar", "-c", "true", "-o", f"{tmp_path}/f/")
    assert (done.returncode, b"--allow-exec" in done.stderr) == (2, True)
    assert tarmac("map", tmp_path / "absent.tar", "-c", "true", "-o", f"{tmp_path}/f/").returncode == 3


def test_streams_in_and_out(shards, tmp_path):
    with open(tmp_path / "in-1.tar", "rb") as file:
        done = tarmac("map", "-", "-c", "echo heard; echo > sample.new", "-o", "-", stdin=file)
    assert done.returncode == 0
    assert done.stderr.count(b"heard\n") == 5
    (tmp_path / "got.tar").write_bytes(done.stdout)
    assert keys(tmp_path / "got.tar") == [f"k1{n}" for n in range(5)]
    done = tarmac("map", shards, "-c", "rm sample.*", "-o", "-")
    (tmp_path / "none.tar").write_bytes(done.stdout)
    assert keys(tmp_path / "none.tar") == []
    assert b"20 dropped" in done.stderr


def test_only_say_what_there_is_to_do(shards, tmp_path):
    done = inside("map", shards, "-c", "touch /nowhere/at/all", "-o", f"{tmp_path}/out/", "--dry-run")
    assert (done.exit_code, "4 to do" in done.stderr) == (0, True)
    assert not (tmp_path / "out").exists()


def test_scripts_logs_and_kept_files(shards, tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import os; print('doing'); os.remove('sample.txt'); open('sample.x', 'w').write('1')")
    run = ("map", shards, "--script", script, "--interpreter", sys.executable)
    assert inside(*run, "-o", f"{tmp_path}/out/", "--log-field", "log").exit_code == 0
    first = next(iter(read(f"{tmp_path}/out/in-0.tar")))
    assert {name for name in first if name[0] != "_"} == {"x", "log"}
    assert first["log"] == b"doing\n"
    script.write_text("raise SystemExit('no')")
    inside(*run, "-o", f"{tmp_path}/o/", "--keep-dir", tmp_path / "kept", "--on-error", "skip")
    assert len(list((tmp_path / "kept").iterdir())) == 20


SCRIPT = """
import sys
from tarmac.cli import main
print("ready", flush=True)
main(sys.argv[1:])
"""


@pytest.mark.heavy
def test_killed_at_any_moment_it_goes_on_where_it_was(shards, tmp_path):
    expected = [f"k{s}{n}" for s in range(4) for n in range(5)]
    arguments = ["map", shards, "-c", "sleep 0.01; echo > sample.new", "-j", "2", "-o", f"{tmp_path}/out/"]

    def whole():
        for path in (tmp_path / "out").glob("*.tar"):
            number = path.stem[-1]
            assert keys(path) == [f"k{number}{n}" for n in range(5)]

    survive(rounds(10), lambda seed: crash(SCRIPT, _other(arguments, tmp_path, seed), seed, 1.2), whole)
    done = tarmac(*arguments)
    assert done.returncode == 0, done.stderr
    assert keys(f"{tmp_path}/out/in-*.tar") == expected
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == [f"in-{s}.tar" for s in range(4)]


def _other(arguments, tmp_path, seed):
    """Begin anew every few rounds, so that there is something to kill."""
    return [*arguments, "--overwrite"] if seed % 3 == 0 else arguments


@pytest.mark.heavy
@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_interrupted_it_leaves_nothing_behind(shards, tmp_path, jobs):
    work = tmp_path / "work"
    work.mkdir()
    process, sleepers = _at_work(shards, tmp_path, work, jobs)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the group
    _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert gone(sleepers)
    assert list(work.iterdir()) == []
    assert os.listdir(tmp_path / "out") == [".tarmac"]


def test_what_a_function_prints_is_not_data(shards, tmp_path):
    (tmp_path / "loud.py").write_text("def f(sample):\n    print('heard')\n    return sample\n")
    for jobs in (1, 2):
        done = tarmac("map", shards, "--py", f"{tmp_path}/loud.py:f", "-o", "-", "-j", jobs, text=False)
        assert done.returncode == 0
        (tmp_path / "out.tar").write_bytes(done.stdout)
        assert len(keys(tmp_path / "out.tar")) == 20
        assert b"heard" in done.stderr


@pytest.mark.heavy
def test_terminated_it_leaves_nothing_behind_either(shards, tmp_path):
    """As a batch system does it before it kills."""
    work = tmp_path / "work"
    work.mkdir()
    process, sleepers = _at_work(shards, tmp_path, work, 2)
    process.terminate()
    _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 143
    assert b"Traceback" not in said
    assert gone(sleepers)
    assert list(work.iterdir()) == []
    assert os.listdir(tmp_path / "out") == [".tarmac"]


SLOW = """
import os, time

def f(sample):
    open(os.path.join(os.environ["PIDS"], str(os.getpid())), "w").close()
    time.sleep(10_000)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("jobs", [2, 8])
def test_interrupted_functions_end_too(shards, tmp_path, jobs):
    """With eight jobs and four shards in processes of processes."""
    pids = tmp_path / "pids"
    pids.mkdir()
    (tmp_path / "slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, *f"-m tarmac map {shards} -j {jobs} -o {tmp_path}/out/ --py slow.py:f".split()],
        stderr=subprocess.PIPE,
        env=os.environ | {"PIDS": str(pids)},
        cwd=tmp_path,
        start_new_session=True,
    )
    assert until(lambda: len(os.listdir(pids)) >= min(jobs, 4))
    workers = [psutil.Process(int(name)) for name in os.listdir(pids)]
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert gone(workers)
    assert os.listdir(tmp_path / "out") == [".tarmac"]


def _at_work(shards, tmp_path, work, jobs):
    """A job whose commands sleep, and those commands, when as many are running as can."""
    process = subprocess.Popen(
        [
            sys.executable,
            *f"-m tarmac map {shards} -j {jobs} -o {tmp_path}/out/ -c".split(),
            "exec sleep 10000",
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(work)},
        start_new_session=True,
    )
    assert until(lambda: len(_sleeping(process)) >= min(jobs, 4))
    return process, _sleeping(process)


def _sleeping(process):
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.cmdline()[:1] == ["sleep"]:
                found.append(child)
        except psutil.Error:
            continue
    return found
