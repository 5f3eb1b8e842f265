"""Scripts in a real Slurm: arrays, logs, requeues, time limits and cancelled jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import required
from harness.slurm import Slurm, slurm
from harness.waiting import until
from tarmac.jobs.share import Share, share_of_slurm
from tarmac.tools.jobs import SlurmOptions, slurm_script

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster():
    with required(slurm()) as running:
        yield running


@pytest.fixture
def payload(tmp_path):
    """Return a function that makes a program named tarmac from the lines of a shell script."""

    def make(*lines: str) -> list[str]:
        program = tmp_path / "tarmac"
        program.write_text("\n".join(["#!/bin/bash", f"cd {tmp_path}", *lines, ""]))
        program.chmod(0o755)
        return [str(program), "map", "in.tar", "-o", "out/"]

    return make


def started(cluster: Slurm, folder: Path, name: str) -> None:
    assert until(lambda: (folder / name).exists()), (cluster.home / "slurmctld.log").read_text()[-2000:]


def test_an_array_has_all_shares_and_one_log_for_each_task(cluster, payload, tmp_path):
    command = payload('env > "env-$SLURM_ARRAY_TASK_ID"', "echo arguments: $*")
    logs = tmp_path / "all logs"
    logs.mkdir()
    job = cluster.sbatch(slurm_script(command, SlurmOptions(tasks=4, cpus=2, log=str(logs))), cwd=tmp_path)
    assert cluster.wait(job) == dict.fromkeys(range(4), "COMPLETED")
    shares = []
    for number in range(4):
        text = (logs / f"{job}_{number}.log").read_text()
        assert "arguments: map --engine slurm -j 2 in.tar -o out/" in text
        lines = (tmp_path / f"env-{number}").read_text().splitlines()
        shares.append(share_of_slurm(dict(line.split("=", 1) for line in lines if line.startswith("SLURM_"))))
    assert shares == [Share(index, 4) for index in range(4)]


def test_a_preempted_task_is_requeued_and_appends_to_its_log(cluster, payload, tmp_path):
    command = payload(
        'echo "run ${SLURM_RESTART_COUNT:-0} of $SLURM_ARRAY_TASK_ID"',
        '[ "$SLURM_ARRAY_TASK_ID" = 3 ] && exit 1',
        '[ "${SLURM_RESTART_COUNT:-0}" -gt "$SLURM_ARRAY_TASK_ID" ] || exit $((138 + 2 * SLURM_ARRAY_TASK_ID))',
    )
    job = cluster.sbatch(slurm_script(command, SlurmOptions(tasks=4)), cwd=tmp_path)
    states = cluster.wait(job)
    logs = [path.read_text() for path in sorted(tmp_path.glob("*.log"))]
    assert states == {0: "COMPLETED", 1: "COMPLETED", 2: "FAILED", 3: "FAILED"}, (
        logs
    )  # 142 is not a preemption
    assert cluster.restarts(job) == {0: 1, 1: 2, 2: 0, 3: 0}
    log = (tmp_path / f"{job}_1.log").read_text()
    assert [line for line in log.splitlines() if line.startswith("run")] == [
        f"run {each} of 1" for each in range(3)
    ]


def test_the_signal_before_the_time_limit_reaches_the_command(cluster, payload, tmp_path):
    command = payload(
        '[ -z "$SLURM_RESTART_COUNT" ] || exit 0',
        "trap 'echo saved >> saved; exit 140' USR2",
        "while :; do sleep 0.1; done",
    )
    script = slurm_script(command, SlurmOptions(tasks=1, time="1", signal_before=59))
    job = cluster.sbatch(script, cwd=tmp_path)
    assert cluster.wait(job) == {0: "COMPLETED"}
    assert (tmp_path / "saved").read_text() == "saved\n"
    assert cluster.restarts(job) == {0: 1}


def test_a_cancelled_task_saves_its_work_and_is_not_requeued(cluster, payload, tmp_path):
    command = payload("trap 'touch saved; exit 143' TERM", "touch started", "while :; do sleep 0.1; done")
    job = cluster.sbatch(slurm_script(command, SlurmOptions(tasks=1)), cwd=tmp_path)
    started(cluster, tmp_path, "started")
    cluster.cancel(str(job))
    assert cluster.wait(job) == {0: "CANCELLED"}
    assert (tmp_path / "saved").exists()
    assert cluster.restarts(job) == {0: 0}


def test_a_task_that_slurm_requeues_runs_again(cluster, payload, tmp_path):
    command = payload(
        '[ -z "$SLURM_RESTART_COUNT" ] || exit 0',
        "trap 'touch saved; exit 143' TERM", "touch started", "while :; do sleep 0.1; done",
    )  # fmt: skip
    job = cluster.sbatch(slurm_script(command, SlurmOptions(tasks=1)), cwd=tmp_path)
    started(cluster, tmp_path, "started")
    cluster.requeue(f"{job}_0")
    assert cluster.wait(job) == {0: "COMPLETED"}
    assert (tmp_path / "saved").exists()
    assert cluster.restarts(job) == {0: 1}


def test_submit(cluster, payload, tmp_path):
    command = payload('echo "task $SLURM_ARRAY_TASK_ID"')
    line = [sys.executable, "-m", "tarmac", "jobs", "slurm", "--tasks", "2", "--log", "logs/new", "--submit"]
    environ = cluster.environ()
    done = subprocess.run(
        [*line, "--", *command], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    job = int(done.stdout)
    assert cluster.wait(job) == {0: "COMPLETED", 1: "COMPLETED"}
    assert sorted(os.listdir(tmp_path / "logs/new")) == [f"{job}_0.log", f"{job}_1.log"]
    rejected = subprocess.run(
        [*line, "--partition", "absent", "--", *command], env=environ, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert rejected.returncode == 2
    assert "invalid partition" in rejected.stderr
