"""A job of four pods, played by processes, writes what one process writes, also when pods are evicted and killed."""

from __future__ import annotations

import random
import signal

import pytest

from harness import rounds
from harness.kubernetes import play
from tarmac.tools.jobs import KubernetesOptions, kubernetes_job
from tools.jobs.jobs import FUNCTION, digests, map_command, run_locally
from tools.shards import make

pytestmark = pytest.mark.processes


@pytest.fixture
def shards(tmp_path):
    (tmp_path / "upper.py").write_text(FUNCTION)
    (tmp_path / "done").mkdir()
    return make(tmp_path, *[5] * 12)


def manifest(*more, **options):
    command = [*map_command("out"), "-j", "1", *more]
    return kubernetes_job(command, KubernetesOptions(**{"image": "tarmac:1", "tasks": 4} | options))


def logs(tmp_path):
    return "\n".join(path.read_text() for path in sorted((tmp_path / "pods").iterdir()))


def test_four_pods_write_the_same_bytes_as_one_process(shards, tmp_path):
    run_locally(tmp_path, "expected")
    played = play(manifest(parallelism=2), tmp_path)
    assert (played.condition, len(played.pods)) == ("Complete", 4), logs(tmp_path)
    assert digests(tmp_path / "out") == digests(tmp_path / "expected")
    assert len(list((tmp_path / "done").iterdir())) == 60


@pytest.mark.parametrize("seed", range(rounds(3)))
def test_pods_that_are_evicted_and_killed_are_replaced(seed, shards, tmp_path):
    run_locally(tmp_path, "expected")
    chance, killed = random.Random(seed), []

    def disturb(pod):
        """Stop six pods, each after it or another has done something new."""
        done = len(list((tmp_path / "done").iterdir()))
        if len(killed) < 6 and done > 4 * len(killed) and pod not in killed and not chance.randrange(4):
            killed.append(pod)
            chance.choice([pod.evict, lambda: pod.kill(signal.SIGKILL), lambda: pod.kill(signal.SIGTERM)])()

    played = play(manifest(retries=6), tmp_path, disturb)
    assert played.condition == "Complete", logs(tmp_path)
    assert digests(tmp_path / "out") == digests(tmp_path / "expected")


def test_a_usage_error_fails_the_job(shards, tmp_path):
    played = play(manifest("--where", "nonsense("), tmp_path)
    assert (played.condition, played.reason) == ("Failed", "PodFailurePolicy"), logs(tmp_path)
    assert not list(tmp_path.glob("out/*.tar"))


def test_a_damaged_shard_fails_without_a_retry(shards, tmp_path):
    data = bytearray((tmp_path / "in-3.tar").read_bytes())
    data[0] ^= 1
    (tmp_path / "in-3.tar").write_bytes(data)
    played = play(manifest(max_failed=4), tmp_path)
    assert (played.condition, played.reason) == ("Failed", "FailedIndexes"), logs(tmp_path)
    assert {pod.action for pod in played.pods if pod.status} == {"FailIndex"}
    assert not (tmp_path / "out" / "in-3.tar").exists()
