"""Check shards through `tarmac.check`."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import tarmac
from harness.shards import plain
from tarmac.errors import (
    DuplicateField,
    JobMismatch,
    MissingField,
    NotFound,
    SplitSample,
    Truncated,
    UnitTimedOut,
    UsageError,
)
from tarmac.tools.check import shard as shard_module
from tools.shards import make


def check(sources, **options):
    return tarmac.check(sources, **options).shards


def test_verdicts(tmp_path):
    good, cut, torn = tmp_path / "good.tar", tmp_path / "cut.tar", tmp_path / "torn.tar"
    good.write_bytes(plain())
    cut.write_bytes(plain()[:1500])
    torn.write_bytes(plain([("a.x", b""), ("b.x", b""), ("a.y", b"")]))
    results = list(check([good, cut, torn, tmp_path / "absent.tar"]))
    assert [result.ok for result in results] == [True, False, False, False]
    assert [result.unreachable for result in results] == [False, False, False, True]
    assert results[0].samples == 3
    assert results[0].fields == {"cls": 3, "txt": 3}
    assert results[0].payload == 1 + 17 + 0 + 512 + 1 + 513
    assert [type(result.error) for result in results[1:]] == [Truncated, SplitSample, NotFound]
    assert str(cut) in str(results[1].error)


def test_required_fields(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("a.jpg", b""), ("a.cls", b""), ("b.jpg", b"")]))
    (result,) = check(path, require=["jpg", "cls"])
    assert isinstance(result.error, MissingField)
    assert result.error.key == "b"


def test_skipped_members_are_reported(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("README", b""), ("a.jpg", b"")]))
    (result,) = check(path)
    assert result.ok
    assert result.skipped == {"no field in name": 1}


def test_shards_are_checked_in_parallel_and_reported_in_order(tmp_path):
    urls = []
    for number in range(9):
        urls.append(str(tmp_path / f"{number}.tar"))
        good = plain([(f"{n}.x", b"y" * 1000) for n in range(1 if number % 2 else 500)])
        (tmp_path / f"{number}.tar").write_bytes(good[:-1024] if number == 4 else good)
    for jobs in (1, 3):
        results = list(check(urls, jobs=jobs))
        assert [result.url for result in results] == urls
        assert [result.ok for result in results] == [number != 4 for number in range(9)]
        assert isinstance(results[4].error, Truncated)


def test_all_problems_of_a_shard(tmp_path):
    path = tmp_path / "a.tar"
    files = [("a.x", b""), ("b.x", b""), ("a.y", b""), ("c.x", b""), ("c.x", b""), ("d.y", b""), ("e.x", b"")]
    path.write_bytes(plain(files))
    (result,) = check(path, require=["x"], all_errors=True)
    assert [type(error) for error in result.errors] == [SplitSample, DuplicateField, MissingField]
    assert [error.key for error in result.errors] == ["a", "c", "d"]
    assert "tarmac sort --by key" in str(result.errors[0])
    assert result.error is result.errors[0]
    (result,) = check(path, require=["x"], all_errors=True, max_errors=1)
    assert result.problems == 2
    path.write_bytes(plain([(f"{n}.y", b"") for n in range(1500)]))
    (result,) = check(path, require=["x"], all_errors=True)
    assert (result.problems, len(result.errors)) == (1500, 1000)
    path.write_bytes(plain([("a.y", b""), ("b.y", b"")])[:-1024])
    (result,) = check(path, require=["x"], all_errors=True)
    assert [type(error) for error in result.errors] == [MissingField, Truncated]  # b may not be whole


def test_fields_that_cannot_be_decoded(tmp_path):
    path = tmp_path / "a.tar"
    with tarmac.TarWriter(str(path)) as writer:
        image = np.zeros((4, 4, 3), np.uint8)
        writer.write(
            {"__key__": "good", "png": image, "json": {}, "cls": 1, "npy": image, "bin": b"\0", "txt": "x"}
        )
        writer.write({"__key__": "bad", "png": b"no image", "json": b"{", "cls": b"1", "pkl": b"?"})
        writer.write({"__key__": "bomb", "txt.gz": gzip.compress(bytes(1 << 20))})
    (result,) = check(path)
    assert result.ok
    limits = tarmac.Limits(expansion_floor=1000, expansion=2)
    (result,) = check(path, decode=True, all_errors=True, limits=limits)
    matches = [(error.key, error.field) for error in result.errors]
    assert sorted(matches) == [("bad", "json"), ("bad", "png"), ("bomb", "txt.gz")]
    assert all(str(path) in str(error) for error in result.errors)
    assert result.skipped == {"field that is decoded only from trusted data": 1}


def test_a_ledger_spares_what_was_whole(tmp_path, monkeypatch):
    urls = []
    for number in range(4):
        urls.append(str(tmp_path / f"{number}.tar"))
        (tmp_path / f"{number}.tar").write_bytes(plain()[:1500] if number == 2 else plain())
    opened = []
    real = shard_module.open_read
    monkeypatch.setattr(shard_module, "open_read", lambda url, *rest: opened.append(url) or real(url, *rest))
    location = str(tmp_path / "ledger.jsonl")

    def verdicts(**more):
        opened.clear()
        return [
            (result.ok, result.samples, result.fields)
            for result in check(urls, ledger=location, jobs=1, **more)
        ]

    first = verdicts()
    assert opened == urls
    assert verdicts() == first
    assert opened == [urls[2]]  # what was damaged is read again
    (tmp_path / "1.tar").write_bytes(plain()[:1500])
    (tmp_path / "2.tar").write_bytes(plain())
    assert [ok for ok, _, _ in verdicts()] == [True, False, True, True]
    assert opened == urls[1:3]
    with pytest.raises(JobMismatch, match="require"):
        verdicts(require=["x"])
    with pytest.raises(UsageError, match="`duplicates`"):
        verdicts(duplicates=True)


def test_a_ledger_records_the_manifest_entry(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain())
    (one,) = check(str(tmp_path / "a.tar"))
    location = str(tmp_path / "ledger.jsonl")

    def verdict(samples):
        shards = [{"url": "a.tar", "nsamples": samples}]
        manifest = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}
        (tmp_path / "c.json").write_text(json.dumps(manifest))
        (result,) = check(str(tmp_path / "c.json"), ledger=location)
        return result.ok

    assert verdict(one.samples)
    assert verdict(one.samples)
    assert not verdict(99)
    assert verdict(one.samples)


def test_an_interrupted_check_resumes(tmp_path):
    urls = []
    for number in range(4):
        urls.append(str(tmp_path / f"{number}.tar"))
        (tmp_path / f"{number}.tar").write_bytes(plain())
    path = tmp_path / "ledger.jsonl"
    results = []

    def stop(result):
        results.append(result)
        if len(results) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tarmac.check(urls, ledger=str(path), jobs=1, on_shard=stop)
    assert sum(len(each.read_text().splitlines()) for each in path.rglob("*.jsonl")) == 2
    assert len(check(urls, ledger=str(path))) == 4


def test_duplicate_keys(tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.tar").write_bytes(plain([("same.x", b""), (f"{number}.x", b"")]))
    report = tarmac.check(f"{tmp_path}/*.tar", duplicates=True, jobs=2)
    assert report.duplicates == {"same": [str(tmp_path / "0.tar"), str(tmp_path / "1.tar")]}
    assert not report.ok
    assert report.to_dict()["duplicates"] == report.duplicates


def test_reports(tmp_path):
    (tmp_path / "0.tar").write_bytes(plain())
    report = tarmac.check(tmp_path / "0.tar")
    assert (report.ok, report.samples, report.bad) == (True, 3, [])
    assert str(report) == "check: 1 shard, 3 samples, 0 bad"
    (tmp_path / "1.tar").write_bytes(plain()[:1500])
    report = tarmac.check([tmp_path / "0.tar", tmp_path / "1.tar", tmp_path / "0.tar"], max_errors=0, jobs=1)
    assert not report.ok
    assert not report.complete
    assert len(report.shards) == 2


@pytest.mark.parametrize(
    "options",
    [{"decode": "gray99"}, {"regroup": True}, {"overwrite": True}, {"losses": "x"}, {"repair": "x.tar"}],
    ids=str,
)
def test_invalid_options(tmp_path, options):
    (tmp_path / "0.tar").write_bytes(plain()[:1500])
    with pytest.raises(UsageError, match=f"`{next(iter(options))}`"):
        tarmac.check(tmp_path / "0.tar", **options)


def test_shards_that_take_too_long(tmp_path):
    (url,) = make(tmp_path, 3)
    slow, options = f"pipe:sleep 600; cat {url}", {"unit_timeout": 0.5, "retries": 0, "jobs": 1}
    with pytest.raises(UnitTimedOut):
        tarmac.check([slow, url], **options)
    report = tarmac.check([slow, url], **options, max_failed_units=1)
    assert [shard.ok for shard in report.shards] == [False, True]
    assert (report.samples, report.exit_status) == (3, 3)
    assert "more than 0.5 seconds" in str(report.bad[0].error)
