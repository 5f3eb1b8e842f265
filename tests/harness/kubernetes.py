"""Play a Kubernetes Job: its pods are processes of this machine.

The player does what the Job controller and the kubelet do with an indexed Job: it starts pods with their index,
replaces `$(NAME)` in commands, and treats failures as `podFailurePolicy` and `backoffLimitPerIndex` say. It refuses
manifests that the API server would refuse, also where the published schema does not say so.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.waiting import TIMEOUT, until

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


@dataclass
class Pod:
    """A pod that runs or has ended; `action` is what the policy said about its failure."""

    index: int
    process: subprocess.Popen[bytes]
    disrupted: bool = False
    """Whether it was evicted, as on a node that is drained or preempted."""
    action: str = ""

    @property
    def status(self) -> int:
        """The exit status as Kubernetes reports it: 128 and the number of a signal that killed it."""
        code = self.process.returncode
        return 128 - code if code < 0 else code

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the command, as `kubectl delete pod` or the kernel do."""
        self.process.send_signal(number)

    def evict(self) -> None:
        """Send SIGTERM, and mark the pod with the condition DisruptionTarget."""
        self.disrupted = True
        self.kill(signal.SIGTERM)


@dataclass
class Played:
    """What became of a Job."""

    condition: str = ""
    """Complete, or Failed."""
    reason: str = ""
    succeeded: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    pods: list[Pod] = field(default_factory=list)


def play(
    manifest: Mapping[str, Any],
    folder: Path,
    disturb: Callable[[Pod], object] = lambda pod: None,
    environ: Mapping[str, str] | None = None,
) -> Played:
    """Run the pods of a Job in a directory until it is complete or has failed.

    `disturb` is called again and again with each running pod, and may kill or evict it.
    """
    check_rules(manifest)
    spec, result, running = manifest["spec"], Played(), list[Pod]()
    waiting, failures = deque(range(spec["completions"])), Counter[int]()
    outputs = folder / "pods"
    outputs.mkdir(exist_ok=True)
    try:
        while (waiting or running) and not result.condition:
            while waiting and len(running) < spec["parallelism"]:
                running.append(_start(manifest, waiting.popleft(), folder, len(result.pods), environ))
                result.pods.append(running[-1])
            for pod in running:
                if pod.process.poll() is None:
                    disturb(pod)
            for pod in [each for each in running if each.process.poll() is not None]:
                running.remove(pod)
                if pod.status == 0:
                    result.succeeded.add(pod.index)
                else:
                    _failed(pod, spec, failures, waiting, result)
            time.sleep(0.01)
    finally:
        _end(running, spec["template"]["spec"]["terminationGracePeriodSeconds"])
    if not result.condition:
        result.condition, result.reason = ("Failed", "FailedIndexes") if result.failed else ("Complete", "")
    return result


def _failed(
    pod: Pod, spec: Mapping[str, Any], failures: Counter[int], waiting: deque[int], result: Played
) -> None:
    pod.action = next(
        (rule["action"] for rule in spec["podFailurePolicy"]["rules"] if _matches(rule, pod)), "Count"
    )
    if pod.action == "FailJob":
        result.condition, result.reason = "Failed", "PodFailurePolicy"
        return
    failures[pod.index] += pod.action == "Count"
    if pod.action == "FailIndex" or failures[pod.index] > spec["backoffLimitPerIndex"]:
        result.failed.add(pod.index)
        if len(result.failed) > spec.get("maxFailedIndexes", spec["completions"]):
            result.condition, result.reason = "Failed", "MaxFailedIndexesExceeded"
    else:
        waiting.append(pod.index)


def _matches(rule: Mapping[str, Any], pod: Pod) -> bool:
    if "onPodConditions" in rule:
        return pod.disrupted and any(each["type"] == "DisruptionTarget" for each in rule["onPodConditions"])
    codes = rule["onExitCodes"]
    return (pod.status in codes["values"]) == (codes["operator"] == "In")


def _start(
    manifest: Mapping[str, Any], index: int, folder: Path, number: int, environ: Mapping[str, str] | None
) -> Pod:
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    known = {"JOB_COMPLETION_INDEX": str(index)}
    for each in container.get("env", []):
        known[each["name"]] = expand(each["value"], known)
    with (folder / "pods" / f"{number}-{index}.log").open("wb") as output:
        process = subprocess.Popen(
            [expand(word, known) for word in container["command"]], cwd=folder,
            env={**(os.environ if environ is None else environ), **known},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return Pod(index, process)


def _end(pods: list[Pod], grace: float) -> None:
    """End pods as the kubelet does: SIGTERM, and SIGKILL after the grace period."""
    for pod in pods:
        with contextlib.suppress(ProcessLookupError):
            pod.process.terminate()
    until(lambda: all(pod.process.poll() is not None for pod in pods), min(grace, TIMEOUT))
    for pod in pods:
        pod.process.kill()
        pod.process.wait()


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does: `$$` is a dollar sign, and unknown names stay."""
    return _REFERENCE.sub(lambda match: "$" if match[1] is None else values.get(match[1], match[0]), text)


def check_rules(manifest: Mapping[str, Any]) -> None:
    """Fail for a manifest that breaks a rule of the API server for indexed Jobs that the schema does not express."""
    broken = list(_broken_rules(manifest["metadata"], manifest["spec"]))
    assert not broken, broken


def _broken_rules(names: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    pod = spec["template"]["spec"]
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", names["name"]):
        yield "a name is a DNS label"
    if len(f"{names['name']}-{spec['completions'] - 1}") > 63:
        yield "the host name of the last pod has at most 63 characters"
    if spec["completionMode"] != "Indexed":
        yield "backoffLimitPerIndex needs an indexed Job"
    if pod["restartPolicy"] != "Never":
        yield "podFailurePolicy needs restartPolicy Never"
    if spec["podReplacementPolicy"] != "Failed":
        yield "podFailurePolicy needs podReplacementPolicy Failed"
    if not 0 <= spec["maxFailedIndexes"] <= spec["completions"]:
        yield "maxFailedIndexes is at most completions"
    rules = spec["podFailurePolicy"]["rules"]
    if len(rules) > 20:
        yield "there are at most 20 rules"
    containers = {each["name"] for each in pod["containers"]}
    for rule in rules:
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            yield "a rule has statuses or conditions"
        if rule["action"] == "FailIndex" and "backoffLimitPerIndex" not in spec:
            yield "FailIndex needs backoffLimitPerIndex"
        codes = rule.get("onExitCodes", {"values": [1], "operator": "In", "containerName": "tarmac"})
        if codes["containerName"] not in containers:
            yield "a rule names a container of the pod"
        if codes["values"] != sorted(set(codes["values"])) or not 0 < len(codes["values"]) <= 255:
            yield "statuses are sorted and unique"
        if codes["operator"] == "In" and 0 in codes["values"]:
            yield "0 is not a failure"
    for volume in (each["name"] for each in pod.get("volumes", [])):
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", volume):
            yield "the name of a volume is a DNS label"
    paths = [each["mountPath"] for each in pod["containers"][0].get("volumeMounts", [])]
    if len(set(paths)) != len(paths):
        yield "a path has one volume"
    environ = [each["name"] for each in pod["containers"][0].get("env", [])]
    if len(set(environ)) != len(environ):
        yield "a variable has one value"
