"""Checkpoints: a killed shard continues behind its last chunk, and its bytes are those of an undisturbed run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness import rounds
from harness.faultfs import Fault, faulty
from harness.servers import required, seaweed_s3
from tarmac.errors import CheckpointFailed, TransformFailed, UsageError
from tarmac.jobs.chunks import Chunks
from tarmac.runtime.lookahead import PER_WORKER
from tarmac.runtime.preemption import Preempted
from tarmac.storage import StorageOptions, list_objects, read_all
from tarmac.tools.plan import IndexedSamples
from tools.shards import files, make

COUNTS = ("units", "read", "written", "failed", "dropped", "left_out", "added", "bytes", "errors")


class Work:
    """A function with a behaviour for each sample, which raises at some of its calls and counts all of them."""

    version = 1  # whatever a test changes meanwhile

    def __init__(self, behaviours=("same",), stops=(), how=KeyboardInterrupt):
        self.behaviours, self.stops, self.how = behaviours, list(stops), how
        self.calls: list[str] = []

    def __call__(self, sample):
        key = sample["__key__"]
        self.calls.append(key)
        if self.stops and len(self.calls) >= self.stops[0]:
            self.stops.pop(0)
            raise self.how
        what = self.behaviours[int(key[-3:]) % len(self.behaviours)]
        if what == "drop":
            return None
        if what == "fail":
            raise ValueError(key)
        if what == "two":
            return [{"JSON.b": sample["json"]}, sample | {"new": key}]
        return sample | {"X.txt": key.upper()} if what == "upper" else sample


def mapped(urls, output, work, **options):
    return tarmac.map(urls, str(output), work, jobs=1, **{"on_error": "skip", **options})


def until_done(urls, output, work, **options):
    """Run a job until it is done; return its report."""
    while True:
        try:
            return mapped(urls, output, work, **options)
        except KeyboardInterrupt:
            continue


def counts(report):
    return {name: getattr(report, name) for name in COUNTS}


def states(folder):
    """Return the states of all chunks below a folder, in order."""
    return [json.loads(path.read_text()) for path in sorted(Path(folder).glob(".tarmac/*/chunks/*/*.json"))]


SELECTIONS = st.sampled_from(
    [
        {},
        {"fields": ["json", "txt"], "missing": "skip", "slice": slice(2, None, 2)},
        {"fields": ["json", "rare"], "missing": "skip"},
        {"where": "json.width >= 70"},
        {"slice_shard": slice(1, 17)},
    ]
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Two shards of which some samples have a field more, plain and compressed."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("in-0.tar", "in-1.tar", "in-0.tar.gz"):
        with tarmac.TarWriter(str(folder / name)) as writer:
            for number in range(30):
                more = {"rare": b"r"} if number % 4 else {}
                sample = {"txt": f"t{number}" * number, "json": {"width": 10 * number}}
                writer.write({"__key__": f"{name[3]}/{number:03d}"} | sample | more)
    return folder


@settings(max_examples=rounds(60), deadline=None)
@given(
    behaviours=st.lists(st.sampled_from(["same", "drop", "fail", "two", "upper"]), min_size=1, max_size=6),
    stops=st.lists(st.integers(1, 90), max_size=4).map(sorted),
    every=st.integers(1, 20),
    compressed=st.booleans(),
    select=SELECTIONS,
    options=st.sampled_from(
        [{}, {"index": True}, {"rekey": "{i:05d}-{key}"}, {"rekey": "n{key}", "manifest": "m"}]
    ),
)
def test_the_bytes_are_those_of_an_undisturbed_run(
    inputs, behaviours, stops, every, compressed, select, options
):
    urls = [str(inputs / "in-0.tar.gz")] if compressed else [str(inputs / f"in-{n}.tar") for n in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        quiet, killed = Path(folder, "quiet"), Path(folder, "killed")

        def more(directory):
            if "manifest" not in options:
                return options | select
            return options | select | {"manifest": f"{directory}/m.json"}

        if compressed and "slice" in select:
            select = {}
        plain = Work(behaviours)
        expected = mapped(urls, f"{quiet}/", plain, **more(quiet))
        work = Work(behaviours, stops)
        report = until_done(urls, f"{killed}/", work, checkpoint_samples=every, **more(killed))
        stopped = len(stops) - len(work.stops)
        assert counts(report) == counts(expected)
        old, new = files(quiet) if quiet.exists() else {}, files(killed) if killed.exists() else {}
        assert old.keys() == new.keys()
        assert all(new[name] == old[name] for name in old if name.endswith(".tar"))
        assert sorted(set(work.calls)) == sorted(set(plain.calls))
        assert len(work.calls) - len(plain.calls) <= stopped * every
        assert not states(killed)


def index_of(folder, name):
    dataset = tarmac.Dataset(f"{folder}/{name}")
    return [(dataset[number]["__key__"], sorted(dataset[number])) for number in range(len(dataset))]


def test_the_index_describes_the_shard(tmp_path):
    urls = make(tmp_path, 20)
    work = Work(("two", "same", "drop"), (7, 18))
    until_done(urls, f"{tmp_path}/out/", work, index=True, checkpoint_samples=3)
    mapped(urls, f"{tmp_path}/quiet/", Work(work.behaviours), index=True)
    assert index_of(tmp_path / "out", "in-0.tar") == index_of(tmp_path / "quiet", "in-0.tar")
    assert tarmac.check(f"{tmp_path}/out/*.tar").ok


def test_nothing_before_the_last_chunk_is_read_again(tmp_path, monkeypatch):
    urls = make(tmp_path, 40, 40)
    fetched: list[int] = []
    fetch = IndexedSamples.fetch

    def noted(self, indices):
        fetched.extend(indices.tolist())
        return fetch(self, indices)

    monkeypatch.setattr(IndexedSamples, "fetch", noted)
    work = Work(stops=(65,))
    with pytest.raises(KeyboardInterrupt):
        mapped(urls, f"{tmp_path}/out/", work, checkpoint_samples=7)
    assert [state["state"]["read"] for state in states(tmp_path / "out")] == [7, 14, 21]
    fetched.clear()
    mapped(urls, f"{tmp_path}/out/", work, checkpoint_samples=7)
    assert sorted(fetched) == list(range(40 + 21, 80))
    assert len(work.calls) == 65 + 40 - 21


def test_undisturbed_shards_write_no_chunks(tmp_path, monkeypatch):
    def save(*_):
        raise AssertionError

    monkeypatch.setattr(Chunks, "save", save)
    urls = make(tmp_path, 10)
    mapped(urls, f"{tmp_path}/out/", Work())
    assert os.listdir(tmp_path / "out" / ".tarmac") == ["map.job"]
    with pytest.raises(Preempted):  # and never with None
        mapped(urls, f"{tmp_path}/no/", Work(stops=(5,), how=Preempted), checkpoint_interval=None)


def test_time_passes(tmp_path, monkeypatch):
    from harness.waiting import FakeClock

    monkeypatch.setattr("tarmac.tools.chunked.time", FakeClock(tick=1.0))
    urls = make(tmp_path, 20)
    with pytest.raises(KeyboardInterrupt):
        mapped(urls, f"{tmp_path}/out/", Work(stops=(20,)), checkpoint_interval=6)
    assert [state["state"]["read"] for state in states(tmp_path / "out")] == [6, 12, 18]


def test_preempted_work_is_saved_at_once(tmp_path):
    urls = make(tmp_path, 20)
    work = Work(("two", "drop"), (8,), how=Preempted(signal.SIGUSR1))
    with pytest.raises(Preempted):
        mapped(urls, f"{tmp_path}/out/", work)
    (state,) = states(tmp_path / "out")
    assert (state["state"]["read"], state["state"]["written"]) == (7, 8)
    mapped(urls, f"{tmp_path}/out/", work)
    assert len(work.calls) == 21


def test_other_work_does_not_continue_chunks(tmp_path):
    urls = make(tmp_path, 10)
    for options in ({"overwrite": True}, {"rekey": "x{key}"}):
        work = Work(stops=(8,))
        with pytest.raises(KeyboardInterrupt):
            mapped(urls, f"{tmp_path}/out/", work, checkpoint_samples=2)
        assert states(tmp_path / "out")
        mapped(urls, f"{tmp_path}/out/", work, checkpoint_samples=2, **options)
        assert len(work.calls) == 18
        assert not states(tmp_path / "out")
        shutil.rmtree(tmp_path / "out")


def test_failed_samples_are_retried_in_chunks_too(tmp_path):
    urls = make(tmp_path, 20)
    work = Work(("same", "same", "same", "same", "same", "fail"), (17,))
    with pytest.raises(KeyboardInterrupt):
        mapped(urls, f"{tmp_path}/out/", work, checkpoint_samples=4)
    work.behaviours = ("same",)
    report = mapped(urls, f"{tmp_path}/out/", work, checkpoint_samples=4, retry="failed")
    assert (report.failed, report.written) == (0, 20)
    assert len(work.calls) == 17 + 16  # the first chunk had no failure


def test_an_error_that_aborts_keeps_the_chunks_before_it(tmp_path):
    urls = make(tmp_path, 10)
    work = Work(("same", "same", "same", "same", "same", "same", "same", "fail"))
    with pytest.raises(TransformFailed):
        mapped(urls, f"{tmp_path}/out/", work, on_error="abort", checkpoint_samples=3)
    report = mapped(urls, f"{tmp_path}/out/", work, on_error="skip", checkpoint_samples=3)
    assert (report.failed, report.written, len(work.calls)) == (1, 9, 8 + 4)


@pytest.mark.parametrize("when", ["before", "during"])
def test_lost_chunks_cost_work_only(tmp_path, monkeypatch, when):
    """Another worker completes the unit and removes its chunks while this one begins with them."""
    urls = make(tmp_path, 10)
    work = Work(stops=(8,))
    with pytest.raises(KeyboardInterrupt):
        mapped(urls, f"{tmp_path}/out/", work, checkpoint_samples=2)
    load = Chunks.load

    def lost(self):
        chunks = load(self)
        assert len(chunks) == 3
        for chunk in chunks[0 if when == "before" else 2 :]:
            os.unlink(chunk.url)
        return chunks

    monkeypatch.setattr(Chunks, "load", lost)
    report = mapped(urls, f"{tmp_path}/out/", work, checkpoint_samples=2)
    assert (report.read, report.written, len(work.calls)) == (10, 10, 18)
    monkeypatch.undo()
    mapped(urls, f"{tmp_path}/quiet/", Work())
    assert files(tmp_path / "out") == files(tmp_path / "quiet")


def test_a_full_disk_costs_the_checkpoints_only(tmp_path):
    urls = make(tmp_path, 12)
    mapped(urls, f"{tmp_path}/quiet/", Work())
    for number in range(1, 8):
        out = tmp_path / f"out{number}"
        fault = Fault(number, errno.ENOSPC, ("open",))
        with (
            faulty(fault, under=out / ".tarmac" / "map.job" / "chunks"),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            report = mapped(urls, f"{out}/", Work(), checkpoint_samples=3)
        assert fault.fired
        assert [warning.category for warning in caught] == [CheckpointFailed]
        assert report.written == 12
        assert files(out) == files(tmp_path / "quiet")


@pytest.mark.parametrize("options", [{"checkpoint_interval": 0}, {"checkpoint_samples": -1}])
def test_invalid_arguments(tmp_path, options):
    with pytest.raises(UsageError) as caught:
        mapped(make(tmp_path, 1), f"{tmp_path}/out/", Work(), **options)
    assert caught.value.field in options
    with pytest.raises(TypeError):
        tarmac.copy(make(tmp_path, 1), f"{tmp_path}/out/", **options)


@pytest.mark.parametrize("options", [{"compress": "gz"}, {"ordered": False}])
def test_what_has_no_chunks_starts_over(tmp_path, options):
    urls = make(tmp_path, 10)
    work = Work(stops=(8,))
    with pytest.raises(KeyboardInterrupt):
        mapped(urls, f"{tmp_path}/out/", work, checkpoint_samples=2, **options)
    assert not states(tmp_path / "out")
    mapped(urls, f"{tmp_path}/out/", work, checkpoint_samples=2, **options)
    assert len(work.calls) == 18


def test_commands_continue_too(tmp_path):
    urls = make(tmp_path, 12)
    text = f"echo $TARMAC_KEY >> {tmp_path}/ran; test $TARMAC_KEY != s0/008 || test -e {tmp_path}/mended"
    with pytest.raises(TransformFailed):
        tarmac.map(urls, f"{tmp_path}/out/", command=text, jobs=2, checkpoint_samples=3)
    (tmp_path / "mended").touch()
    tarmac.map(urls, f"{tmp_path}/out/", command=text, jobs=2, checkpoint_samples=3)
    tarmac.map(urls, f"{tmp_path}/quiet/", command="true")
    assert files(tmp_path / "out") == files(tmp_path / "quiet")
    ran = (tmp_path / "ran").read_text().split()
    assert all(ran.count(f"s0/{number:03d}") == 1 for number in range(6))


BOMBS = """
import os, signal

def f(sample):
    key = sample["__key__"].replace("/", "-")
    with open(os.path.join(HERE, "calls"), "ab", 0) as file:
        file.write(key.encode() + b"\\n")
    try:
        os.unlink(os.path.join(HERE, key))
    except FileNotFoundError:
        return sample | {"n": key}
    os.kill(os.getpid(), signal.SIGKILL)
"""


ATTEMPTS = """
import os, tarmac, tarmac.tools.map.verb
from tarmac.errors import WorkerDied

tarmac.tools.map.verb.CHUNK = {group}
died = 0
while (pid := os.fork()) and os.waitpid(pid, 0)[1]:
    died += 1
if not pid:
    try:
        report = tarmac.map({urls}, {output!r}, **{options})
    except WorkerDied:
        os._exit(1)
    os._exit(0)
print(died, tarmac.map({urls}, {output!r}, **{options}).written)
"""
"""Run a job in new processes until it is done: a job of one unit runs in its own process, which is killed."""


@pytest.mark.processes
@pytest.mark.parametrize("shards", [1, 4])
def test_fifty_kills_inside_long_units(tmp_path, shards):
    """One shard is transformed by several processes, which look ahead; several shards by one process each."""
    size, every, kills, group = 120 // shards, 5, rounds(50), 2
    urls = make(tmp_path, *[size] * shards)
    bombs = tmp_path / "bombs"
    bombs.mkdir()
    (tmp_path / "f.py").write_text(f"HERE = {str(bombs)!r}\n{BOMBS}")
    keys = [f"s{shard}-{number:03d}" for shard in range(shards) for number in range(size)]
    options = {"function": f"{tmp_path}/f.py:f", "jobs": 2, "checkpoint_samples": every, "retries": 0}
    tarmac.map(urls, f"{tmp_path}/quiet/", **options)
    (bombs / "calls").unlink()
    for number in range(kills):
        (bombs / keys[number * len(keys) // kills]).touch()
    script = ATTEMPTS.format(urls=urls, output=f"{tmp_path}/out/", options=options, group=group)
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    died, written = map(int, done.stdout.split())
    calls = (bombs / "calls").read_text().split()
    assert written == len(keys)
    assert sorted(set(calls)) == keys
    assert kills / 2 <= died <= kills  # both workers may reach a bomb at once
    in_flight = 1 if shards == 1 else 2
    ahead = 2 * PER_WORKER * group if shards == 1 else 0
    assert len(calls) - len(keys) <= died * in_flight * (every + ahead)
    quiet, out = files(tmp_path / "quiet"), files(tmp_path / "out")
    assert {name: data for name, data in out.items() if name.endswith(".tar")} == {
        name: data for name, data in quiet.items() if name.endswith(".tar")
    }
    assert not states(tmp_path / "out")


@pytest.mark.processes
def test_chunks_in_a_store(tmp_path):
    urls = make(tmp_path, 30)
    with required(seaweed_s3()) as server:
        server.make_bucket("out")
        storage = StorageOptions(config=server.config())
        options = {"storage": storage, "checkpoint_samples": 4, "index": True}
        work = Work(("two", "same", "fail", "drop"), (9, 22))
        with pytest.raises(KeyboardInterrupt):
            mapped(urls, "s3://out/a/", work, **options)
        chunks = [url for url, _ in list_objects("s3://out/a/.tarmac/map.job/chunks/", storage)]
        assert len(chunks) == 4
        report = until_done(urls, "s3://out/a/", work, **options)
        assert counts(report) == counts(mapped(urls, f"{tmp_path}/quiet/", Work(work.behaviours)))
        assert read_all("s3://out/a/in-0.tar", storage) == (tmp_path / "quiet" / "in-0.tar").read_bytes()
        assert len(work.calls) <= 30 + 2 * 4
        assert list_objects("s3://out/a/.tarmac/map.job/chunks/", storage) == []
        # From a remote shard, which is read as a stream.
        work = Work(("two", "same", "drop"), (20,))
        report = until_done(["s3://out/a/in-0.tar"], "s3://out/b/", work, **options)
        assert len(set(work.calls)) == report.read
        assert len(work.calls) <= report.read + 4
