"""Tokenizing is interrupted, killed, and moved to other engines: the bytes are those of an undisturbed run."""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness import rounds
from harness.anywhere import anywhere
from harness.crash import Forked, survive
from harness.faultfs import every_fault, faulty
from tarmac.errors import TarmacError
from tarmac.tools.mappers.batches import WINDOW
from tools.shards import files, make

SAMPLES = 30


class Interrupted:
    """A mapper that stops the program at some of its batches, and counts the samples that it got."""

    version = "1"  # whatever the test changes meanwhile

    def __init__(self, stops=(), bad=()):
        self.stops, self.bad = list(stops), bad
        self.batches = 0
        self.samples: list[str] = []

    def __call__(self, batch):
        self.batches += len(batch) > 1  # a batch that fails is repeated sample by sample
        if self.stops and self.batches >= self.stops[0]:
            self.stops.pop(0)
            raise KeyboardInterrupt
        keys = [sample["__key__"] for sample in batch]
        if any(int(key[-3:]) in self.bad for key in keys):
            raise ValueError("bad")
        self.samples += keys
        return [list(sample["txt"]) for sample in batch]


class Sorted(Interrupted):
    """The same, with batches of items of similar size."""

    def size(self, item):
        return len(item["txt"]) % 7


def tokenized(urls, output, mapper, **options):
    given = {"mapper": mapper, "vocab_size": 256, "jobs": 1, "on_error": "skip", **options}
    while True:
        try:
            return tarmac.tokenize(urls, output, **given)
        except KeyboardInterrupt:
            continue


@settings(max_examples=rounds(40), deadline=None)
@given(
    size=st.integers(2, 12),
    stops=st.lists(st.integers(1, 30), max_size=5).map(sorted),
    bad=st.sets(st.integers(0, SAMPLES - 1), max_size=3) | st.just(set(range(3, SAMPLES))),
    every=st.integers(1, 20),
    kind=st.sampled_from([Interrupted, Sorted]),
)
def test_the_bytes_are_those_of_an_undisturbed_run(size, stops, bad, every, kind):
    with tempfile.TemporaryDirectory() as folder:
        urls = make(Path(folder), SAMPLES, SAMPLES)
        options = {"batch_size": size, "checkpoint_samples": every, "checkpoint_interval": None}
        quiet = tokenized(urls, f"{folder}/quiet", kind(bad=bad), **options)
        mapper = kind(stops, bad)
        report = tokenized(urls, f"{folder}/out", mapper, **options)
        assert files(Path(folder, "out")) == files(Path(folder, "quiet"))
        for name in ("read", "written", "failed", "bytes", "notes", "errors"):
            assert getattr(report, name) == getattr(quiet, name), name
        reasons, expected = ([outcome.errors for outcome in each.outcomes] for each in (report, quiet))
        assert reasons == expected
        assert list(map(len, reasons)) == [len(bad)] * 2
        assert report.read == report.written + report.failed == 2 * SAMPLES
        # A chunk holds whole batches, or those that were sorted together; what is behind the last is computed again.
        lost = len(mapper.samples) - (2 * SAMPLES - 2 * len(bad))
        together = size if kind is Interrupted else WINDOW * size
        assert lost <= len(stops) * (every + 2 * together)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::tarmac.errors.CheckpointFailed")
def test_a_full_disk_loses_nothing(tmp_path):
    urls = make(tmp_path, 9, 9)
    options = {"batch_size": 2, "checkpoint_samples": 4}
    tokenized(urls, tmp_path / "quiet", Interrupted(), **options)
    failed = 0
    for fault in every_fault(errno.ENOSPC, ("write", "fsync", "link")):
        out = tmp_path / str(fault.number)
        try:
            with faulty(fault):
                tokenized(urls, out, Interrupted(), **options)
        except TarmacError:
            failed += 1
        assert tokenized(urls, out, Interrupted(), **options).written == 18
        assert files(out) == files(tmp_path / "quiet")
    assert failed > 3


def test_killed_processes(tmp_path):
    urls = make(tmp_path, *[200] * 4)
    tokenized(urls, tmp_path / "quiet", slow, batch_size=16)
    quiet = files(tmp_path / "quiet")

    def work():
        tokenized(urls, tmp_path / "out", slow, batch_size=16, checkpoint_samples=32)

    def check():
        written = files(tmp_path / "out") if (tmp_path / "out").exists() else {}
        written = {name: data for name, data in written.items() if name[0] != "."}
        assert {name: quiet[name] for name in written} == written

    def strike(seed):
        result = Forked(work).crash(seed, 0.3)
        if not result.killed:  # it was finished before: begin again
            check()
            shutil.rmtree(tmp_path / "out")
        return result

    survive(rounds(20), strike, check)
    work()
    assert {name: data for name, data in files(tmp_path / "out").items() if name[0] != "."} == quiet


def slow(batch):
    import time

    time.sleep(0.004)
    return [list(sample["txt"]) for sample in batch]


MAPPER = """
import functions

def tokens(batch):
    for sample in batch:
        functions.work(sample)
    return [list(sample["txt"]) for sample in batch]
"""


@pytest.mark.processes
def test_another_engine_completes_the_job(tmp_path, monkeypatch):
    make(tmp_path, *[40] * 8)
    monkeypatch.chdir(tmp_path)
    with anywhere(tmp_path) as clusters:
        (tmp_path / "mapper.py").write_text(MAPPER)
        command = ["tokenize", "in-*.tar", "--mapper", "mapper.py:tokens", "--vocab-size", "256"]
        command += ["--batch-size", "5", "--checkpoint-samples", "10"]
        assert clusters.run("local-1", [*command, "-o", "quiet"]), clusters.logs
        clusters.calls()
        for engine, bomb in (("slurm", 60), ("dask", 40), ("tasks", 50)):
            clusters.run(engine, [*command, "-o", "out"], bomb)
        assert clusters.run("local-2", [*command, "-o", "out"]), clusters.logs
    # The next writer of a name removes what a killed one has left, unless that one was still alive when it began.
    published = {name: data for name, data in files(tmp_path / "out").items() if ".part-" not in name}
    assert published == files(tmp_path / "quiet")
    assert len(set(clusters.calls())) == 8 * 40
