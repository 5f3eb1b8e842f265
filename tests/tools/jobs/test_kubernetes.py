"""Kubernetes Jobs: what the API server accepts, and what happens to pods that fail, played by processes."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cli.running import run
from harness.kubernetes import check_rules, expand, play
from harness.waiting import until
from tarmac.cli.command import DAMAGED, UNREACHABLE, USAGE
from tarmac.errors import UsageError
from tarmac.tools.jobs import KubernetesOptions, kubernetes_job, kubernetes_yaml
from tarmac.tools.jobs import kubernetes as module

COMMAND = ["tarmac", "map", "/data/in-*.tar", "-c", 'echo "$HOME" $(date)', "-o", "/data/out/"]
ALL = {
    "image": "registry.example/tarmac:1", "tasks": 40, "parallelism": 8, "name": "resize", "namespace": "vision",
    "cpu": "4", "memory": "8Gi", "gpu": 1, "volume": ["data:/data", "more-data:/more"], "env": ["A=1", "B=$(A) $$"],
    "secret": ["bucket-keys"], "retries": 5, "max_failed": 2, "grace": 60,
}  # fmt: skip
VERSIONS = [f"1.{minor}.0" for minor in range(33, 38)]


def job(command=COMMAND, **options):
    return kubernetes_job(command, KubernetesOptions(**{"image": "tarmac:1"} | options))


def line(manifest):
    return manifest["spec"]["template"]["spec"]["containers"][0]["command"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("options", [{}, ALL], ids=["defaults", "all"])
def test_manifests_follow_the_published_schema_and_the_rules(version, options):
    validator = pytest.importorskip("kubernetes_validate")
    manifest = yaml.safe_load(kubernetes_yaml(job(**options)))
    validator.validate(manifest, version, strict=True)
    check_rules(manifest)
    assert manifest == job(**options)


def test_the_schema_is_strict():
    validator = pytest.importorskip("kubernetes_validate")
    manifest = job()
    manifest["spec"]["backoffLimitPerIndexes"] = 1
    with pytest.raises(validator.ValidationError):
        validator.validate(manifest, VERSIONS[0], strict=True)


def test_statuses_are_those_of_the_command_line():
    assert (module.DAMAGED, module.USAGE) == (DAMAGED, USAGE)
    statuses = {
        status: rule["action"]
        for rule in job()["spec"]["podFailurePolicy"]["rules"]
        for status in rule.get("onExitCodes", {}).get("values", [])
    }
    assert statuses == {DAMAGED: "FailIndex", USAGE: "FailJob", 138: "Ignore", 140: "Ignore", 143: "Ignore"}
    assert UNREACHABLE not in statuses


def test_all_options():
    manifest = job(**ALL)
    spec = manifest["spec"]
    pod = spec["template"]["spec"]
    assert manifest["metadata"] == {"name": "resize", "namespace": "vision"}
    assert (spec["completions"], spec["parallelism"]) == (40, 8)
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (5, 2)
    assert pod["terminationGracePeriodSeconds"] == 60
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "4", "memory": "8Gi"},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "1"},
    }
    assert [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"]] == ["data", "more-data"]
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "bucket-keys"}}]
    assert pod["containers"][0]["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "$$(A) $$$$"}]


def test_the_command_gets_its_task_and_its_cores():
    expanded = [expand(word, {"JOB_COMPLETION_INDEX": "3"}) for word in line(job(tasks=7))]
    assert expanded == [*COMMAND[:2], "--task", "3/7", *COMMAND[2:]]
    for cpu, jobs in {"4": "4", "2500m": "2", "0.5": "1", "500m": "1"}.items():
        assert line(job(cpu=cpu))[4:6] == ["-j", jobs]
    assert "-j" not in line(job([*COMMAND, "--jobs", "2"], cpu="4"))


@given(st.lists(st.text(st.sampled_from("$()AB x")), max_size=4))
def test_arguments_are_passed_unchanged(arguments):
    words = line(job(["tarmac", "map", "--", *arguments]))
    values = {"A": "a", "B": "b", "JOB_COMPLETION_INDEX": "0"}
    assert [expand(word, values) for word in words[4:]] == ["--", *arguments]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tasks", 0), ("tasks", 1001), ("parallelism", 0), ("gpu", 0), ("retries", -1), ("max_failed", 11),
        ("grace", -1),
        ("image", ""), ("image", "a b"), ("name", "Resize"), ("name", "-x"), ("name", "x" * 62), ("name", "a.b"),
        ("namespace", "a_b"), ("cpu", "many"), ("memory", "8GB"), ("volume", ["data"]), ("volume", ["data:path"]),
        ("volume", ["Data:/path"]), ("volume", ["a:/x", "b:/x"]), ("env", ["A"]), ("env", ["1A=x"]),
        ("env", ["A=1", "A=2"]),
        ("env", ["JOB_COMPLETION_INDEX=1"]), ("secret", ["a b"]),
    ],
)  # fmt: skip
def test_invalid_options(field, value):
    with pytest.raises(UsageError) as error:
        job(**{field: value})
    assert error.value.field == field


def test_the_longest_name():
    check_rules(job(tasks=1000, name="x" * 59))


def test_the_command_line(capsys):
    status, printed, _ = run(capsys, "jobs", "k8s", "--image", "tarmac:1", "--tasks", 4, "--volume", "a:/a", "--volume",
                             "b:/b", "--", *COMMAND)  # fmt: skip
    assert status == 0
    assert yaml.safe_load(printed) == job(tasks=4, volume=["a:/a", "b:/b"])
    status, _, error = run(capsys, "jobs", "k8s", "--image", "x", "--tasks", "5000", "--", *COMMAND)
    assert (status, "--tasks" in error) == (2, True)


@pytest.fixture
def payload(tmp_path):
    """Return a function that makes a program named tarmac from a shell script, in which `n` is the run of its index."""

    def make(*lines: str) -> list[str]:
        program = tmp_path / "tarmac"
        count = 'i=${3%/*}; echo >> "runs-$i"; n=$(wc -l < "runs-$i")'
        program.write_text("\n".join(["#!/bin/bash", count, *lines, ""]))
        program.chmod(0o755)
        return [str(program), "map"]

    return make


def actions(played, index):
    return [(pod.status, pod.action) for pod in played.pods if pod.index == index]


@pytest.mark.processes
def test_unreachable_servers_are_retried(payload, tmp_path):
    command = payload('[ "$i" != 2 ] || [ "$n" -gt 2 ] || exit 3')
    played = play(job(command, tasks=4, parallelism=2), tmp_path)
    assert (played.condition, played.succeeded) == ("Complete", {0, 1, 2, 3})
    assert actions(played, 2) == [(3, "Count"), (3, "Count"), (0, "")]


@pytest.mark.processes
def test_retries_end(payload, tmp_path):
    command = payload('[ "$i" != 1 ] || exit 3')
    played = play(job(command, tasks=3, retries=2), tmp_path)
    assert (played.condition, played.failed) == ("Failed", {1})
    assert actions(played, 1) == [(3, "Count")] * 3
    assert played.succeeded == {0, 2}


@pytest.mark.processes
def test_a_usage_error_ends_the_job(payload, tmp_path):
    played = play(job(payload("exit 2"), tasks=50, parallelism=1), tmp_path)
    assert (played.condition, played.reason, len(played.pods)) == ("Failed", "PodFailurePolicy", 1)


@pytest.mark.processes
def test_damaged_data_fails_its_task_alone(payload, tmp_path):
    played = play(job(payload('[ "$i" != 1 ] || exit 1'), tasks=4), tmp_path)
    assert (played.reason, played.failed, played.succeeded) == ("FailedIndexes", {1}, {0, 2, 3})
    assert actions(played, 1) == [(1, "FailIndex")]


@pytest.mark.processes
def test_many_failed_tasks_end_the_job(payload, tmp_path):
    played = play(job(payload("exit 1"), tasks=20, parallelism=1, max_failed=3), tmp_path)
    assert (played.reason, len(played.failed)) == ("MaxFailedIndexesExceeded", 4)


@pytest.mark.processes
def test_preemptions_do_not_count(payload, tmp_path):
    command = payload('[ "$n" -gt 6 ] || exit $((138 + 2 * (n % 2)))', '[ "$n" -gt 9 ] || exit 143')
    played = play(job(command, tasks=2, retries=0), tmp_path)
    assert played.condition == "Complete"
    assert {pod.action for pod in played.pods if pod.status} == {"Ignore"}
    assert len(played.pods) == 20


@pytest.mark.processes
def test_evicted_pods_are_replaced_and_killed_ones_count(payload, tmp_path):
    command = payload('[ "$n" -gt 2 ] || { touch "up-$i-$n"; exec sleep 1000; }')

    runs = {index: [] for index in range(3)}

    def disturb(pod):
        if pod not in runs[pod.index]:
            runs[pod.index].append(pod)
        number = len(runs[pod.index])
        if (tmp_path / f"up-{pod.index}-{number}").exists():
            pod.kill(signal.SIGKILL) if number == 1 else pod.evict()
            assert until(lambda: pod.process.poll() is not None)

    played = play(job(command, tasks=3, retries=1), tmp_path, disturb)
    assert played.condition == "Complete"
    for index in range(3):
        assert actions(played, index) == [(137, "Count"), (143, "Ignore"), (0, "")]


def test_docs_show_the_same_policy():
    page = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text()
    rows = dict(re.findall(r"(?m)^\| ([\d, ]+) \|.*\| (.*?) \|$", page))
    assert set(rows) == {"0", "1", "2", "3", "138, 140, 143"}
