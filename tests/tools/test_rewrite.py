"""Shards from samples: as a job that is finished by running it again, and as one stream."""

from __future__ import annotations

import os

import pytest

from tarmac.errors import ErrorBudgetExceeded, JobMismatch, UrlError
from tarmac.jobs.engines.local import LocalEngine
from tarmac.tools.output import Output
from tarmac.tools.plan import open_indexed
from tarmac.tools.rewrite import RewriteJob, Run, rewrite
from tarmac.tools.select import Select
from tools.shards import RUN, content, files, make


def shout(samples, outcome):
    """Texts in capitals; every fifth sample is lost."""
    for sample in samples:
        if sample["cls"] == b"4":
            outcome.fail(f"{sample['__key__']} is no good")
        else:
            yield sample | {"txt": sample["txt"].upper()}


@pytest.fixture
def urls(tmp_path):
    return make(tmp_path, 10, 7)


def task(urls, folder, change=None, **output):
    where = Output(str(folder / "x-{i}.tar"), max_samples=6, **output)
    return RewriteJob("copy", where, {"": open_indexed(urls, Select())}, change)


def test_a_job_and_again(urls, tmp_path):
    report = rewrite(task(urls, tmp_path / "out"), RUN)
    assert (report.units, report.read, report.written) == (3, 17, 17)
    assert content(f"{tmp_path}/out/*.tar") == content(*urls)
    assert rewrite(task(urls, tmp_path / "out"), RUN).kept == 3
    os.unlink(tmp_path / "out" / "x-1.tar")
    report = rewrite(task(urls, tmp_path / "out"), RUN)
    assert (report.done, report.kept) == (1, 2)
    assert content(f"{tmp_path}/out/*.tar") == content(*urls)


def test_any_number_of_processes_makes_the_same_bytes(urls, tmp_path):
    for number in (1, 2, 3):
        rewrite(task(urls, tmp_path / str(number), shout), Run(LocalEngine(number)))
    one, two, three = (files(tmp_path / str(number)) for number in (1, 2, 3))
    assert one == two == three
    assert len(one) == 3


def test_what_a_change_loses_is_counted(urls, tmp_path):
    report = rewrite(task(urls, tmp_path / "out", shout), RUN)
    assert (report.read, report.written, report.failed) == (17, 14, 3)
    assert report.errors[0] == "s0/004 is no good"
    assert content(f"{tmp_path}/out/*.tar")[0]["txt"] == b"TEXT 0 OF 0 "
    with pytest.raises(ErrorBudgetExceeded):
        rewrite(task(urls, tmp_path / "other", shout), Run(LocalEngine(), max_errors=1))


def test_other_inputs_are_refused(urls, tmp_path):
    rewrite(task(urls, tmp_path / "out"), RUN)
    with pytest.raises(JobMismatch, match="inputs"):
        rewrite(task(urls[:1], tmp_path / "out"), RUN)
    # The same places with other bytes in them.
    data = bytearray((tmp_path / "in-0.tar").read_bytes())
    data[data.index(b"text 3")] = ord("T")
    (tmp_path / "in-0.tar").write_bytes(data)
    with pytest.raises(JobMismatch, match="inputs"):
        rewrite(task(urls, tmp_path / "out"), RUN)
    rewrite(task(urls, tmp_path / "out", overwrite=True), RUN)
    assert content(f"{tmp_path}/out/*.tar") == content(*urls)


def test_files_of_others_are_not_replaced(urls, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x-2.tar").write_bytes(b"mine")
    with pytest.raises(UrlError, match="not made by this job"):
        rewrite(task(urls, tmp_path / "out"), RUN)
    assert files(tmp_path / "out") == {"x-2.tar": b"mine"}
