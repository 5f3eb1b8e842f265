"""The script for sbatch, as text and run by bash with a `scontrol` that records its calls."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.running import run
from harness.waiting import TIMEOUT, until
from tarmac.errors import UsageError
from tarmac.tools.jobs import SlurmOptions, slurm_script

COMMAND = ["tarmac", "map", "in-*.tar", "-c", 'echo "$HOME"', "-o", "out/"]


def directives(script: str) -> dict[str, str]:
    """Return the options of sbatch in a script."""
    lines = re.findall(r"(?m)^#SBATCH --([a-z-]+)(?:=(.*))?$", script)
    return {name: "".join(shlex.split(value)) for name, value in lines}


def command_of(script: str) -> list[str]:
    after = script.partition('"$name"; done\n\n')[2]
    return shlex.split(after.rpartition(" &\nprocess=$!")[0])


def test_the_defaults():
    script = slurm_script(COMMAND)
    assert script.startswith("#!/bin/bash\n")
    assert directives(script) == {
        "job-name": "tarmac-map",
        "array": "0-99",
        "cpus-per-task": "1",
        "signal": "B:USR2@120",
        "requeue": "",
        "open-mode": "append",
        "output": "./%A_%a.log",
    }
    added = ["--engine", "slurm", "-j", "$SLURM_CPUS_PER_TASK"]
    assert command_of(script) == [*COMMAND[:2], *added, *COMMAND[2:]]


def test_all_options():
    options = SlurmOptions(
        tasks=7, concurrent=3, time="1-12", signal_before=300, cpus=4, mem="16G", gpus="a100:1", partition="gpu",
        job_name="my job", log="logs/50%", sbatch=["--account=vision", "--exclusive", "--comment=a b"],
    )  # fmt: skip
    assert directives(slurm_script(COMMAND, options)) == {
        "job-name": "my job",
        "array": "0-6%3",
        "cpus-per-task": "4",
        "mem": "16G",
        "gpus": "a100:1",
        "partition": "gpu",
        "time": "1-12",
        "signal": "B:USR2@300",
        "requeue": "",
        "open-mode": "append",
        "output": "logs/50%%/%A_%a.log",
        "account": "vision",
        "exclusive": "",
        "comment": "a b",
    }


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
def test_arguments_are_quoted(arguments):
    script = slurm_script(["tarmac", "map", "--", *arguments])
    assert command_of(script)[-len(arguments) - 1 :] == ["--", *arguments]


@pytest.mark.parametrize("flags", [["-j", "8"], ["-j8"], ["--jobs=8"]])
def test_a_number_of_processes_and_an_engine_are_kept(flags):
    command = [*COMMAND, *flags, "--engine", "slurm"]
    assert command_of(slurm_script(command)) == command


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tasks", 0), ("tasks", 1001), ("concurrent", 0), ("cpus", 0), ("signal_before", 0), ("signal_before", 70_000),
        ("time", "soon"), ("time", "2"), ("time", "0:30"), ("mem", "much"), ("gpus", "all"), ("partition", "a\nb"),
        ("job_name", ""), ("log", "a\nb"), ("sbatch", ["account=x"]), ("sbatch", ["--array=0-3"]),
        ("sbatch", ["--x=\n"]),
    ],
)  # fmt: skip
def test_invalid_options(field, value):
    with pytest.raises(UsageError) as error:
        SlurmOptions(**{field: value})
    assert error.value.field == field


@pytest.mark.parametrize("time", ["3", "2:01", "0:02:01", "1-0", "0-0:3", "0-0:2:1", "UNLIMITED"])
def test_time_limits_longer_than_the_time_to_save(time):
    assert directives(slurm_script(COMMAND, SlurmOptions(time=time)))["time"] == time


def test_the_command_line(capsys, tmp_path):
    status, printed, _ = run(capsys, "jobs", "slurm", "--tasks", "4", "--", *COMMAND)
    assert (status, printed) == (0, slurm_script(COMMAND, SlurmOptions(tasks=4)))
    file = tmp_path / "job.sh"
    assert run(capsys, "jobs", "slurm", "--tasks", 4, "-o", file, *COMMAND)[:2] == (0, "")
    assert file.read_text() == printed
    status, _, error = run(capsys, "jobs", "slurm", "--tasks", "5000", "--", *COMMAND)
    assert (status, "--tasks" in error) == (2, True)


def test_without_slurm_nothing_is_submitted(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    status, printed, error = run(capsys, "jobs", "slurm", "--submit", "--", *COMMAND)
    assert (status, printed) == (2, "")
    assert "sbatch FILE" in error


SCONTROL = """#!/bin/bash
if [ $(wc -c 2>/dev/null < {calls}.failed || echo 0) -lt {failures} ]; then
  echo -n x >> {calls}.failed
  echo "slurm_load_jobs error: Socket timed out" >&2
  exit 1
fi
case "$*" in *show*) echo "JobId=7 JobState={state} Reason={reason} X=" ;; *) echo "$*" >> {calls} ;; esac
"""
PAYLOAD = """#!/bin/bash
for name in USR1 USR2 TERM; do trap "echo $name >> {log}; [ {ends} = no ] || exit {ends}" $name; done
echo ready >> {log}
[ {status} = wait ] || exit {status}
while [ ! -e {log}.end ]; do sleep 0.01; done
exit 9
"""


@pytest.fixture
def batch(tmp_path):
    """Return a function that starts a script for a payload that ends with a status, or waits for signals."""

    def start(status="wait", ends="no", state="RUNNING", reason="None", failures=0):
        calls, log = tmp_path / "calls", tmp_path / "log"
        scontrol = SCONTROL.format(state=state, reason=reason, calls=calls, failures=failures)
        programs = {"scontrol": scontrol, "tarmac": PAYLOAD.format(log=log, status=status, ends=ends)}
        for name, text in programs.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        environ = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURM_CPUS_PER_TASK": "1"}
        environ["PATH"] = f"{tmp_path}:/usr/bin:/bin"
        script = tmp_path / "job.sh"
        script.write_text(slurm_script(["tarmac", "map"]))
        return subprocess.Popen(["bash", str(script)], env=environ)

    def calls():
        path = tmp_path / "calls"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def wait_for(*lines):
        log = tmp_path / "log"
        assert until(lambda: log.exists() and log.read_text().split() == list(lines))

    return start, calls, wait_for, tmp_path / "log.end"


@pytest.mark.processes
@pytest.mark.parametrize("status", [0, 1, 2, 3, 70, 130, 137, 138, 140, 143])
def test_statuses_pass_through_and_preemption_requeues(batch, status):
    start, calls, _, _ = batch
    assert start(status).wait(TIMEOUT) == status
    assert calls() == (["requeue 7_2"] if status in (138, 140, 143) else [])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("state", "reason", "again"),
    [
        ("COMPLETING", "None", False), ("COMPLETING", "TimeLimit", True),
        ("RUNNING", "None", True), ("CONFIGURING", "None", True),
    ],
)  # fmt: skip
def test_cancelled_jobs_are_not_requeued(batch, state, reason, again):
    start, calls, _, _ = batch
    assert start(143, state=state, reason=reason).wait(TIMEOUT) == 143
    assert calls() == (["requeue 7_2"] if again else [])


@pytest.mark.processes
def test_a_busy_controller_is_asked_again(batch):
    start, calls, _, _ = batch
    assert start(138, failures=2).wait(TIMEOUT) == 138
    assert calls() == ["requeue 7_2"]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["USR1", "USR2", "TERM"])
def test_signals_reach_the_command(batch, name):
    start, calls, wait_for, _ = batch
    number = signal.Signals[f"SIG{name}"]
    process = start(ends=128 + number)
    wait_for("ready")
    process.send_signal(number)
    assert process.wait(TIMEOUT) == 128 + number
    assert calls() == ["requeue 7_2"]


@pytest.mark.processes
def test_a_command_that_goes_on_after_signals_ends_with_its_own_status(batch):
    start, calls, wait_for, end = batch
    process = start()
    wait_for("ready")
    lines = ["ready"]
    for name in ("USR2", "TERM", "USR2"):
        process.send_signal(signal.Signals[f"SIG{name}"])
        lines.append(name)
        wait_for(*lines)
    end.touch()
    assert process.wait(TIMEOUT) == 9
    assert calls() == []
