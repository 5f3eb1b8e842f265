"""Where joined fields come from."""

from __future__ import annotations

import os

import numpy as np
import pytest

import tarmac
from tarmac.errors import EncodeFailed, NotFound, UrlError
from tarmac.tools.join import sources as join_sources
from tarmac.tools.join.sources import open_source


def at(*numbers):
    return np.array(numbers, np.int64)


def test_a_table(tmp_path):
    (tmp_path / "t.jsonl").write_text(
        '{"key": "a", "txt": "xy", "n": 1}\n{"key": "b", "txt": null}\n{"key": "c"}\n'
    )
    source = open_source([str(tmp_path / "t.jsonl")], str(tmp_path / "w"), prefix="p.")
    assert (source.size, list(source.keys())) == (3, ["a", "b", "c"])
    assert source.fields(at(2, 0, 0)) == [
        {},
        {"p.txt": b"xy", "p.n.json": b"1"},
        {"p.txt": b"xy", "p.n.json": b"1"},
    ]
    assert source.fields(at()) == []
    assert source.sizes(at(0, 1, 0)).tolist() == [3, 0, 3]
    before = source.fingerprint()
    (tmp_path / "t.jsonl").write_text('{"key": "a"}\n')
    assert open_source([str(tmp_path / "t.jsonl")], str(tmp_path / "v")).fingerprint() != before


def test_shards(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    with tarmac.TarWriter(str(tmp_path / "a.tar"), encoder=False) as writer:
        writer.write({"__key__": "a", "txt": b"xy", "cls": b"1"})
        writer.write({"__key__": "b", "txt": b""})
    source = open_source([str(tmp_path / "a.tar")], str(tmp_path / "w"), prefix="p.")
    assert (source.size, list(source.keys())) == (2, ["a", "b"])
    assert source.fields(at(1, 0)) == [{"p.txt": b""}, {"p.txt": b"xy", "p.cls": b"1"}]
    assert source.sizes(at(1, 0)).tolist() == [0, 3]


def test_mistakes(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("key,a b\nx,1\n")
    (tmp_path / "u.tsv").write_text("key\ta\nx\t1\n")
    (tmp_path / "v.jsonl").write_text('{"key": "k", "a": "x", "a.txt": "y"}\n')
    (tmp_path / "w.jsonl").write_text('{"key": "k", "json": NaN}\n')
    paths = {
        name: str(tmp_path / name) for name in ("t.csv", "u.tsv", "v.jsonl", "w.jsonl", "absent.csv", "a.tar")
    }
    home = str(tmp_path / "home")

    def opened(*names, number=iter(range(99)), **more):
        return open_source([paths[name] for name in names], f"{home}{next(number)}", **more)

    with pytest.raises(UrlError, match=r"cannot be a field called 'a b.txt'.*--as json"):
        opened("t.csv")
    assert opened("t.csv", as_="json").fields(at(0)) == [{"json": b'{"key": "x", "a b": "1"}'}]
    with pytest.raises(UrlError, match="different kinds"):
        opened("t.csv", "u.tsv")
    with pytest.raises(UrlError, match="cannot be joined together"):
        opened("t.csv", "a.tar")
    with pytest.raises(UrlError, match="have the same name"):
        opened("v.jsonl")
    with pytest.raises(EncodeFailed) as caught:
        opened("w.jsonl")
    assert caught.value.key == "k"
    with pytest.raises(NotFound):
        opened("absent.csv")
    monkeypatch.setattr(join_sources, "MOST_COLUMNS", 0)
    with pytest.raises(UrlError, match="too many"):
        opened("u.tsv")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_other_bytes_in_the_same_places_are_noticed(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    path = tmp_path / name

    def fingerprint(home, text):
        with tarmac.TarWriter(str(path), encoder=False) as writer:
            writer.write({"__key__": "a", "txt": text})
        os.utime(path, ns=(0, len(home) * 10**9))
        return open_source([str(path)], str(tmp_path / home)).fingerprint()

    before = fingerprint("1", b"old")
    assert fingerprint("1", b"old") == before
    assert fingerprint("22", b"new") != before


def test_whole_rows_stay_as_they_are(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"Name": "x", "key": 7, "name": 1}\n{"__key__": "b"}\n')
    (tmp_path / "t.csv").write_text("key,X,x\na,1,2\n")
    source = open_source([str(tmp_path / "t.jsonl")], str(tmp_path / "v"), as_="json")
    assert list(source.keys()) == ["7", "b"]
    assert source.fields(at(0, 1)) == [
        {"json": b'{"Name": "x", "key": 7, "name": 1}'},
        {"json": b'{"__key__": "b"}'},
    ]
    source = open_source([str(tmp_path / "t.csv")], str(tmp_path / "w"), as_="json")
    assert source.fields(at(0)) == [{"json": b'{"key": "a", "X": "1", "x": "2"}'}]
