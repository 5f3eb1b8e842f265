"""Streams: divided into shards as indexed samples are, and resumed by reading the stream again."""

from __future__ import annotations

import os

import pytest

from harness.crash import Forked, survive
from tarmac import copy
from tarmac.errors import ErrorBudgetExceeded, JobMismatch, UsageError
from tarmac.tools.options import Run
from tarmac.tools.output import Output
from tarmac.tools.rewrite import rewrite_samples
from tools.shards import content, files, keys, make

RUN = Run(jobs=1)
KILLS = 10 * int(os.environ.get("TARMAC_TORTURE", "1"))


@pytest.fixture
def urls(tmp_path):
    return make(tmp_path, 10, 7)


def test_streams_are_divided_as_indexed_samples_are(urls, tmp_path):
    for limits in ({"max_samples": 4}, {"max_bytes": 300}, {"max_bytes": 1}, {}):
        for created in (tmp_path / "job", tmp_path / "stream"):
            for path in created.glob("*"):
                path.unlink() if path.is_file() else None
        options = {"overwrite": True, "rekey": "{i}-{key}", **limits}
        copy(urls, f"{tmp_path}/job/x-{{i:03d}}.tar", jobs=1, **options)
        samples = iter(content(*urls))
        stream = Output(f"{tmp_path}/stream/x-{{i:03d}}.tar", **options)
        report = rewrite_samples("copy", samples, stream, RUN)
        assert files(tmp_path / "job") == files(tmp_path / "stream")
        assert (report.read, report.written) == (17, 17)
        assert report.units == len(files(tmp_path / "stream"))


def test_several_shards_need_a_number(urls, tmp_path):
    with pytest.raises(UsageError, match=r"x\.tar"):
        rewrite_samples("copy", iter(content(*urls)), Output(str(tmp_path / "x.tar"), max_samples=3), RUN)


def test_an_empty_stream(tmp_path):
    report = rewrite_samples("copy", iter([]), Output(str(tmp_path / "x.tar")), RUN)
    assert (report.units, report.written, files(tmp_path)) == (0, 0, {})


def test_missing_shards_are_written_again(urls, tmp_path):
    output = Output(str(tmp_path / "out" / "x-{i}.tar"), max_samples=5)
    first = rewrite_samples("copy", iter(content(*urls)), output, RUN)
    assert (first.units, first.done, first.kept) == (4, 4, 0)
    (tmp_path / "out" / "x-1.tar").unlink()
    again = rewrite_samples("copy", iter(content(*urls)), output, RUN)
    assert (again.units, again.done, again.kept, again.written) == (4, 1, 3, 17)
    assert content(f"{tmp_path}/out/*.tar") == content(*urls)


def test_another_stream_is_another_job(urls, tmp_path):
    output = Output(str(tmp_path / "out" / "x-{i}.tar"), max_samples=5)
    samples = content(*urls)
    rewrite_samples("copy", iter(samples), output, RUN)
    changed = [*samples[:7], samples[7] | {"txt": samples[7]["txt"].upper()}, *samples[8:]]
    with pytest.raises(JobMismatch, match=r"x-1\.tar"):
        rewrite_samples("copy", iter(changed), output, RUN)
    with pytest.raises(JobMismatch, match="fewer"):
        rewrite_samples("copy", iter(samples[:10]), output, RUN)
    with pytest.raises(JobMismatch, match="slice"):
        rewrite_samples("copy", iter(samples), output, RUN, options={"slice": ":3"})


@pytest.mark.parametrize("options", [{"unit_timeout": 9}, {"max_failed_units": 1}])
def test_streams_have_no_units(urls, options):
    with pytest.raises(UsageError, match="as a whole"):
        copy(f"pipe:cat {urls[0]}", "-", **options)


def test_failed_samples_are_counted_and_limited(urls, tmp_path):
    def lossy(samples, outcome):
        for sample in samples:
            fails = sample["cls"] == b"4"
            if fails:
                outcome.fail(sample["__key__"])
            yield [] if fails else [sample]

    report = rewrite_samples("copy", iter(content(*urls)), Output(str(tmp_path / "x.tar")), RUN, lossy)
    assert (report.read, report.written, report.failed) == (17, 14, 3)
    run = Run(jobs=1, max_errors=1)
    with pytest.raises(ErrorBudgetExceeded, match="max_errors"):
        rewrite_samples("copy", iter(content(*urls)), Output(str(tmp_path / "y.tar")), run, lossy)


def test_killed_at_any_moment_and_run_again(tmp_path):
    make(tmp_path, 60)
    samples = content(f"{tmp_path}/in-0.tar")
    output = Output(str(tmp_path / "out" / "x-{i:03d}.tar"), max_samples=3)

    def once():
        rewrite_samples("copy", iter(samples), output, RUN)

    def check():
        once()
        assert keys(f"{tmp_path}/out/*.tar") == [sample["__key__"] for sample in samples]
        for path in (tmp_path / "out").rglob("*"):
            path.unlink() if path.is_file() else None

    survive(KILLS, lambda seed: Forked(once).crash(seed, 0.04), check)


def test_files_of_others_are_not_replaced(urls, tmp_path):
    mine = tmp_path / "x-2.tar"
    mine.write_text("mine")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"x-2\.tar"):
            rewrite_samples(
                "copy", iter(content(*urls)), Output(f"{tmp_path}/x-{{i}}.tar", max_samples=4), RUN
            )
        assert mine.read_text() == "mine"
        assert not (tmp_path / "x-0.tar").exists()
    output = Output(f"{tmp_path}/x-{{i}}.tar", max_samples=4, overwrite=True)
    assert rewrite_samples("copy", iter(content(*urls)), output, RUN).written == 17


def test_a_dry_run_reads_nothing(urls, tmp_path):
    dry = Run(dry_run=True)

    def samples():
        raise AssertionError
        yield

    assert rewrite_samples("copy", samples(), Output("-"), dry).units == 1
    with pytest.raises(UsageError, match="dry_run"):
        rewrite_samples("copy", samples(), Output(f"{tmp_path}/x-{{i}}.tar"), dry)
