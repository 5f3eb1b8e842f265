"""Hints of tasks, of units that fail, and of the commands that look at jobs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tarmac
from harness.hints import follows, hinted
from tarmac.errors import TransformFailed, UnitsFailed
from tarmac.tools.jobs import finish, log, retry, status
from tools.shards import make

pytestmark = pytest.mark.usefixtures("home")


def picky(sample):
    """Fail at the first shard while the file `bad` exists."""
    if Path("bad").exists() and sample["__url__"].endswith("in-0.tar"):
        raise ValueError("bad")
    return sample


def failed_job(tmp_path, **options):
    Path("bad").touch()
    with pytest.raises(TransformFailed):
        tarmac.map(make(tmp_path, 2, 2), "out/", picky, jobs=1, **options)
    Path("bad").unlink()


@follows("the output that the job was given, such as DIR/ or DIR/x-{i:06d}.tar.")
def test_where_no_job_is(tmp_path):
    tarmac.copy(make(tmp_path, 2), "out/x-{i:06d}.tar")
    with hinted("the output that the job was given, such as DIR/ or DIR/x-{i:06d}.tar."):
        status("out/x-000000.tar")
    assert status("out/")[0].done == status("out/x-{i:06d}.tar")[0].done == 1


@follows("the same location as a path, or as the URL of a bucket.")
def test_jobs_on_a_web_server(tmp_path):
    tarmac.copy(make(tmp_path, 2), "out/")
    with hinted("the same location as a path, or as the URL of a bucket."):
        status("https://example.com/out/")
    assert status("out/")[0].done == 1


@follows("the name of an output as tarmac jobs log shows it.")
def test_no_such_unit(tmp_path):
    failed_job(tmp_path)
    with hinted("the name of an output as tarmac jobs log shows it."):
        log("out/", "in-0.tar")
    assert log("out/", log("out/")[0].unit)[0].state == "failed"


@follows("one of those that tarmac jobs log shows as failed.")
def test_units_that_have_not_failed(tmp_path):
    failed_job(tmp_path)
    with hinted("one of those that tarmac jobs log shows as failed."):
        retry("out/", ["out/in-1.tar"])
    assert retry("out/", [log("out/")[0].unit]) == ["out/in-0.tar"]


@follows("tarmac jobs retry OUTPUT, and then the same tasks again.")
def test_tasks_do_not_try_failed_units_again(tmp_path):
    failed_job(tmp_path, task="0/1")
    shards = [str(tmp_path / f"in-{number}.tar") for number in range(2)]
    with hinted("tarmac jobs retry OUTPUT, and then the same tasks again."):
        tarmac.map(shards, "out/", picky, jobs=1, task="0/1")
    retry("out/")
    tarmac.map(shards, "out/", picky, jobs=1, task="0/1")
    assert status("out/")[0].complete


@follows("run the command of the job again: it does what is missing, and finishes the job.")
def test_a_job_of_the_version_before_that_was_moved(tmp_path):
    shards = make(tmp_path, 2)
    tarmac.copy(shards, "out/", manifest="out/m.json")
    shutil.move("out", "moved")
    head = Path("moved/.tarmac/copy.job/job.json")
    stored = json.loads(head.read_text()) | {"format": "tarmac-ledger-1"}
    stored["options"]["pattern"] = "out/"
    head.write_text(json.dumps(stored))
    with hinted("run the command of the job again: it does what is missing, and finishes the job."):
        finish("moved")
    tarmac.copy(shards, "out/", manifest="out/m.json")
    assert Path("out/m.json").exists()


@follows("run the same command again: it runs only the units that failed.")
def test_several_units_fail(tmp_path):
    shards = make(tmp_path, 2, 2, 2)
    (tmp_path / "two").mkdir()
    shutil.copy(shards[0], tmp_path / "two/in-0.tar")
    Path("bad").touch()
    with hinted("run the same command again: it runs only the units that failed.", UnitsFailed):
        tarmac.map([*shards, "two/in-0.tar"], "x-{i}.tar", picky, jobs=1, max_samples=2, max_failed_units=9)
    Path("bad").unlink()
    report = tarmac.map([*shards, "two/in-0.tar"], "x-{i}.tar", picky, jobs=1, max_samples=2)
    assert (report.done, report.kept) == (2, 2)


@follows("another output, or `overwrite` without `task`.")
def test_tasks_do_not_start_over(tmp_path):
    shards = make(tmp_path, 2)
    with hinted("another output, or `overwrite` without `task`."):
        tarmac.copy(shards, "out/", overwrite=True, task="0/2")
    tarmac.copy(shards, "other/", task="0/2")
    tarmac.copy(shards, "out/", overwrite=True)


def wait_if_told(sample):
    while Path("bad").exists():
        pass
    return sample


@follows("a larger `unit_timeout`.")
def test_a_unit_takes_too_long(tmp_path):
    shards = make(tmp_path, 2)
    Path("bad").touch()
    with hinted("a larger `unit_timeout`."):
        tarmac.map(shards, "out/", wait_if_told, jobs=1, unit_timeout=0.05, retries=0)
    Path("bad").unlink()
    tarmac.map(shards, "out/", wait_if_told, jobs=1, unit_timeout=600)


@follows("`task` or `engine`.")
def test_tasks_have_no_engine(tmp_path):
    shards = make(tmp_path, 2)
    with hinted("`task` or `engine`."):
        tarmac.copy(shards, "out/", task="0/2", engine="dask")
    tarmac.copy(shards, "out/", task="0/2")


@follows("plain shards as input and output.")
def test_streams_have_no_tasks(tmp_path):
    shards = make(tmp_path, 2)
    with hinted("plain shards as input and output."):
        tarmac.copy(shards, "-", task="0/2")
    tarmac.copy(shards, "out/", task="0/2")
