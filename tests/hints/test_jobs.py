"""Hints of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

import tarmac
from harness.hints import follows, hinted
from hints.commands import done, refused
from tarmac.jobs.engines import register_engine
from tools.shards import keys, make

pytestmark = pytest.mark.usefixtures("home")


class Meanwhile:
    """An engine that does something else before each unit."""

    def __init__(self, other=lambda: None):
        self.other = other

    def run(self, work, units):
        for unit in units:
            self.other()
            yield unit, work(unit)


@follows("tarmac.jobs.engines.register_engine adds one.")
def test_an_unknown_engine(tmp_path, monkeypatch):
    monkeypatch.setattr("tarmac.jobs.engines._factories", {})
    shards = make(tmp_path, 3)
    with hinted("tarmac.jobs.engines.register_engine adds one."):
        tarmac.copy(shards, "x.tar", engine="mine")
    register_engine("mine", lambda jobs: Meanwhile())
    tarmac.copy(shards, "x.tar", engine="mine")
    assert keys("x.tar") == keys(*shards)


@follows("`engine` {}.")
def test_a_misspelt_engine(capsys):
    (shard,) = make(Path(), 3)
    copy = ["copy", shard, "-o", "x.tar"]
    hint = refused(capsys, *copy, "--engine", "lokal")
    assert hint == "--engine local."
    done(capsys, *copy, *hint.removesuffix(".").split())
    assert keys("x.tar") == keys(shard)


@follows("wait until it has finished, or write to other names.")
def test_another_job_is_running(tmp_path):
    shards = make(tmp_path, 3)

    def sort():
        with hinted("wait until it has finished, or write to other names."):
            tarmac.sort(shards, "x.tar", reverse=True)
        tarmac.sort(shards, "y.tar", reverse=True)

    tarmac.copy(shards, "x.tar", engine=Meanwhile(sort))
    tarmac.sort(shards, "x.tar", reverse=True, overwrite=True)
    assert keys("x.tar") == keys("y.tar") == keys(*shards)[::-1]


@follows('`retry` "failed" processes the shards again in which samples failed; {}')
@pytest.mark.parametrize("advice", [["--retry", "failed"], ["-o", "other.tar"], ["--overwrite"]])
def test_corrected_samples(capsys, advice):
    Path("list.recipe").write_text("a.txt a\nb.txt b\n")
    Path("a").write_text("A")
    job = ["pack", "list.recipe", "-o", "x.tar", "--on-error", "skip"]
    done(capsys, *job, status=1)
    Path("b").write_text("B")
    with hinted('`retry` "failed" processes the shards again in which samples failed; {}'):
        tarmac.pack("list.recipe", "x.tar", on_error="skip")
    hint = refused(capsys, *job)
    assert hint.startswith(
        '--retry "failed" processes the shards again in which samples failed; choose another'
    )
    assert "--overwrite to start over" in hint
    done(capsys, *job, *advice)
    assert keys("other.tar" if "-o" in advice else "x.tar") == ["a", "b"]
