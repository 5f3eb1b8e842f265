"""Map: in order, the same for any number of processes, nothing lost silently."""

from __future__ import annotations

import errno
import functools
import multiprocessing
import os

import pytest

import tarmac
from harness.faultfs import Fault, faulty
from harness.waiting import TIMEOUT
from tarmac import TarWriter, read
from tarmac.errors import (
    ErrorBudgetExceeded,
    JobMismatch,
    NotPicklable,
    TimedOut,
    TransformFailed,
    UsageError,
    WorkerDied,
    WriteError,
)
from tarmac.runtime import processes


@pytest.fixture
def shards(tmp_path):
    """Three shards of ten samples."""
    urls = []
    for shard in range(3):
        urls.append(str(tmp_path / f"in-{shard}.tar"))
        with TarWriter(urls[-1]) as writer:
            for number in range(10):
                writer.write({"__key__": f"k{shard}{number}", "txt": f"{shard} {number}", "cls": number})
    return urls


def mapped(urls, work, output, jobs=1, **options):
    """Map with a command, or with the keyword arguments in `work`."""
    work = {"command": work} if isinstance(work, str) else work
    return tarmac.map(urls, output, jobs=jobs, **work, **options)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_order_and_bytes_are_the_same_for_any_number_of_processes(shards, tmp_path):
    # The samples that come first take longest.
    slow = "case $(cat sample.cls) in 0|4) sleep 0.1;; esac; sed s/^/x/ sample.txt > sample.new"
    for jobs in (1, 2, 7):
        report = mapped(shards, slow, f"{tmp_path}/{jobs}/", jobs)
        assert (report.read, report.written, report.dropped, report.failed) == (30, 30, 0, 0)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "7")
    results = list(read(f"{tmp_path}/1/*.tar"))
    assert [sample["__key__"] for sample in results] == [f"k{s}{n}" for s in range(3) for n in range(10)]
    assert results[12]["new"] == b"x1 2"


def test_samples_of_one_shard_in_parallel(shards, tmp_path):
    """Each command waits for nine others."""
    (tmp_path / "here").mkdir()
    together = f"cd {tmp_path}/here; touch $TARMAC_KEY; until [ $(ls | wc -l) = 10 ]; do sleep 0.02; done"
    report = mapped(shards[:1], {"command": together, "timeout": TIMEOUT}, f"{tmp_path}/out/", jobs=10)
    assert report.written == 10


@pytest.mark.parametrize("work", ["command", "function"])
def test_unordered_results(shards, tmp_path, monkeypatch, work):
    """The first one waits until the last one is there, which it would not be if order were kept."""
    monkeypatch.setattr("tarmac.tools.map.verb.CHUNK", 1)
    mark = tmp_path / "done"
    if work == "command":
        wait = f"until [ -e {mark} ]; do sleep 0.05; done"
        how = {
            "command": f"case $(cat sample.cls) in 9) touch {mark};; 0) {wait};; esac",
            "timeout": TIMEOUT,
        }
    else:
        (tmp_path / "f.py").write_text(WAITING.format(str(mark)))
        how = {"function": f"{tmp_path}/f.py:f"}
    report = mapped(shards[:1], how, f"{tmp_path}/out/", jobs=2, ordered=False)
    assert (report.written, report.failed) == (10, 0)
    results = [sample["__key__"] for sample in read(f"{tmp_path}/out/in-0.tar")]
    assert sorted(results) == [f"k0{number}" for number in range(10)]
    assert results.index("k00") > 6  # not before nearly all others
    with pytest.raises(JobMismatch):
        mapped(shards[:1], how, f"{tmp_path}/out/", jobs=2)


WAITING = """
import os, time

def f(sample):
    if sample["cls"] == b"9":
        open({0!r}, "w").close()
    while sample["cls"] == b"0" and not os.path.exists({0!r}):
        time.sleep(0.05)
    return sample
"""


def test_filters_are_counted_and_failures_are_not_kept(shards, tmp_path):
    text = "n=$(cat sample.cls); test $n != 3 || rm sample.*; test $n != 5"
    report = mapped(shards, text, f"{tmp_path}/out/", 2, on_error="skip")
    assert (report.read, report.written, report.dropped, report.failed) == (30, 24, 3, 3)
    assert not report.ok
    assert 'sample "k05": the command' in report.errors[0]
    keys = {sample["__key__"] for sample in read(f"{tmp_path}/out/*.tar")}
    assert keys == {f"k{s}{n}" for s in range(3) for n in range(10) if n not in (3, 5)}
    again = mapped(shards, text, f"{tmp_path}/out/", 2, on_error="skip")
    assert (again.kept, again.done, again.failed) == (3, 0, 3)  # it still says what is missing


def test_failed_samples_are_tried_again(shards, tmp_path):
    text = f"echo $TARMAC_KEY >> {tmp_path}/ran; test $TARMAC_KEY != k15 || test -e {tmp_path}/mended"
    first = mapped(shards, text, f"{tmp_path}/out/", 2, on_error="skip", index=True)
    assert (first.failed, first.written) == (1, 29)
    again = mapped(shards, text, f"{tmp_path}/out/", 2, on_error="skip", index=True)
    assert (again.kept, again.failed) == (3, 1)
    assert "`retry`" in again.remarks[0]
    with pytest.raises(TransformFailed, match='sample "k15"'):  # not mended yet
        mapped(shards, text, f"{tmp_path}/out/", index=True, retry="failed")
    (tmp_path / "mended").touch()
    (tmp_path / "ran").unlink()
    third = mapped(shards, text, f"{tmp_path}/out/", 2, index=True, retry="failed")
    assert (third.kept, third.done, third.failed, third.written, third.remarks) == (2, 1, 0, 30, [])
    assert {line[:2] for line in (tmp_path / "ran").read_text().split()} == {"k1"}  # only that shard
    keys = [sample["__key__"] for sample in read(f"{tmp_path}/out/*.tar")]
    assert keys == [f"k{s}{n}" for s in range(3) for n in range(10)]
    assert len(tarmac.Dataset(f"{tmp_path}/out/*.tar")) == 30
    fourth = mapped(shards, text, f"{tmp_path}/out/", 2, index=True, retry="failed")
    assert (fourth.kept, fourth.done, fourth.failed) == (3, 0, 0)


def test_what_cannot_be_retried(shards, tmp_path):
    with pytest.raises(UsageError, match="`retry`"):
        mapped(shards, "true", f"{tmp_path}/out/", retry="all")
    with pytest.raises(UsageError, match="`retry`"):
        mapped([f"pipe:cat {shards[0]}"], "true", f"{tmp_path}/x-{{i}}.tar", retry="failed", max_samples=5)


def test_a_failure_aborts_by_default(shards, tmp_path):
    text = "test $TARMAC_KEY != k15"
    with pytest.raises(TransformFailed, match='sample "k15"'):
        mapped(shards, text, f"{tmp_path}/out/")
    assert set(contents(tmp_path / "out")) == {"in-0.tar"}
    report = mapped(shards, text, f"{tmp_path}/out/", on_error="skip")
    assert (report.kept, report.failed, report.written) == (1, 1, 29)


@pytest.mark.parametrize("jobs", [1, 4])
def test_max_errors(shards, tmp_path, jobs):
    with pytest.raises(ErrorBudgetExceeded, match="max_errors"):
        mapped(shards[:1], "false", f"{tmp_path}/out/", jobs, on_error="skip", max_errors=2)
    report = mapped(shards, "test $(cat sample.cls) != 1", f"{tmp_path}/o/", on_error="skip", max_errors=3)
    assert report.failed == 3


def test_a_timeout_fails_the_sample(shards, tmp_path):
    work = {"command": "test $TARMAC_KEY != k02 || sleep 10000", "timeout": 3}
    with pytest.raises(TimedOut, match="k02"):
        mapped(shards[:1], work, f"{tmp_path}/out/", 4)
    report = mapped(shards[:1], work, f"{tmp_path}/out/", 4, on_error="skip")
    assert (report.written, report.failed) == (9, 1)


def test_several_samples_of_each(shards, tmp_path):
    work = {"command": "for i in 000000 000001; do cp sample.txt sample-$i.txt; done", "multi": True}
    report = mapped(shards, work, f"{tmp_path}/out-{{i:03d}}.tar", 2, max_samples=7, index=True)
    assert (report.read, report.written, report.units) == (30, 60, 5)
    keys = [sample["__key__"] for sample in read(f"{tmp_path}/out-*.tar")]
    assert keys[:3] == ["k00/000000", "k00/000001", "k01/000000"]
    assert len(set(keys)) == 60


def test_selected_samples(shards, tmp_path):
    select = {"fields": {"caption": "txt"}, "slice": slice(5, 25), "where": "key != 'k10'"}
    report = mapped(shards, "ls > sample.list", f"{tmp_path}/out/", 2, **select)
    assert (report.read, report.left_out, report.written) == (30, 10, 20)
    first = next(iter(read(f"{tmp_path}/out/in-0.tar")))
    assert first["list"].split() == [b"sample.__key__", b"sample.caption", b"sample.list"]
    split = {"a": 0.5, "b": 0.5}
    report = mapped(shards, "true", f"{tmp_path}/{{split}}.tar", 2, split=split)
    assert report.written == 30
    keys = [sample["__key__"] for name in "ab" for sample in read(f"{tmp_path}/{name}.tar")]
    assert len(set(keys)) == 30
    with pytest.raises(UsageError, match="split"):
        mapped(shards, "true", f"{tmp_path}/x.tar", 2, split=split)


def test_compressed_shards_and_streams(shards, tmp_path):
    packed = [str(tmp_path / f"p{n}.tar.gz") for n in range(2)]
    for url, plain in zip(packed, shards, strict=False):
        with TarWriter(url) as writer:
            for sample in read(plain):
                writer.write(sample)
    report = mapped(packed, "true", f"{tmp_path}/out/", 2)
    assert (report.written, report.units) == (20, 2)
    report = mapped(packed, "true", f"{tmp_path}/all-{{i}}.tar", 2, max_samples=8)
    assert (report.written, report.units) == (20, 3)
    with pytest.raises(UsageError, match=r"\{name\}"):
        mapped(["-"], "true", f"{tmp_path}/o/")
    with pytest.raises(UsageError, match="`only`"):
        mapped(packed, "true", f"{tmp_path}/o/", slice=slice(1, 3))


def test_other_work_is_another_job(shards, tmp_path):
    mapped(shards, "true", f"{tmp_path}/out/")
    with pytest.raises(JobMismatch, match="command"):
        mapped(shards, "false", f"{tmp_path}/out/")
    report = mapped(shards, "echo > sample.new", f"{tmp_path}/out/", overwrite=True)
    assert report.done == 3


def test_a_full_disk_and_then_free_space(shards, tmp_path):
    output = f"{tmp_path}/out/"
    mapped(shards, "true", f"{tmp_path}/whole/")
    for number in (2, 4, 5, 7, 9):
        fault = Fault(number, errno.ENOSPC, ("write", "fsync"))
        with faulty(fault):
            try:
                mapped(shards, "true", output)
            except WriteError:
                assert fault.fired
        done = contents(tmp_path / "out") if (tmp_path / "out").exists() else {}
        whole = contents(tmp_path / "whole")
        assert all(whole[name] == data for name, data in done.items())
    report = mapped(shards, "true", output)
    assert report.written == 30
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


AUGMENT = """
import random

def augment(sample):
    image = sample["jpg"]
    key = sample["__key__"]
    label = sample["json"]["label"]
    return {"__key__": key, "png": image[:, ::-1].copy(), "cls": label}

def twice(sample):
    return [sample, sample | {"jpg": sample["jpg"][::-1].copy()}]
"""


def test_offline_augmentation(tmp_path):
    """Decode, augment, extract the class, write: what takes a program elsewhere."""
    import numpy as np

    from tarmac import WebDataset

    (tmp_path / "aug.py").write_text(AUGMENT)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (8, 8, 3), dtype=np.uint8) for _ in range(6)]
    for shard in range(2):
        with TarWriter(str(tmp_path / f"in-{shard}.tar")) as writer:
            for number in range(3):
                sample = {"jpg": images[shard * 3 + number], "json": {"label": number}}
                writer.write(sample | {"__key__": f"{shard}{number}"})
    urls = [str(tmp_path / f"in-{shard}.tar") for shard in range(2)]
    before = list(WebDataset(urls, shardshuffle=False).decode("rgb8"))
    report = mapped(urls, {"function": f"{tmp_path}/aug.py:augment", "decode": "rgb8"}, f"{tmp_path}/out/", 2)
    assert report.written == 6
    after = list(WebDataset(f"{tmp_path}/out/in-{{0..1}}.tar", shardshuffle=False).decode("rgb8"))
    assert [sample["__key__"] for sample in after] == ["00", "01", "02", "10", "11", "12"]
    for old, new in zip(before, after, strict=True):
        assert (new["png"] == old["jpg"][:, ::-1]).all()
        assert new["cls"] == old["json"]["label"]
    twice = {"function": f"{tmp_path}/aug.py:twice", "decode": "rgb8"}
    report = mapped(urls, twice, f"{tmp_path}/twice/", 2)
    assert report.written == 12
    created = list(read(f"{tmp_path}/twice/in-0.tar"))
    raw = list(read(urls[0]))
    assert [sample["__key__"] for sample in created[:2]] == ["00/000000", "00/000001"]
    assert created[0]["jpg"] == raw[0]["jpg"]  # untouched, so not encoded again
    assert created[1]["jpg"] != raw[0]["jpg"]


def test_a_function_that_fails(shards, tmp_path):
    (tmp_path / "f.py").write_text(
        "def f(sample):\n    assert sample['cls'] != 4, 'four'\n    return sample\n"
    )
    work = {"function": f"{tmp_path}/f.py:f", "decode": "basic"}
    with pytest.raises(TransformFailed, match="AssertionError: four"):
        mapped(shards, work, f"{tmp_path}/out/", 2)
    report = mapped(shards, work, f"{tmp_path}/out/", 2, on_error="skip")
    assert (report.written, report.failed) == (27, 3)


PIDS = """
import os, time

def f(sample):
    # Wait until another process has been here, too.
    open(os.path.join(PLACE, str(os.getpid())), "w").close()
    while len(os.listdir(PLACE)) < 2:
        time.sleep(0.02)
    return sample | {"pid": str(os.getpid())}

def g(sample):
    if sample["cls"] == b"7":
        os.kill(os.getpid(), 9)
    return sample
"""


def test_a_function_works_on_one_shard_in_several_processes(shards, tmp_path, monkeypatch):
    monkeypatch.setattr("tarmac.tools.map.verb.CHUNK", 2)
    (tmp_path / "pids").mkdir()
    (tmp_path / "f.py").write_text(f"PLACE = {str(tmp_path / 'pids')!r}\n{PIDS}")
    work = {"function": f"{tmp_path}/f.py:f"}
    report = mapped(shards[:1], work, f"{tmp_path}/out/", jobs=4)
    assert (report.read, report.written) == (10, 10)
    results = list(read(f"{tmp_path}/out/in-0.tar"))
    assert [sample["__key__"] for sample in results] == [f"k0{number}" for number in range(10)]
    assert str(os.getpid()).encode() not in {sample["pid"] for sample in results}
    assert len({sample["pid"] for sample in results}) > 1
    # Two at a time for each of three shards: processes of processes.
    report = mapped(shards, work, f"{tmp_path}/all/", jobs=6)
    assert report.written == 30
    assert [sample["cls"] for sample in read(f"{tmp_path}/all/*.tar")] == [b"%d" % n for n in range(10)] * 3


def test_a_function_that_fails_in_another_process(shards, tmp_path):
    (tmp_path / "f.py").write_text("def f(sample):\n    return 1 / int(sample['cls']) and sample\n")
    work = {"function": f"{tmp_path}/f.py:f"}
    with pytest.raises(TransformFailed, match=r"in-0\.tar.*k00.*ZeroDivisionError"):
        mapped(shards[:1], work, f"{tmp_path}/out/", 2)
    report = mapped(shards[:1], work, f"{tmp_path}/out/", 2, on_error="skip")
    assert (report.written, report.failed) == (9, 1)


def test_a_dead_worker_is_an_error(shards, tmp_path):
    (tmp_path / "f.py").write_text(PIDS)
    with pytest.raises(WorkerDied):
        mapped(shards[:1], {"function": f"{tmp_path}/f.py:g"}, f"{tmp_path}/out/", 2)
    assert os.listdir(tmp_path / "out") == [".tarmac"]


def test_numbers_must_not_repeat(shards, tmp_path):
    (tmp_path / "f.py").write_text("def f(sample):\n    return [sample, sample]\n")
    work = {"function": f"{tmp_path}/f.py:f"}
    with pytest.raises(UsageError, match="rekey"):
        mapped(shards, work, f"{tmp_path}/out/", rekey="{i:03d}")
    report = mapped(shards[:1], work, f"{tmp_path}/one/", rekey="{i:03d}")
    assert report.written == 20
    assert [sample["__key__"] for sample in read(f"{tmp_path}/one/*.tar")] == [f"{n:03d}" for n in range(20)]


def test_streams_are_divided_in_order_only(shards, tmp_path):
    stream = f"pipe:cat {' '.join(shards[:1])}"
    with pytest.raises(UsageError, match="ordered"):
        mapped([stream], "true", f"{tmp_path}/x-{{i}}.tar", ordered=False, max_samples=3)


def swap(n, sample):
    return {"__key__": sample["__key__"], "x": b"%d" % n, "txt": sample["txt"]}


def test_callables(shards, tmp_path, monkeypatch):
    """They are part of the job, need not be importable by name, and are sent to processes if they pickle."""
    report = mapped(shards, {"function": functools.partial(swap, 3)}, f"{tmp_path}/a/", 2)
    assert report.written == 30
    assert {sample["x"] for sample in read(f"{tmp_path}/a/*.tar")} == {b"3"}
    mapped(
        shards,
        {"function": lambda sample: sample | {"n.cls": len(sample["txt"])}, "decode": "basic"},
        f"{tmp_path}/b/",
    )
    assert next(iter(read(f"{tmp_path}/b/*.tar")))["n.cls"] == b"3"
    with pytest.raises(JobMismatch, match="py"):
        mapped(shards, {"function": swap}, f"{tmp_path}/b/")
    monkeypatch.setattr(processes, "_context", lambda: multiprocessing.get_context("spawn"))
    with pytest.raises(NotPicklable, match="lambda"):
        mapped(shards, {"function": lambda sample: sample}, f"{tmp_path}/c/", 2)


@pytest.mark.parametrize(
    ("work", "field"),
    [
        ({}, "command"),
        ({"command": "true", "function": swap}, "command"),
        ({"command": ""}, "command"),
        ({"command": "true", "decode": "rgb8"}, "decode"),
        ({"command": "true", "timeout": -1}, "timeout"),
        ({"command": "true", "interpreter": "perl"}, "interpreter"),
        ({"function": swap, "timeout": 3}, "timeout"),
        ({"function": swap, "multi": True}, "multi"),
        ({"function": swap, "decode": "rgb9"}, "decode"),
        ({"function": 3}, "function"),
        ({"function": "no_such_module:f"}, "function"),
        ({"script": "absent.sh"}, "script"),
        ({"command": "true", "on_error": "keep"}, "on_error"),
        ({"command": "true", "jobs": 0}, "jobs"),
    ],
)
def test_invalid_arguments(shards, tmp_path, work, field):
    with pytest.raises(UsageError, match=field):
        tarmac.map(shards, f"{tmp_path}/out/", **work)
    assert not (tmp_path / "out").exists()


def test_a_command_as_arguments(shards, tmp_path):
    report = mapped(shards[:1], {"command": ["cp", "sample.txt", "sample.copy"]}, f"{tmp_path}/out/")
    assert report.written == 10
    assert next(iter(read(f"{tmp_path}/out/*.tar")))["copy"] == b"0 0"
