"""`tarmac map` as a user types it, and killed, interrupted or terminated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from cli.running import numbers, program, run
from harness import rounds
from harness.crash import crash, survive
from harness.waiting import TIMEOUT, gone, until
from tarmac import TarWriter, read


@pytest.fixture
def shards(tmp_path):
    for shard in range(4):
        with TarWriter(str(tmp_path / f"in-{shard}.tar")) as writer:
            for number in range(5):
                writer.write({"__key__": f"k{shard}{number}", "txt": f"{shard} {number}"})
    return f"{tmp_path}/in-*.tar"


def keys(pattern):
    return [sample["__key__"] for sample in read(str(pattern))]


def test_a_command(shards, tmp_path, capsys):
    command = "map", shards, "-c", "tr 0 x < sample.txt > sample.new", "-o", f"{tmp_path}/out/", "-j"
    status, out, err = run(capsys, *command, 2)
    assert (status, out) == (0, "")
    assert numbers(err.splitlines()[-1]) == [20, 20, 120]
    assert numbers(run(capsys, *command, 1)[2].splitlines()[-1]) == [20, 20, 120, 4]
    status, _, err = run(capsys, *command[:4], "-o", f"{tmp_path}/dry/", "--dry-run")
    assert (status, numbers(err)) == (0, [4])
    assert not (tmp_path / "dry").exists()


def test_failed_samples(shards, tmp_path, capsys):
    command = "map", shards, "-c", "echo sorry; test $TARMAC_KEY != k11", "-o", f"{tmp_path}/out/"
    status, _, err = run(capsys, *command)
    assert (status, "sorry" in err, "k11" in err) == (1, True, True)
    for _ in range(2):
        status, out, _ = run(capsys, *command, "--on-error", "skip", "--json")
        report = json.loads(out)
        counts = [report[name] for name in ("read", "written", "failed", "dropped")]
        assert (status, counts) == (1, [20, 19, 1, 0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c", "true", "--py", "a:b"], "--py, --command and --script"),
        ([], "--py, --command and --script"),
        (["-c", "true", "--decode", "rgb8"], "--decode"),
        (["--py", "a:b", "--timeout", "3"], "--timeout"),
        (["-c", "true", "--timeout", "-1"], "--timeout"),
        (["-c", "true", "--interpreter", "perl"], "--interpreter"),
        (["-c", "true", "--on-error", "keep"], "--on-error"),
        (["-c", "true", "--unordered", "-o", "x-{i}.tar", "pipe:cat x.tar", "--allow-exec"], "--unordered"),
        (["--py", "no_such_module:f"], "--py"),
        (["--script", "absent.sh"], "--script"),
        (["-c", "true", "pipe:cat x.tar"], "--allow-exec"),
    ],
)
def test_errors(shards, tmp_path, capsys, arguments, words):
    status, out, err = run(capsys, "map", shards, "-o", f"{tmp_path}/w/", *arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert not (tmp_path / "w").exists()


def test_streams_in_and_out(shards, tmp_path):
    with open(tmp_path / "in-1.tar", "rb") as file:
        done = program("map", "-", "-c", "echo heard; echo > sample.new", "-o", "-", stdin=file)
    assert done.returncode == 0
    assert done.stderr.count(b"heard\n") == 5
    (tmp_path / "got.tar").write_bytes(done.stdout)
    assert keys(tmp_path / "got.tar") == [f"k1{n}" for n in range(5)]
    done = program("map", shards, "-c", "rm sample.*", "-o", "-")
    (tmp_path / "none.tar").write_bytes(done.stdout)
    assert keys(tmp_path / "none.tar") == []
    assert b"20 dropped" in done.stderr


def test_scripts_logs_and_kept_files(shards, tmp_path, capsys):
    script = tmp_path / "s.py"
    script.write_text("import os; print('doing'); os.remove('sample.txt'); open('sample.x', 'w').write('1')")
    command = ("map", shards, "--script", script, "--interpreter", sys.executable)
    assert run(capsys, *command, "-o", f"{tmp_path}/out/", "--log-field", "log")[0] == 0
    first = next(iter(read(f"{tmp_path}/out/in-0.tar")))
    assert {name for name in first if name[0] != "_"} == {"x", "log"}
    assert first["log"] == b"doing\n"
    script.write_text("raise SystemExit('no')")
    run(capsys, *command, "-o", f"{tmp_path}/o/", "--keep-dir", tmp_path / "kept", "--on-error", "skip")
    assert len(list((tmp_path / "kept").iterdir())) == 20


SCRIPT = """
import sys
from tarmac.cli import main
print("ready", flush=True)
main(sys.argv[1:])
"""


@pytest.mark.heavy
def test_killed_at_any_moment_and_run_again(shards, tmp_path):
    expected = [f"k{s}{n}" for s in range(4) for n in range(5)]
    arguments = ["map", shards, "-c", "sleep 0.01; echo > sample.new", "-j", "2", "-o", f"{tmp_path}/out/"]

    def whole():
        for path in (tmp_path / "out").glob("*.tar"):
            number = path.stem[-1]
            assert keys(path) == [f"k{number}{n}" for n in range(5)]

    survive(rounds(10), lambda seed: crash(SCRIPT, _restarted(arguments, tmp_path, seed), seed, 1.2), whole)
    done = program(*arguments)
    assert done.returncode == 0, done.stderr
    assert keys(f"{tmp_path}/out/in-*.tar") == expected
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == [f"in-{s}.tar" for s in range(4)]


def _restarted(arguments, tmp_path, seed):
    """Start over every few rounds, so that there is something to kill."""
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


def test_the_output_of_a_function_is_not_data(shards, tmp_path):
    (tmp_path / "loud.py").write_text("def f(sample):\n    print('heard')\n    return sample\n")
    for jobs in (1, 2):
        done = program("map", shards, "--py", f"{tmp_path}/loud.py:f", "-o", "-", "-j", jobs)
        assert done.returncode == 0
        (tmp_path / "out.tar").write_bytes(done.stdout)
        assert len(keys(tmp_path / "out.tar")) == 20
        assert b"heard" in done.stderr


@pytest.mark.heavy
def test_terminated_it_leaves_nothing_behind_either(shards, tmp_path):
    """Batch systems terminate before they kill."""
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
    """Eight jobs and four shards start processes of processes."""
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
    """Start a job whose commands sleep; return it and the commands when all workers are busy."""
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
    sleepers = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.cmdline()[:1] == ["sleep"]:
                sleepers.append(child)
        except psutil.Error:
            continue
    return sleepers
