"""Hints of jobs on clusters."""

from __future__ import annotations

import pytest

from harness.hints import follows, hinted
from tarmac.jobs.share import share_of_slurm
from tarmac.tools.jobs import slurm_script, submit_slurm

COMMAND = ["tarmac", "copy", "x.tar", "-o", "y/"]


@follows("tarmac jobs slurm -- COMMAND writes a script that runs the command in one.")
def test_outside_of_slurm():
    with hinted("tarmac jobs slurm -- COMMAND writes a script that runs the command in one."):
        share_of_slurm({})
    assert "tarmac copy --engine slurm" in slurm_script(COMMAND)


@follows("remove --engine and --task from it.")
@pytest.mark.parametrize("flags", [["--engine", "local"], ["--task", "0/2"]])
def test_commands_that_have_a_task(flags):
    with hinted("remove --engine and --task from it."):
        slurm_script([*COMMAND, *flags])
    slurm_script(COMMAND)


@follows("remove --overwrite from the command, and the old outputs before it runs.")
def test_commands_that_overwrite():
    with hinted("remove --overwrite from the command, and the old outputs before it runs."):
        slurm_script([*COMMAND, "--overwrite"])
    slurm_script(COMMAND)


@follows("run the command itself.")
def test_commands_that_write_no_files():
    with hinted("run the command itself."):
        slurm_script([*COMMAND, "--dry-run"])
    slurm_script(COMMAND)


@follows("write the script to a file, and run sbatch FILE where Slurm is.")
def test_machines_without_slurm(monkeypatch, tmp_path):
    """tests/tools/jobs/test_slurm.py does the second half, in a real Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with hinted("write the script to a file, and run sbatch FILE where Slurm is."):
        submit_slurm(slurm_script(COMMAND))
    (tmp_path / "job.sh").write_text(slurm_script(COMMAND))
