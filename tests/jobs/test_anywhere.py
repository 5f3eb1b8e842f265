"""One job, any engine: the same bytes on each, and after any change from one to another in the middle."""

from __future__ import annotations

import hashlib
import itertools
import random

import pytest

import tarmac
from harness import rounds
from harness.anywhere import ENGINES, anywhere
from harness.servers import required, seaweed_s3
from tarmac.storage import StorageOptions, list_objects, read_all
from tools.shards import make

pytestmark = [pytest.mark.heavy, pytest.mark.processes]

SHARDS, SAMPLES = 12, 5
IN_FLIGHT = 4
"""Units that may run when a job is killed: two workers, and what a cluster has started for a driver that is gone."""


def map_command(output, inputs=""):
    return [
        "map", f"{inputs}in-{{0..11}}.tar", "--py", "functions.py:work", "-o", f"{output}/",
        "--manifest", f"{output}/manifest.json",
    ]  # fmt: skip


def copy_command(output, inputs=""):
    return [
        "copy", f"{inputs}in-{{0..11}}.tar", "-o", f"{output}/c-{{i:03d}}.tar", "--shuffle", "--max-samples", "7",
        "--manifest", f"{output}/manifest.json",
    ]  # fmt: skip


def digests(folder):
    """Return the digests of shards and manifest, and the names of whatever else there is."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix != ".arrow")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anywhere")
    make(folder, *[SAMPLES] * SHARDS)
    with anywhere(folder) as running:
        yield running


@pytest.mark.parametrize("command", [map_command, copy_command], ids=["map", "copy"])
def test_the_same_bytes_on_every_engine(clusters, command):
    name = command.__name__.partition("_")[0]
    written = {}
    for engine in ENGINES:
        assert clusters.run(engine, command(f"{name}-{engine}")), (engine, clusters.logs)
        written[engine] = digests(clusters.folder / f"{name}-{engine}")
    assert len(written["local-1"]) > 6
    assert written == dict.fromkeys(ENGINES, written["local-1"])


def test_engines_change_in_the_middle_of_jobs(clusters):
    """Each job is killed at a random sample, again and again, and goes on elsewhere until one run completes it.

    Twenty times the next run is one of another engine or of another number of tasks, while samples are left.
    """
    choice = random.Random(5)
    clusters.run("local-1", map_command("undisturbed"))
    wanted, changes = digests(clusters.folder / "undisturbed"), 0
    clusters.calls()
    for number in range(100):
        output, before, kills, calls = f"changed-{number}", ("", 0), 0, list[str]()
        while True:
            engine, tasks = choice.choice(ENGINES), choice.randrange(1, 7)
            workers = (engine, tasks if engine in ("slurm", "tasks") else 0)
            begun = set(calls)
            changes += bool(kills) and workers != before and len(begun) < SHARDS * SAMPLES
            bomb = choice.randrange(1, SHARDS * SAMPLES // 5) if kills < 4 else 0
            complete = clusters.run(engine, map_command(output), bomb, tasks)
            (clusters.folder / "bomb").unlink(missing_ok=True)
            calls += clusters.calls()
            before = workers
            if complete:
                break
            assert bomb, (engine, clusters.logs)
            kills += 1
        assert digests(clusters.folder / output) == wanted
        assert len(set(calls)) == SHARDS * SAMPLES
        assert len(calls) <= SHARDS * SAMPLES + kills * IN_FLIGHT * SAMPLES
        if changes >= rounds(20):
            break
    assert changes >= rounds(20)
    assert not list((clusters.folder / "changed-0").glob(".*.part-*"))


def test_from_and_to_a_store(tmp_path):
    with required(seaweed_s3()) as server:
        for name in ("source", "target"):
            server.make_bucket(name)
        storage = StorageOptions(config=server.config())
        shards = make(tmp_path, *[SAMPLES] * SHARDS)
        tarmac.copy(shards, "s3://source/in/", storage=storage)
        written = {}
        with anywhere(tmp_path, server.env()) as clusters:
            for command, engine in itertools.product((map_command, copy_command), ENGINES):
                output = f"s3://target/{command.__name__}-{engine}"
                assert clusters.run(engine, command(output, "s3://source/in/")), (engine, clusters.logs)
                objects = [url for url, _ in list_objects(f"{output}/", storage) if ".tarmac/" not in url]
                written[command, engine] = {
                    url.removeprefix(output): hashlib.sha256(read_all(url, storage)).hexdigest()
                    for url in objects
                    if not url.endswith(".arrow")
                }
        for command, shards in ((map_command, SHARDS), (copy_command, -(-SHARDS * SAMPLES // 7))):
            assert len(written[command, "local-1"]) == shards + 1
            for engine in ENGINES:
                assert written[command, engine] == written[command, "local-1"], engine
