"""Whatever kills workers, drivers and schedulers: every output is written whole, once, and is in the ledger."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
from functools import partial

import pytest

import tarmac
from harness import rounds
from harness.anywhere import Twice, anywhere
from harness.clusters import dask_cluster, import_path
from harness.crash import Forked, survive
from harness.faultfs import SHORT, every_fault, faulty
from harness.waiting import until
from tarmac.errors import EngineError, TransferError, WriteError
from tarmac.jobs.engines import make_engine
from tarmac.jobs.ledger import read_job
from tools.shards import files, make

pytestmark = [pytest.mark.heavy, pytest.mark.processes]

SHARDS, SAMPLES, FAULTS = 12, 5, 10
COMMAND = ["map", "in-{0..11}.tar", "--py", "functions.py:mortal", "-o"]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    make(folder, *[SAMPLES] * SHARDS)
    (folder / "bombs").mkdir()
    with anywhere(folder) as running:
        assert running.run("local-1", [*COMMAND, "quiet/"])
        running.calls()
        yield running


def recorded(output):
    """Return the outputs of all units that are done, by the ledger."""
    (job,) = (output / ".tarmac").glob("*.job")
    _, ledger = read_job(str(job))
    return sorted(os.path.basename(url) for _, outcome in ledger.done.values() for url in outcome.outputs)


@pytest.mark.parametrize("engine", ["local-2", "dask", "ray", "spark", "slurm", "tasks"])
def test_ten_workers_are_killed(clusters, engine):
    """Each in another shard; engines with a driver run the unit again, and of the others a task that starts again."""
    choice, output = random.Random(engine), clusters.folder / f"killed-{engine}"
    for shard in choice.sample(range(SHARDS), FAULTS):
        (clusters.folder / "bombs" / f"s{shard}-{choice.randrange(SAMPLES):03d}").touch()
    planted = len(os.listdir(clusters.folder / "bombs"))
    for _ in range(2 * FAULTS):
        if clusters.run(engine, [*COMMAND, f"{output.name}/"]) and recorded(output) == sorted(files(output)):
            break
    assert files(output) == files(clusters.folder / "quiet"), clusters.logs
    assert recorded(output) == sorted(files(output))
    assert (planted, os.listdir(clusters.folder / "bombs")) == (FAULTS, [])
    calls = clusters.calls()
    assert len(set(calls)) == SHARDS * SAMPLES
    # A dead process of a pool or cluster takes the units of the others with it.
    assert len(calls) <= SHARDS * SAMPLES + FAULTS * 4 * SAMPLES


def test_two_hundred_faults_of_one_machine(tmp_path):
    urls, out = make(tmp_path, *[6] * 8), tmp_path / "out"
    tarmac.copy(urls, str(tmp_path / "quiet/x-{i}.tar"), max_samples=3, jobs=1)
    quiet = files(tmp_path / "quiet")

    def work(jobs=1):
        tarmac.copy(urls, str(out / "x-{i}.tar"), max_samples=3, jobs=jobs)

    def shards():
        return {name: data for name, data in files(out).items() if name[0] != "."} if out.exists() else {}

    def check():
        written = shards()
        assert written == {name: quiet[name] for name in written}

    children = [Forked(partial(work, jobs)) for jobs in (1, 2)]
    durations = []
    for child in (children[0], *children):  # the first run imports what the others have
        shutil.rmtree(out, ignore_errors=True)
        durations.append(child.usual())
    struck = []

    def strike(seed):
        """Kill a job in which half of the units are missing."""
        for name in random.Random(seed).sample(sorted(quiet), len(quiet) // 2):
            (out / name).unlink(missing_ok=True)
        before, two = shards().keys(), seed % 10 == 0
        result = children[two].crash(seed, durations[1 + two])
        struck.append(result.killed and shards().keys() > before)
        if seed % 10 == 9:
            work()
            assert recorded(out) == sorted(shards()) == sorted(quiet)
        return result

    survive(rounds(150), strike, check)
    assert sum(struck) >= rounds(10)  # units were done and others in progress
    fired = 0
    for kind in (errno.ENOSPC, errno.EDQUOT, SHORT):
        for fault in every_fault(kind, ("open", "write", "fsync", "link", "replace")):
            for name in ("x-1.tar", "x-5.tar", "x-9.tar"):
                (out / name).unlink(missing_ok=True)
            with faulty(fault, under=out), contextlib.suppress(WriteError, TransferError):
                work(jobs=1)
            fired += bool(fault.fired)
            check()
    assert fired >= 50
    work()
    assert files(out) == quiet
    assert recorded(out) == sorted(quiet)


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_hundred_units_are_delivered_twice(clusters, engine, tmp_path):
    urls = make(tmp_path, *[2] * 100)
    name = clusters.dask if engine == "dask" else "local"
    tarmac.copy(urls, f"{tmp_path}/quiet/", jobs=1)
    report = tarmac.copy(urls, f"{tmp_path}/out/", engine=Twice(make_engine(name, 2)))
    assert report.done == 100
    assert files(tmp_path / "out") == files(tmp_path / "quiet")
    assert recorded(tmp_path / "out") == sorted(files(tmp_path / "out"))


def test_a_scheduler_is_restarted(tmp_path, monkeypatch):
    """The job fails with a clear error, and running it again completes it."""
    make(tmp_path, *[SAMPLES] * SHARDS)
    with anywhere(tmp_path) as clusters:
        (tmp_path / "bombs").mkdir()
        os.mkfifo(tmp_path / "gate")
        (tmp_path / "held.py").write_text(
            "import functions\n"
            "def work(sample):\n"
            "    if sample['__key__'] == 's6/000':\n"
            "        open(functions.HERE / 'reached', 'w').close()\n"
            "        open(functions.HERE / 'gate').close()\n"
            "    return functions.work(sample)\n"
        )
        monkeypatch.chdir(tmp_path)
        tarmac.map("in-*.tar", "quiet/", "functions.py:work", jobs=1)
        with dask_cluster(2) as cluster:
            environment = {**os.environ, "PYTHONPATH": import_path(str(tmp_path))}
            command = [*COMMAND[:2], "--py", "held.py:work", "-o", "out/", "--engine", cluster.engine]
            job = subprocess.Popen(
                [sys.executable, "-m", "tarmac", *command], env=environment, stderr=subprocess.PIPE
            )
            assert until(lambda: (tmp_path / "reached").exists())
            cluster.scheduler.close()
            os.unlink("gate")
            os.symlink("/dev/null", "gate")
            _, said = job.communicate()
            assert job.returncode != 0
            assert b"tarmac: dask://127.0.0.1" in said
            assert b"Traceback" not in said, said.decode()
        assert clusters.run("dask", [*COMMAND[:2], "--py", "held.py:work", "-o", "out/"]), clusters.logs
        assert files(tmp_path / "out") == files(tmp_path / "quiet")


def test_no_scheduler(tmp_path):
    with pytest.raises(EngineError, match=r"dask://127\.0\.0\.1:1\b"):
        tarmac.copy(make(tmp_path, 2), f"{tmp_path}/out/", engine="dask://127.0.0.1:1")
    assert not (tmp_path / "out" / "in-0.tar").exists()
