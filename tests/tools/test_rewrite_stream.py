"""Shards from streams: cut as jobs cut, and finished by letting the same stream come again."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from harness.crash import Forked, survive
from tarmac.errors import ErrorBudgetExceeded, JobMismatch, UrlError
from tarmac.tools.output import Output
from tarmac.tools.plan import open_indexed
from tarmac.tools.rewrite import RewriteJob, rewrite
from tarmac.tools.rewrite_stream import rewrite_stream
from tarmac.tools.select import Select
from tools.shards import RUN, content, files, keys, make

KILLS = 10 * int(os.environ.get("TARMAC_TORTURE", "1"))


@pytest.fixture
def urls(tmp_path):
    return make(tmp_path, 10, 7)


def test_a_stream_is_cut_as_a_job_is(urls, tmp_path):
    for limits in ({"max_samples": 4}, {"max_bytes": 300}, {"max_bytes": 1}, {}):
        for made in (tmp_path / "job", tmp_path / "stream"):
            for path in made.glob("*"):
                path.unlink() if path.is_file() else None
        output = Output(str(tmp_path / "job" / "x-{i:03d}.tar"), overwrite=True, rekey="{i}-{key}", **limits)
        rewrite(RewriteJob("copy", output, {"": open_indexed(urls, Select())}), RUN)
        samples = iter(content(*urls))
        stream = Output(str(tmp_path / "stream/x-{i:03d}.tar"), rekey="{i}-{key}", overwrite=True, **limits)
        report = rewrite_stream("copy", samples, stream)
        assert files(tmp_path / "job") == files(tmp_path / "stream")
        assert (report.read, report.written) == (17, 17)
        assert report.units == len(files(tmp_path / "stream"))


def test_a_stream_that_does_not_fit_one_name(urls, tmp_path):
    with pytest.raises(UrlError, match="the same name"):
        rewrite_stream("copy", iter(content(*urls)), Output(str(tmp_path / "x.tar"), max_samples=3))


def test_an_empty_stream(tmp_path):
    report = rewrite_stream("copy", iter([]), Output(str(tmp_path / "x.tar")))
    assert (report.units, report.written, files(tmp_path)) == (0, 0, {})


def test_again_and_what_is_missing(urls, tmp_path):
    output = Output(str(tmp_path / "out" / "x-{i}.tar"), max_samples=5)
    first = rewrite_stream("copy", iter(content(*urls)), output)
    assert (first.units, first.done, first.kept) == (4, 4, 0)
    (tmp_path / "out" / "x-1.tar").unlink()
    again = rewrite_stream("copy", iter(content(*urls)), output)
    assert (again.units, again.done, again.kept, again.written) == (4, 1, 3, 17)
    assert content(f"{tmp_path}/out/*.tar") == content(*urls)


def test_another_stream_is_not_mixed_with_the_first(urls, tmp_path):
    output = Output(str(tmp_path / "out" / "x-{i}.tar"), max_samples=5)
    samples = content(*urls)
    rewrite_stream("copy", iter(samples), output)
    changed = [*samples[:7], samples[7] | {"txt": samples[7]["txt"].upper()}, *samples[8:]]
    with pytest.raises(JobMismatch, match=r"x-1.tar are others than before"):
        rewrite_stream("copy", iter(changed), output)
    with pytest.raises(JobMismatch, match="fewer samples"):
        rewrite_stream("copy", iter(samples[:10]), output)
    with pytest.raises(JobMismatch, match="slice"):
        rewrite_stream("copy", iter(samples), output, options={"slice": ":3"})


def test_files_of_others_are_not_replaced(urls, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x-0.tar").write_bytes(b"mine")
    with pytest.raises(UrlError, match="not made by this job"):
        rewrite_stream(
            "copy", iter(content(*urls)), Output(str(tmp_path / "out" / "x-{i}.tar"), max_samples=5)
        )
    assert files(tmp_path / "out") == {"x-0.tar": b"mine"}


def test_lost_samples_are_counted_and_limited(urls, tmp_path):
    def lossy(samples, outcome):
        for sample in samples:
            if sample["cls"] == b"4":
                outcome.fail(sample["__key__"])
            else:
                yield sample

    report = rewrite_stream("copy", iter(content(*urls)), Output(str(tmp_path / "x.tar")), lossy)
    assert (report.read, report.written, report.failed) == (17, 14, 3)
    run = replace(RUN, max_errors=1)
    with pytest.raises(ErrorBudgetExceeded, match="3 samples failed, 1 may"):
        rewrite_stream("copy", iter(content(*urls)), Output(str(tmp_path / "y.tar")), lossy, run=run)


def test_killed_at_any_moment_and_run_again(tmp_path):
    make(tmp_path, 60)
    samples = content(f"{tmp_path}/in-0.tar")
    output = Output(str(tmp_path / "out" / "x-{i:03d}.tar"), max_samples=3)

    def once():
        rewrite_stream("copy", iter(samples), output)

    def check():
        once()
        assert keys(f"{tmp_path}/out/*.tar") == [sample["__key__"] for sample in samples]
        for path in (tmp_path / "out").rglob("*"):
            path.unlink() if path.is_file() else None

    survive(KILLS, lambda seed: Forked(once).crash(seed, 0.04), check)


def test_a_file_of_somebody_else_is_never_replaced(urls, tmp_path):
    mine = tmp_path / "x-2.tar"
    mine.write_text("mine")
    for _ in range(2):
        with pytest.raises(UrlError, match="was not made by this job"):
            rewrite_stream("copy", iter(content(*urls)), Output(f"{tmp_path}/x-{{i}}.tar", max_samples=4))
        assert mine.read_text() == "mine"
        assert not (tmp_path / "x-0.tar").exists()
    output = Output(f"{tmp_path}/x-{{i}}.tar", max_samples=4, overwrite=True)
    assert rewrite_stream("copy", iter(content(*urls)), output).written == 17


def test_a_dry_run_reads_nothing(urls, tmp_path):
    dry = replace(RUN, dry=True)

    def samples():
        raise AssertionError
        yield

    assert rewrite_stream("copy", samples(), Output("-"), run=dry).units == 1
    with pytest.raises(UrlError, match="shows only when it is read"):
        rewrite_stream("copy", samples(), Output(f"{tmp_path}/x-{{i}}.tar"), run=dry)
