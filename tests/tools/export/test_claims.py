"""Names that are taken once."""

from __future__ import annotations

import multiprocessing

import pytest

from harness.waiting import TIMEOUT
from tarmac.errors import WriteError
from tarmac.tools.export.claims import Claims


def test_a_name_is_taken_once(tmp_path):
    for path in ("", str(tmp_path / "names")):
        claims = Claims(path)
        assert claims.take(["a/b.txt", "a/b.cls"]) is None
        assert claims.take(["c", "a/b.cls"]) == "a/b.cls"
        assert claims.take(["x\udc80", "é"]) is None
        assert claims.take(["twice", "twice"]) == "twice"
        assert claims.take([]) is None
        claims.close()
    again = Claims(str(tmp_path / "names"))
    assert again.take(["a/b.txt"]) == "a/b.txt"
    again.close()
    alone = Claims()
    assert alone.take(["a/b.txt"]) is None
    alone.close()


def _take_all(path, begin, results):
    claims = Claims(path)
    begin.wait(300)
    results.put(sum(claims.take([f"{number}"]) is None for number in range(200)))
    claims.close()


def test_processes_share_them(tmp_path):
    context = multiprocessing.get_context("spawn")
    begin, results = context.Barrier(3), context.Queue()
    arguments = (str(tmp_path / "names"), begin, results)
    processes = [context.Process(target=_take_all, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    won = [results.get(timeout=TIMEOUT) for _ in processes]
    for process in processes:
        process.join(TIMEOUT)
    assert sum(won) == 200


def test_no_place_for_them(tmp_path):
    with pytest.raises(WriteError, match=r"cannot be kept for comparison.*TMPDIR"):
        Claims(str(tmp_path / "absent/names"))
    (tmp_path / "other").write_bytes(b"no database" * 100)
    with pytest.raises(WriteError, match="cannot be kept for comparison"):
        Claims(str(tmp_path / "other"))
