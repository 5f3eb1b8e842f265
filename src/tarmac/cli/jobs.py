"""`tarmac jobs`: run a job as many tasks, on Slurm or Kubernetes, and look at jobs wherever they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tarmac.cli.command import Group, argument, build, flag
from tarmac.cli.flags import JSON, STORAGE
from tarmac.cli.output import say, say_json
from tarmac.cli.types import COUNT, NUMBER
from tarmac.display import display_url, plural

_COMMAND: Group = [
    argument(
        "command",
        "-- tarmac VERB ...",
        "The command that all tasks run.",
        nargs=-1,
        required=True,
        type=click.UNPROCESSED,
    )
]
_SLURM: Group = [
    flag("--tasks", type=COUNT, help="Number of tasks, at most 1000. [default: 100]"),
    flag("--concurrent", type=COUNT, help="Maximum number of tasks that run at the same time."),
    flag("--time", metavar="LIMIT", help="Time limit of a task, after which it is requeued: 90, 4:00:00, 1-12."),
    flag(
        "--signal-before",
        type=COUNT,
        help="Seconds before the time limit at which a task saves its work. [default: 120]",
    ),
    flag("--cpus", type=COUNT, help="Cores per task, and so its -j. [default: 1]"),
    flag("--mem", metavar="SIZE", help="Memory per task: 16G."),
    flag("--gpus", metavar="[TYPE:]N", help="Devices per task: 1, a100:1."),
    flag("--partition", metavar="NAME", help="Partition of the cluster."),
    flag("--job-name", metavar="NAME", help="Name of the job. [default: tarmac-VERB]"),
    flag("--log", metavar="DIR", help="Directory for the logs of tasks, JOB_TASK.log. [default: .]"),
    flag("--sbatch", multiple=True, metavar="OPTION", help="Another option of sbatch: --account=NAME. Repeatable."),
    flag("-o", "--output", "script_file", metavar="FILE", help="Write the script to this file."),
    flag("--submit", is_flag=True, help="Submit the script with sbatch, and print the number of the job."),
]  # fmt: skip
_KUBERNETES: Group = [
    flag("--image", metavar="IMAGE", required=True, help="Image of a container that has tarmac."),
    flag("--tasks", type=COUNT, help="Number of tasks, at most 1000. [default: 10]"),
    flag("--parallelism", type=COUNT, help="Maximum number of pods that run at the same time. [default: all]"),
    flag("--name", metavar="NAME", help="Name of the Job. [default: tarmac-VERB]"),
    flag("--namespace", metavar="NAME", help="Namespace of the Job."),
    flag("--cpu", metavar="CORES", help="Cores per pod, and so its -j: 4."),
    flag("--memory", metavar="SIZE", help="Memory per pod: 8Gi."),
    flag("--gpu", type=COUNT, help="NVIDIA devices per pod."),
    flag("--volume", multiple=True, metavar="CLAIM:/PATH", help="Mount a persistent volume claim. Repeatable."),
    flag("--env", multiple=True, metavar="NAME=VALUE", help="Set an environment variable. Repeatable."),
    flag("--secret", multiple=True, metavar="NAME",
         help="Set the entries of a secret as environment variables. Repeatable."),
    flag("--retries", type=NUMBER, help="Retries per task after errors that may pass. [default: 3]"),
    flag("--max-failed", type=NUMBER, help="Stop the Job after more failed tasks than this. [default: a tenth]"),
    flag("--grace", type=NUMBER, help="Seconds that a pod has to save its work when it must end. [default: 120]"),
]  # fmt: skip

_LOCATION: Group = [
    argument("location", "OUTPUT", "The output directory, pattern or URL of a job, or the directory of the job itself.")
]  # fmt: skip
_STORAGE: Group = [STORAGE[-1]]
_UNITS: Group = [argument("units", "[UNITS...]", "Only these units.", nargs=-1)]
_UNIT: Group = [flag("--unit", metavar="NAME", help="Everything that is recorded about this unit.")]

command = click.Group(
    "jobs", help="Run jobs on Slurm and Kubernetes, and look at jobs.", no_args_is_help=True
)


@build(
    _COMMAND,
    _SLURM,
    example="tarmac jobs slurm --tasks 50 --time 4:00:00 --submit -- tarmac map 'in-*.tar' --py f.py:f -o out/",
)
def slurm(
    command: tuple[str, ...], script_file: str | None = None, submit: bool = False, **options: Any
) -> None:
    """Print a script for sbatch in which an array of tasks runs a command.

    The tasks share the units of the job. A task that reaches its time limit or is preempted saves its work and is
    requeued.
    """
    from tarmac.tools.jobs import SlurmOptions, slurm_script, submit_slurm

    array = SlurmOptions(**options)
    script = slurm_script(command, array)
    if script_file not in (None, "-"):
        Path(str(script_file)).write_text(script, encoding="utf-8")
    elif not submit:
        click.echo(script, nl=False)
    if submit:
        Path(array.log).mkdir(parents=True, exist_ok=True)
        click.echo(submit_slurm(script))


@build(
    _COMMAND,
    _KUBERNETES,
    example="tarmac jobs k8s --image img --volume data:/data -- tarmac map '/data/in-*.tar' -c ./do.sh -o /data/out/",
)
def k8s(command: tuple[str, ...], **options: Any) -> None:
    """Print the manifest of a Kubernetes Job, for kubectl apply -f -.

    Its pods share the units of the job. Pods that are evicted are replaced; the exit status decides whether another
    failure is retried.
    """
    from tarmac.tools.jobs import KubernetesOptions, kubernetes_job, kubernetes_yaml

    click.echo(kubernetes_yaml(kubernetes_job(command, KubernetesOptions(**options))), nl=False)


@build(_LOCATION, JSON, _STORAGE, example="tarmac jobs status out/")
def status(location: str, as_json: bool = False, **options: Any) -> None:
    """Show how far the jobs are that write to an output.

    It reads what tasks have recorded beside the output, so it works on any machine that sees it. The exit status is 1
    if units have failed.
    """
    from tarmac.tools import jobs

    results = jobs.status(location, **options)
    for job in results:
        if as_json:
            say_json(job.to_dict())
            continue
        say(f"{display_url(job.url)}: {job}")
        for line in job.lines():
            say(f"  {line}")
    _exit(max(job.exit_status for job in results))


@build(_LOCATION, _UNIT, JSON, _STORAGE, example="tarmac jobs log out/ --unit out/x-000017.tar")
def log(location: str, as_json: bool = False, **options: Any) -> None:
    """Show the units that failed and the samples that failed, with their errors, the latest last."""
    from tarmac.tools import jobs

    entries = jobs.log(location, **options)
    for entry in entries:
        if as_json:
            say_json(entry.to_dict())
            continue
        say(str(entry))
        for line in entry.lines():
            say(f"  {line}")
    if not entries and not as_json:
        say("no unit and no sample has failed", err=True)


@build(_LOCATION, _UNITS, _STORAGE, example="tarmac jobs retry out/")
def retry(location: str, **options: Any) -> None:
    """Have tasks try failed units again."""
    from tarmac.tools import jobs

    units = jobs.retry(location, **options)
    for unit in units:
        say(unit)
    again = "; now run the tasks of the job again, with the same command" if units else ""
    say(f"{plural(len(units), 'failed unit')} to try again{again}", err=True)


@build(_LOCATION, JSON, _STORAGE, example="tarmac jobs finish out/")
def finish(location: str, as_json: bool = False, **options: Any) -> None:
    """Finish jobs whose units are all done: write the manifest.

    The last task of a job does it by itself. This command is for schedulers that run a command after all tasks. The
    exit status is 3 if units are missing.
    """
    from tarmac.tools import jobs

    results = jobs.finish(location, **options)
    for job in results:
        if as_json:
            say_json(job.to_dict())
        else:
            say(str(job), err=True)
    _exit(max(job.exit_status for job in results))


def _exit(status: int) -> None:
    if status:
        raise click.exceptions.Exit(status)


for _name, _command in (("status", status), ("log", log), ("retry", retry), ("finish", finish)):
    command.add_command(_command, _name)
for _name, _command in (("slurm", slurm), ("k8s", k8s)):
    _command.allow_interspersed_args = False  # the flags after the command belong to it
    command.add_command(_command, _name)
