"""Describe a Kubernetes Job whose pods share the units of a job.

The Job is indexed: each pod knows its number. Exit statuses decide what happens to a pod that failed, by the first
rule of `podFailurePolicy` that matches; any other failure is retried, `retries` times for each index.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tarmac.errors import UsageError
from tarmac.tools.jobs.command import PREEMPTED, JobCommand, check_tasks, check_text, parse_command

DAMAGED, USAGE = 1, 2
"""The exit statuses after which another run would fail, too, of one task or of all."""
_INDEX = "JOB_COMPLETION_INDEX"
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"
_QUANTITY = r"\d+(?:\.\d+)?(?:m|[kMGTPE]|[KMGTPE]i)?"
_CONTAINER = "tarmac"


@dataclass(frozen=True)
class KubernetesOptions:
    """How the pods of a Job run."""

    image: str
    """Image of a container that has tarmac and what the command needs."""
    tasks: int = 10
    """Number of pods that have to succeed."""
    parallelism: int | None = None
    """How many of them may run at the same time; by default all."""
    name: str | None = None
    namespace: str | None = None
    cpu: str | None = None
    """Cores of a pod, and so its number of processes: `4`, `500m`."""
    memory: str | None = None
    """Memory of a pod: `8Gi`."""
    gpu: int | None = None
    """Number of NVIDIA devices of a pod."""
    volume: Sequence[str] = ()
    """Volume claims and where pods see them: `CLAIM:/path`."""
    env: Sequence[str] = ()
    """Environment variables: `NAME=VALUE`."""
    secret: Sequence[str] = ()
    """Secrets whose entries become environment variables, such as the keys of a bucket."""
    retries: int = 3
    """How often a task is started again after a failure that another run may not have."""
    max_failed: int | None = None
    """The job is stopped when more tasks than this have failed; by default a tenth."""
    grace: int = 120
    """Seconds that a pod has to save its work after SIGTERM."""

    def __post_init__(self) -> None:
        check_tasks(self.tasks)
        for name, minimum in (
            ("parallelism", 1),
            ("gpu", 1),
            ("retries", 0),
            ("max_failed", 0),
            ("grace", 0),
        ):
            if (value := getattr(self, name)) is not None and value < minimum:
                raise UsageError(f"expected {minimum} or more, got {value}.", field=name)
        if self.max_failed is not None and self.max_failed > self.tasks:
            raise UsageError(
                f"expected at most {self.tasks}, the number of tasks, got {self.max_failed}.",
                field="max_failed",
            )
        check_text("image", self.image, r"[^\s\x00-\x1f\x7f]+", "the name of an image")
        # A pod is named after the Job and its index, and host names have at most 63 characters.
        longest = 63 - len(f"-{self.tasks - 1}")
        dns = f"a name of at most {longest} lower-case letters, digits and hyphens"
        check_text("name", self.name, rf"(?=.{{1,{longest}}}$){_LABEL}", dns)
        check_text("namespace", self.namespace, rf"(?=.{{1,63}}$){_LABEL}", "the name of a namespace")
        check_text("cpu", self.cpu, r"\d+(?:\.\d+)?|\d+m", "a number of cores such as 4 or 500m")
        check_text("memory", self.memory, _QUANTITY, "a size such as 8Gi")
        for each in self.volume:
            path = r"/[^:\x00-\x1f\x7f]*"
            check_text("volume", each, rf"(?=[^:]{{1,253}}:){_SUBDOMAIN}:{path}", "CLAIM:/path")
        for each in self.env:
            check_text("env", each, rf"(?s)(?!{_INDEX}=)[A-Za-z_][A-Za-z0-9_]*=.*", "NAME=VALUE")
        _check_unique("volume", [each.partition(":")[2] for each in self.volume])
        _check_unique("env", [each.partition("=")[0] for each in self.env])
        for each in self.secret:
            check_text("secret", each, rf"(?=.{{1,253}}$){_SUBDOMAIN}", "the name of a secret")


def kubernetes_job(command: Sequence[str], options: KubernetesOptions) -> dict[str, Any]:
    """Return the manifest of an indexed Job whose pods run a command: `["tarmac", "map", …]`."""
    parsed = parse_command(command)
    failed = max(1, options.tasks // 10) if options.max_failed is None else options.max_failed
    names = {"name": options.name or f"tarmac-{parsed.verb}"}
    if options.namespace:
        names["namespace"] = options.namespace
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": names,
        "spec": {
            "completionMode": "Indexed",
            "completions": options.tasks,
            "parallelism": min(options.parallelism or options.tasks, options.tasks),
            "backoffLimitPerIndex": options.retries,
            "maxFailedIndexes": failed,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _rules()},
            "template": {"spec": _pod(parsed, options)},
        },
    }


def kubernetes_yaml(manifest: dict[str, Any]) -> str:
    """Return a manifest as YAML, for kubectl."""
    import yaml

    text: str = yaml.safe_dump(manifest, sort_keys=False, width=110)
    return text


def _check_unique(field: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name!r} is given twice.", field=field)


def _rules() -> list[dict[str, Any]]:
    """Return what to do with pods that failed."""

    def statuses(action: str, *values: int) -> dict[str, Any]:
        check = {"containerName": _CONTAINER, "operator": "In", "values": sorted(values)}
        return {"action": action, "onExitCodes": check}

    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        statuses("FailJob", USAGE),
        statuses("FailIndex", DAMAGED),
        statuses("Ignore", *PREEMPTED),
    ]


def _pod(command: JobCommand, options: KubernetesOptions) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": _CONTAINER,
        "image": options.image,
        "command": _command_line(command, options),
    }
    if resources := _resources(options):
        container["resources"] = resources
    if options.env:
        pairs = (each.partition("=") for each in options.env)
        container["env"] = [{"name": name, "value": _literal(value)} for name, _, value in pairs]
    if options.secret:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in options.secret]
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": options.grace,
        "containers": [container],
    }
    if options.volume:
        claims = [each.partition(":") for each in options.volume]
        mounts = [
            {"name": f"volume-{number}", "mountPath": path} for number, (_, _, path) in enumerate(claims)
        ]
        container["volumeMounts"] = mounts
        pod["volumes"] = [
            {"name": mount["name"], "persistentVolumeClaim": {"claimName": claim}}
            for mount, (claim, _, _) in zip(mounts, claims, strict=True)
        ]
    return pod


def _resources(options: KubernetesOptions) -> dict[str, dict[str, str]]:
    """Return what a pod needs. Memory and devices are limits as well; cores that are idle may be used."""
    requests: dict[str, str | None] = {"cpu": options.cpu, "memory": options.memory}
    devices = None if options.gpu is None else str(options.gpu)
    limits = {"memory": options.memory, "nvidia.com/gpu": devices}
    both = {"requests": requests, "limits": limits}
    given = {kind: {name: size for name, size in sizes.items() if size} for kind, sizes in both.items()}
    return {kind: sizes for kind, sizes in given.items() if sizes}


def _command_line(command: JobCommand, options: KubernetesOptions) -> list[str]:
    line = [*map(_literal, command.start), "--task", f"$({_INDEX})/{options.tasks}"]
    if options.cpu and not command.has("-j", "--jobs"):
        line += ["-j", str(_cores(options.cpu))]
    return [*line, *map(_literal, command.arguments)]


def _cores(cpu: str) -> int:
    """Return the whole cores of a pod, at least one."""
    number = re.match(r"[\d.]+", cpu)
    assert number is not None
    return max(1, int(float(number[0]) / (1000 if cpu.endswith("m") else 1)))


def _literal(text: str) -> str:
    """Escape text in which Kubernetes would replace `$(NAME)`."""
    return text.replace("$", "$$")
