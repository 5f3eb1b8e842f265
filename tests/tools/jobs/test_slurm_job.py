"""A job of four tasks in a real Slurm writes what one process writes."""

from __future__ import annotations

import sys

import pytest

from harness import required
from harness.slurm import slurm
from harness.waiting import until
from tarmac.tools.jobs import SlurmOptions, slurm_script
from tools.jobs.jobs import FUNCTION, digests, map_command, run_locally
from tools.shards import make

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster():
    with required(slurm()) as running:
        yield running


@pytest.fixture
def shards(tmp_path):
    (tmp_path / "upper.py").write_text(FUNCTION)
    (tmp_path / "done").mkdir()
    return make(tmp_path, *[5] * 12)


def test_four_tasks_write_the_same_bytes_as_one_process(cluster, shards, tmp_path):
    run_locally(tmp_path, "expected")
    script = slurm_script(map_command("out"), SlurmOptions(tasks=4))
    job = cluster.sbatch(script, cwd=tmp_path)
    states = cluster.wait(job)
    logs = "\n".join(path.read_text() for path in sorted(tmp_path.glob(f"{job}_*.log")))
    assert states == dict.fromkeys(range(4), "COMPLETED"), logs
    assert digests(tmp_path / "out") == digests(tmp_path / "expected")
    assert (tmp_path / "out" / "manifest.json").exists()
    assert len(list((tmp_path / "done").iterdir())) == 60


def test_preempted_tasks_finish_when_they_run_again(cluster, shards, tmp_path):
    run_locally(tmp_path, "expected")
    (tmp_path / "slow").touch()
    job = cluster.sbatch(slurm_script(map_command("out"), SlurmOptions(tasks=4)), cwd=tmp_path)
    assert until(lambda: len(list((tmp_path / "done").iterdir())) > 4)
    cluster.cancel("--batch", "--signal=USR2", str(job))
    (tmp_path / "slow").unlink()
    states = cluster.wait(job)
    logs = "\n".join(path.read_text() for path in sorted(tmp_path.glob(f"{job}_*.log")))
    assert states == dict.fromkeys(range(4), "COMPLETED"), logs
    assert sum(cluster.restarts(job).values()) > 0, logs
    assert digests(tmp_path / "out") == digests(tmp_path / "expected")


def test_an_array_that_is_submitted_again_does_nothing_twice(cluster, shards, tmp_path):
    script = slurm_script(map_command("out"), SlurmOptions(tasks=2))
    assert set(cluster.wait(cluster.sbatch(script, cwd=tmp_path)).values()) == {"COMPLETED"}
    before = digests(tmp_path / "out")
    for path in (tmp_path / "done").iterdir():
        path.unlink()
    assert set(cluster.wait(cluster.sbatch(script, cwd=tmp_path)).values()) == {"COMPLETED"}
    assert digests(tmp_path / "out") == before
    assert list((tmp_path / "done").iterdir()) == []


def test_srun_with_several_tasks(cluster, shards, tmp_path):
    """Every task of a step has its own share, without an array."""
    run_locally(tmp_path, "expected")
    command = " ".join([*map_command("out"), "--engine", "slurm", "-j", "1"])
    script = f"#!/bin/bash\n#SBATCH --output=%j.log\nsrun --ntasks=3 {command}\n"
    job = cluster.sbatch(script, "--ntasks=3", cwd=tmp_path)
    states = cluster.wait(job)
    assert states == {0: "COMPLETED"}, (tmp_path / f"{job}.log").read_text()
    assert digests(tmp_path / "out") == digests(tmp_path / "expected")
    assert sys.executable in command
