"""Write and submit scripts for Slurm: an array of tasks that share the units of a job."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tarmac.errors import JobError, UsageError
from tarmac.tools.jobs.command import PREEMPTED, JobCommand, check_tasks, check_text, parse_command

_OURS = {
    "array": "tasks", "signal": "signal_before", "output": "log", "time": "time", "cpus-per-task": "cpus", "mem": "mem",
    "gpus": "gpus", "partition": "partition", "job-name": "job_name", "requeue": "", "no-requeue": "",
    "open-mode": "",
}  # fmt: skip
"""The options of sbatch that the script sets itself, and the argument for each."""
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_SCRIPT = """\
#!/bin/bash
{directives}

# All tasks run this command; each takes its share of the units, and then units that are left. Submit the script again
# after a failure: units that are done are not repeated.{prepare}
task="${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
process=
signalled=yes
forward() {{
  signalled=yes
  [ -z "$process" ] || kill -s "$1" "$process" 2>/dev/null
}}
for name in USR1 USR2 TERM; do trap "forward $name" "$name"; done

{command} &
process=$!
while [ -n "$signalled" ]; do  # a signal ends the wait before the command ends
  signalled=
  wait "$process"
  status=$?
done
process=

# The controller is busy when many tasks end at once: ask again for half a minute.
ask() {{
  for pause in 1 2 4 8 16; do
    scontrol "$@" && return
    sleep "$pause"
  done
  scontrol "$@"
}}

# A signal stopped the command before its work was done: run this task again, unless the job was cancelled.
case "$status" in
  {preempted})
    case "$(ask --oneliner show job "$task")" in
      *" JobState=RUNNING "* | *" JobState=CONFIGURING "* | *" Reason=TimeLimit "*) ask requeue "$task" ;;
    esac ;;
esac
exit "$status"
"""


@dataclass(frozen=True)
class SlurmOptions:
    """How an array of tasks runs."""

    tasks: int = 100
    """Number of tasks. Those that have nothing left to do end at once."""
    concurrent: int | None = None
    """How many of them may run at the same time."""
    time: str | None = None
    """Time limit of a task, as Slurm writes it: `90`, `4:00:00`, `1-12`. Tasks that reach it are requeued."""
    signal_before: int = 120
    """Seconds before the time limit at which Slurm signals a task to save its work."""
    cpus: int = 1
    """Cores of a task, and so its number of processes."""
    mem: str | None = None
    """Memory of a task: `16G`."""
    gpus: str | None = None
    """Devices of a task: `1`, `a100:2`."""
    partition: str | None = None
    job_name: str | None = None
    log: str = "."
    """Directory for the logs, one for each task: `JOB_TASK.log`."""
    sbatch: Sequence[str] = ()
    """More options of sbatch: `--account=vision`."""

    def __post_init__(self) -> None:
        check_tasks(self.tasks)
        for name in ("concurrent", "cpus"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"expected 1 or more, got {value}.", field=name)
        if not 1 <= self.signal_before <= 65535:
            raise UsageError(f"expected 1 to 65535 seconds, got {self.signal_before}.", field="signal_before")
        check_text("mem", self.mem, r"\d+[KMGTkmgt]?", "a size such as 16G")
        check_text("gpus", self.gpus, r"(?:[\w.-]+:)?\d+", "a number such as 1, or a100:1")
        check_text("job_name", self.job_name, r"[^\x00-\x1f\x7f]+", "a name")
        check_text("partition", self.partition, r"[^\x00-\x1f\x7f]+", "the name of a partition")
        check_text("log", self.log, r"[^\x00-\x1f\x7f]+", "a directory")
        if self.time is not None and (limit := _seconds(self.time)) and limit <= self.signal_before:
            raise UsageError(
                f"expected more than the {self.signal_before} seconds of `signal_before`, got {self.time!r}.",
                field="time",
            )
        for option in self.sbatch:
            _check_option(option)


def slurm_script(command: Sequence[str], options: SlurmOptions | None = None) -> str:
    """Return a script for sbatch in which an array of tasks runs a command: `["tarmac", "map", …]`."""
    parsed, options = parse_command(command, engine="slurm"), options or SlurmOptions()
    prepare = f"\n# Slurm does not create the directory of the logs: mkdir -p {shlex.quote(options.log)}"
    return _SCRIPT.format(
        directives="\n".join(f"#SBATCH {option}" for option in _directives(parsed.verb, options)),
        prepare="" if options.log == "." else prepare,
        command=_command_line(parsed),
        preempted=" | ".join(map(str, PREEMPTED)),
    )


def submit_slurm(script: str) -> str:
    """Submit a script with sbatch, and return the number of the job."""
    program = shutil.which("sbatch")
    if program is None:
        raise UsageError(
            "sbatch is not installed on this machine.",
            field="submit",
            hint="write the script to a file, and run sbatch FILE where Slurm is.",
        )
    done = subprocess.run([program, "--parsable"], input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise JobError(f"Slurm rejected the script: {' '.join(done.stderr.split())}")
    return done.stdout.strip().partition(";")[0]


def _directives(verb: str, options: SlurmOptions) -> Iterator[str]:
    """Yield the options of sbatch."""
    at_once = f"%{options.concurrent}" if options.concurrent else ""
    values = {
        "job-name": options.job_name or f"tarmac-{verb}",
        "array": f"0-{options.tasks - 1}{at_once}",
        "cpus-per-task": str(options.cpus),
        "mem": options.mem,
        "gpus": options.gpus,
        "partition": options.partition,
        "time": options.time,
        "signal": f"B:USR2@{options.signal_before}",
        "requeue": "",
        "open-mode": "append",
        "output": f"{options.log.replace('%', '%%')}/%A_%a.log",
    }
    for name, value in values.items():
        if value is not None:
            yield f"--{name}={_quoted(value)}" if value else f"--{name}"
    for option in options.sbatch:
        name, equals, value = option.partition("=")
        yield f"{name}={_quoted(value)}" if equals else option


def _quoted(value: str) -> str:
    """Quote the value of an option if it has anything but what options have, as in `0-9%4` or `B:USR2@120`."""
    return value if re.fullmatch(r"[\w%+=:,./@\[\]-]+", value, re.ASCII) else shlex.quote(value)


def _command_line(command: JobCommand) -> str:
    engine = [] if command.has("--engine") else ["--engine", "slurm"]
    words = [shlex.quote(word) for word in (*command.start, *engine)]
    if not command.has("-j", "--jobs"):
        words += ["-j", '"$SLURM_CPUS_PER_TASK"']
    return " ".join([*words, *map(shlex.quote, command.arguments)])


def _seconds(time: str) -> int:
    """Return a time limit in seconds; 0 means unlimited."""
    if time.lower() in ("infinite", "unlimited"):
        return 0
    match = _TIME.fullmatch(time)
    if match is None:
        raise UsageError(f"expected a time limit such as 90, 4:00:00 or 1-12, got {time!r}.", field="time")
    days, *numbers = (None if text is None else int(text) for text in match.groups())
    first, second, third = numbers[0] or 0, numbers[1] or 0, numbers[2]
    if days is not None:
        return ((days * 24 + first) * 60 + second) * 60 + (third or 0)
    if third is not None:
        return (first * 60 + second) * 60 + third
    return first * 60 + second


def _check_option(option: str) -> None:
    check_text("sbatch", option, r"--[a-z][a-z-]*(?:=[^\x00-\x1f\x7f]*)?", "an option such as --account=NAME")
    name = option[2:].partition("=")[0]
    if name in _OURS:
        instead = f"; use `{_OURS[name]}`" if _OURS[name] else ""
        raise UsageError(f"the script sets {name} itself{instead}.", field="sbatch")
