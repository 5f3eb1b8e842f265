"""Checking shards: every shard gets its verdict."""

from __future__ import annotations

from harness.shards import plain
from tarmac.errors import MissingField, NotFound, SplitSample, Truncated
from tarmac.tools.check import check


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


def test_skipped_members_are_told(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("README", b""), ("a.jpg", b"")]))
    (result,) = check(path)
    assert result.ok
    assert result.skipped == {"no field in name": 1}
