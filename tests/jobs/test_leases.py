"""Leases: one taker at a time, and those of dead processes are free."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest

from harness.servers import required, seaweed_s3
from harness.waiting import until
from tarmac.errors import BadSetting
from tarmac.jobs.leases import Leases, read_lease, read_leases
from tarmac.storage import StorageOptions


@pytest.fixture(scope="module")
def store():
    with required(seaweed_s3()) as server:
        server.make_bucket("leases")
        yield StorageOptions(config=server.config())


@pytest.fixture(params=["disk", "store"])
def location(request, tmp_path, store):
    if request.param == "disk":
        return str(tmp_path / "job" / "generation"), StorageOptions()
    return f"s3://leases/{tmp_path.name}/generation", store


@pytest.fixture
def opened(location):
    """Opens leases of the same job, and gives them back at the end."""
    every = []

    def open_leases(owner=""):
        every.append(Leases(location[0], owner, location[1]))
        return every[-1]

    yield open_leases
    for leases in every:
        leases.close()


def lease_file(location):
    return os.path.join(location, "leases", os.listdir(os.path.join(location, "leases"))[0])


def holder(location, owner=""):
    """Start a process that takes the lease of `a`, and waits."""
    code = (
        "import sys; from tarmac.jobs.leases import Leases; leases = Leases(sys.argv[1], sys.argv[2])\n"
        "print(leases.take('a'), flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, location, owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def test_a_lease_is_taken_once_until_it_is_given_back(opened, location):
    one, two = opened(), opened()
    assert one.take("a")
    assert one.take("a")
    assert not two.take("a")
    assert two.take("b")
    assert sorted(lease.unit for lease in read_leases(*location)) == ["a", "b"]
    assert all(lease.live and lease.pid == os.getpid() for lease in read_leases(*location))
    one.release("a")
    one.release("a")
    assert [lease.unit for lease in read_leases(*location)] == ["b"]
    assert two.take("a")
    two.close()
    assert read_leases(*location) == []


def test_a_task_that_starts_again_takes_its_own_leases(opened):
    assert opened("0/2").take("a")
    assert not opened("1/2").take("a")
    assert opened("0/2").take("a")
    assert not opened().take("a")  # without a name, none is the same


def test_a_driver_takes_what_it_runs(opened):
    """It is the only one, and does not ask."""
    assert opened().take("a")
    assert opened().take("a", share=True)


def test_there_are_no_leases_before_a_job_starts(location):
    assert read_leases(*location) == []
    assert read_lease(f"{location[0]}/leases/a.json", location[1]) is None


@pytest.mark.processes
def test_the_lease_of_a_dead_process_is_free_at_once(tmp_path):
    location = str(tmp_path)
    leases = Leases(location)
    with holder(location) as process:
        assert process.stdout.readline() == b"True\n"
        (lease,) = read_leases(location)
        assert (lease.pid, lease.live) == (process.pid, True)
        assert not leases.take("a")
        process.kill()
        process.wait()
    assert not lease.live
    assert leases.take("a")
    leases.close()


def test_a_lease_that_is_not_renewed_expires(tmp_path):
    one, two = Leases(str(tmp_path)), Leases(str(tmp_path))
    one.take("a")
    os.utime(lease_file(tmp_path), (1, 1))  # as on a machine that has stopped
    assert not read_leases(str(tmp_path))[0].live
    assert two.take("a")
    one.close()
    two.close()


def test_leases_are_renewed(location, opened, monkeypatch):
    monkeypatch.setenv("TARMAC_LEASE_SECONDS", "0.4")
    opened("me").take("a")
    (first,) = read_leases(*location)
    assert until(lambda: read_leases(*location)[0].renewed > first.renewed)
    (renewed,) = read_leases(*location)
    assert (renewed.unit, renewed.owner, renewed.since) == ("a", "me", first.since)


@pytest.mark.parametrize("value", ["0", "-1", "soon"])
def test_invalid_times_are_rejected(tmp_path, monkeypatch, value):
    Leases(str(tmp_path)).take("a")
    monkeypatch.setenv("TARMAC_LEASE_SECONDS", value)
    with pytest.raises(BadSetting, match="TARMAC_LEASE_SECONDS"):
        _ = read_leases(str(tmp_path))[0].live


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"unit": "a"}'])
def test_an_incomplete_lease_is_held_until_it_expires(tmp_path, content):
    """It is being written."""
    one = Leases(str(tmp_path))
    one.take("a")
    path = lease_file(tmp_path)
    with open(path, "wb") as file:
        file.write(content)
    two = Leases(str(tmp_path))
    assert not two.take("a")
    os.utime(path, (1, 1))
    assert two.take("a")
    one.close()
    two.close()


def _race(location, barrier, results):
    leases = Leases(location)
    for number in range(50):
        barrier.wait()
        results.put((number, leases.take(f"unit {number}")))
    barrier.wait()  # no lease is given back before


@pytest.mark.processes
def test_of_several_takers_one_gets_it(tmp_path):
    context = multiprocessing.get_context("fork")
    takers = 3
    barrier, results = context.Barrier(takers), context.Queue()
    processes = [context.Process(target=_race, args=(str(tmp_path), barrier, results)) for _ in range(takers)]
    for process in processes:
        process.start()
    taken = [results.get(timeout=60) for _ in range(50 * takers)]
    for process in processes:
        process.join()
    assert sorted(number for number, success in taken if success) == list(range(50))


FORKS = """
import sys, threading
from tarmac.jobs.leases import Leases
from tarmac.runtime.processes import result_of, worker_pool
leases = Leases(sys.argv[1])
leases.take("a")
with worker_pool(1, len) as submit:
    future = submit("abc")
    print(threading.active_count() > 1, result_of(future), future.forked)
leases.close()
"""


@pytest.mark.processes
def test_the_thread_that_renews_does_not_prevent_forks(tmp_path):
    """Forked workers start within milliseconds; others import everything again."""
    done = subprocess.run([sys.executable, "-c", FORKS, tmp_path], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["True", "3", "True"], "")
