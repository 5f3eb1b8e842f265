"""SIGTERM, SIGUSR1 and SIGUSR2 save what a job has, and the same command continues there."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from cli.running import PROGRAM, program
from harness.waiting import TIMEOUT, gone, until
from tools.shards import files, make

pytestmark = pytest.mark.processes

WAITING = """
import os, time

def f(sample):
    key = sample["__key__"].replace("/", "-")
    with open(os.path.join(HERE, "calls"), "ab", 0) as file:
        file.write(key.encode() + b"\\n")
    if int(key[-3:]) == 5:
        open(os.path.join(HERE, f"{key}.reached"), "w").close()
        while not os.path.exists(os.path.join(HERE, "go")):
            time.sleep(0.01)
    return sample | {"n": key}
"""


@pytest.fixture
def job(tmp_path):
    """The arguments of a job whose function waits at the sixth sample of each shard for a file `go`."""
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "f.py").write_text(f"HERE = {str(here)!r}\n{WAITING}")

    def arguments(*counts, jobs=1):
        urls = make(tmp_path, *counts)
        return ["map", *urls, "--py", f"{tmp_path}/f.py:f", "-j", jobs, "-o", f"{tmp_path}/out/"]

    return here, arguments


def started(arguments):
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)


def reached(here):
    return len(list(here.glob("*.reached")))


def chunks(folder):
    return list(Path(folder).glob("out/.tarmac/map.job/chunks/*/*.json"))


def finish(here, arguments, tmp_path):
    """Run the job to its end, and compare with one that nothing disturbed; return the calls of each sample."""
    (here / "go").touch()
    done = program(*arguments)
    assert done.returncode == 0, done.stderr
    calls = (here / "calls").read_text().split()
    quiet = program(*arguments[:-1], f"{tmp_path}/quiet/")
    assert quiet.returncode == 0, quiet.stderr
    assert files(tmp_path / "out") == files(tmp_path / "quiet")
    assert chunks(tmp_path) == []
    return {key: calls.count(key) for key in calls}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("everyone", [False, True], ids=["process", "group"])
@pytest.mark.parametrize(("counts", "jobs"), [((12,), 1), ((12, 12, 12), 2)])
def test_a_preempted_job_continues(tmp_path, job, number, everyone, counts, jobs):
    """Schedulers send the signal to the program, or to all its processes."""
    here, arguments = job
    arguments = arguments(*counts, jobs=jobs)
    process = started(arguments)
    assert until(lambda: reached(here) == jobs)
    workers = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, number) if everyone else process.send_signal(number)
    _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + number, said
    assert b"Traceback" not in said
    assert gone(workers)
    assert len(chunks(tmp_path)) == jobs
    assert files(tmp_path / "out") == {}
    calls = finish(here, arguments, tmp_path)
    assert {key for key, count in calls.items() if count > 1} == {f"s{n}-005" for n in range(jobs)}


@pytest.mark.parametrize("everyone", [False, True], ids=["process", "group"])
def test_samples_of_one_shard_in_several_processes(tmp_path, job, everyone):
    """What was written is saved; what was computed ahead is computed again."""
    here, arguments = job
    arguments = arguments(400, jobs=2)
    (tmp_path / "f.py").write_text((tmp_path / "f.py").read_text().replace("== 5:", "== 205:"))
    process = started(arguments)
    # The first groups of 64 samples are written before the one that waits.
    assert until(lambda: reached(here))
    workers = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGTERM) if everyone else process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 143, said
    assert b"Traceback" not in said
    assert gone(workers)
    finish(here, arguments, tmp_path)


def test_an_interrupt_saves_nothing_and_ends_at_once(tmp_path, job):
    here, arguments = job
    arguments = arguments(12)
    process = started([*arguments, "--checkpoint-samples", "2"])
    assert until(lambda: reached(here))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, said
    assert len(chunks(tmp_path)) == 2  # those of four samples, not the fifth
    calls = finish(here, arguments, tmp_path)
    assert {key for key, count in calls.items() if count > 1} == {"s0-004", "s0-005"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_other_verbs_end_as_with_ctrl_c(tmp_path, number):
    urls = make(tmp_path, 3, 3)
    os.mkfifo(tmp_path / "never")
    command = [
        *PROGRAM,
        "copy",
        *urls,
        "-o",
        f"{tmp_path}/x-{{i}}.tar",
        "--post-cmd",
        f"cat {tmp_path}/never",
        "-j",
    ]
    for jobs in ("1", "2"):
        process = subprocess.Popen(
            [*command, jobs, "--overwrite"], stderr=subprocess.PIPE, start_new_session=True
        )

        def waits(process=process):
            children = psutil.Process(process.pid).children(recursive=True)
            return [child for child in children if child.name() == "cat"]

        assert until(waits)
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 128 + number, said
        assert b"Traceback" not in said
        assert gone(family)
