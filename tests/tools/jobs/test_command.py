"""What the tasks of a cluster may run."""

from __future__ import annotations

import click
import pytest

from tarmac.cli import VERBS as ALL_VERBS
from tarmac.cli import program
from tarmac.errors import UsageError
from tarmac.tools.jobs.command import PREEMPTED, VERBS, JobCommand, parse_command


def test_the_verbs_are_those_with_an_engine():
    commands = {verb: program.get_command(click.Context(program), verb) for verb in ALL_VERBS}
    commands["knn build"] = commands.pop("knn").commands["build"]
    flags = {verb: {flag for param in each.params for flag in param.opts} for verb, each in commands.items()}
    assert {verb for verb in flags if {"--engine", "--task"} <= flags[verb]} == set(VERBS)


def test_the_statuses_are_those_of_signals():
    import signal

    assert set(PREEMPTED) == {128 + each for each in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)}


@pytest.mark.parametrize(
    "start",
    [
        ["tarmac"],
        ["/opt/venv/bin/tarmac"],
        ["python", "-m", "tarmac"],
        ["apptainer", "exec", "--nv", "tarmac.sif", "tarmac"],
        ["docker", "run", "tarmac", "tarmac"],
    ],
)
def test_other_programs_may_start_tarmac(start):
    parsed = parse_command([*start, "map", "x.tar", "-o", "y/"])
    assert parsed == JobCommand((*start, "map"), "map", ("x.tar", "-o", "y/"))
    parsed = parse_command([*start, "knn", "build", "x/", "-o", "y/"])
    assert parsed == JobCommand((*start, "knn", "build"), "knn", ("x/", "-o", "y/"))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "tarmac",
        "tarmac show x.tar",
        "echo map",
        "python train.py",
        "tarmac jobs slurm",
        "tarmac knn add x/",
    ],
)
def test_other_commands_are_refused(line):
    with pytest.raises(UsageError, match="expected a command such as") as error:
        parse_command(line.split())
    assert error.value.field == "command"


@pytest.mark.parametrize(
    "flags",
    [
        "--task 0/2",
        "--task=0/2",
        "--engine local",
        "--engine=ray",
        "--overwrite",
        "--dry-run",
        "-o -",
        "--output=-",
    ],
)
def test_flags_that_tasks_cannot_share(flags):
    with pytest.raises(UsageError) as error:
        parse_command(["tarmac", "copy", "x.tar", *flags.split()], engine="slurm")
    assert error.value.field == "command"
    assert error.value.hint


def test_flags_inside_values_and_after_the_end_of_flags_are_allowed():
    parse_command(
        ["tarmac", "map", "x.tar", "-c", "resize --overwrite", "-o", "y/", "--engine", "slurm"], "slurm"
    )
    parse_command(["tarmac", "copy", "-o", "y/", "--", "--overwrite"])


def test_flags_in_all_forms():
    command = parse_command(["tarmac", "copy", "-j4", "--storage=retries=3", "x.tar", "-o", "y/"])
    assert (command.value("-j", "--jobs"), command.value("--storage")) == ("4", "retries=3")
    assert command.value("--engine") is None
    assert (command.has("-j"), command.has("--stor")) == (True, False)
