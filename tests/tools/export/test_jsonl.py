"""JSON lines."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tarmac.errors import BadName, DecodeFailed
from tools.export.samples import TEXT, fields, odd, run, write


def lines(path):
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def test_every_kind_of_field(tmp_path):
    report = run(write(tmp_path, [2, 1]), "jsonl", tmp_path / "x.jsonl")
    assert (report.read, report.written, report.units) == (3, 3, 1)
    rows = lines(tmp_path / "x.jsonl")
    assert [list(line) for line in rows] == [["__key__", "cls", "png", "txt", "json"]] * 3
    for number, line in enumerate(rows):
        assert line["__key__"] == f"k/{number:03d}"
        assert (line["cls"], line["txt"]) == (number, f"{TEXT}{number}")
        assert line["json"] == {"n": number, "é": [1, None, "x\ny"]}
        assert base64.b64decode(line["png"], validate=True) == fields(number)["png"]


def test_json_is_not_changed(tmp_path):
    text = b'{"a": 0.10000000000000000001, "a": 12345678901234567890123, "b": "\\ud800"}'
    run(odd(tmp_path, [("a.json", text)]), "jsonl", tmp_path / "x.jsonl")
    assert (tmp_path / "x.jsonl").read_bytes() == b'{"__key__": "a", "json": ' + text + b"}\n"


def test_odd_keys_and_fields(tmp_path):
    shard = odd(tmp_path, [('q"\n€.t\udc80', b"1")])
    run(shard, "jsonl", tmp_path / "x.jsonl", kinds={"t\udc80": "int"})
    assert lines(tmp_path / "x.jsonl") == [{"__key__": 'q"\n€', "t\udc80": 1}]
    with pytest.raises(BadName, match=r"other\.tar"):
        run(odd(tmp_path, [("a\udc80.txt", b"")], "other.tar"), "jsonl", tmp_path / "y.jsonl")
    run(shard, "jsonl", tmp_path / "z.jsonl", key=False)
    assert lines(tmp_path / "z.jsonl") == [{"t\udc80": "MQ=="}]


def test_invalid_fields(tmp_path):
    shard = odd(tmp_path, [("a.cls", b"1"), ("b.cls", b"x"), ("c.cls", b"3")])
    with pytest.raises(DecodeFailed, match=r'odd\.tar, sample "b".*"cls"'):
        run(shard, "jsonl", tmp_path / "x.jsonl")
    assert not (tmp_path / "x.jsonl").exists()
    report = run(shard, "jsonl", tmp_path / "y.jsonl", on_error="skip")
    assert (report.read, report.written, report.failed, report.ok) == (3, 2, 1, False)
    assert 'sample "b"' in report.errors[0]
    assert [line["cls"] for line in lines(tmp_path / "y.jsonl")] == [1, 3]
    run(shard, "jsonl", tmp_path / "z.jsonl", kinds={"cls": "text"})
    assert [line["cls"] for line in lines(tmp_path / "z.jsonl")] == ["1", "x", "3"]
