"""Follow the hints of keys, fields, writers and splits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tarmac
from harness.commands import run
from harness.hints import follows, hinted
from harness.shards import plain


@pytest.fixture(autouse=True)
def shard(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("x.tar").write_bytes(plain())
    return "x.tar"


def write(*keys: str, field: str = "txt", value: object = "1", **options) -> list[str]:
    """Write samples and return the keys that are read back."""
    with tarmac.TarWriter("new.tar", **options) as writer:
        for key in keys:
            writer.write({"__key__": key, field: value})
    reading = {name: options[name] for name in ("split_name",) if name in options}
    return [sample["__key__"] for sample in tarmac.read("new.tar", **reading)]


@follows("fields={}")
def test_a_field_that_no_sample_has(shard):
    with hinted("fields={}") as caught:
        list(tarmac.read(shard, fields=["nothing"]))
    assert list(tarmac.read(shard, **eval(f"dict({caught.value.hint})")))


@follows('key.replace(".", "_"), or write and read with split_name=tarmac.last_dot.')
def test_a_key_with_a_dot():
    key = "v1.2"
    with hinted('key.replace(".", "_"), or write and read with split_name=tarmac.last_dot.'):
        write(key)
    assert write(key.replace(".", "_")) == ["v1_2"]
    assert write(key, split_name=tarmac.last_dot) == [key]


@follows("split_name=tarmac.last_dot, if keys contain dots.")
def test_a_field_with_a_blank(capsys):
    Path("x.tar").write_bytes(plain([("holiday.beach 1.jpg", b"x")]))
    with hinted("split_name=tarmac.last_dot, if keys contain dots."):
        tarmac.copy("x.tar", "out.tar", jobs=1)
    assert tarmac.copy("x.tar", "out.tar", jobs=1, split_name=tarmac.last_dot).written == 1
    assert run(["copy", "x.tar", "-o", "flag.tar", "-j", "1"]) == 1
    assert "Try: --split-name last-dot, if keys contain dots." in capsys.readouterr().err
    assert run(["copy", "x.tar", "-o", "flag.tar", "-j", "1", "--split-name", "last-dot"]) == 0


@follows("keys must be unique: tarmac copy --rekey '{i:09d}'.")
def test_a_duplicate_key(shard):
    with hinted("keys must be unique: tarmac copy --rekey '{i:09d}'."):
        write("a", "a")
    assert write("a", "b") == ["a", "b"]
    shutil.copy(shard, "y.tar")
    with hinted("keys must be unique: tarmac copy --rekey '{i:09d}'."):
        tarmac.copy(["x.tar", "y.tar"], "both.tar", jobs=1)
    assert run(["copy", "x.tar", "y.tar", "-o", "both.tar", "-j", "1", "--rekey", "{i:09d}"]) == 0
    assert len(list(tarmac.read("both.tar"))) == 6


@follows("encoder=True encodes Python objects.")
def test_an_object_without_an_encoder():
    with hinted("encoder=True encodes Python objects."):
        write("a", field="cls", value=7, encoder=False)
    assert write("a", field="cls", value=7, encoder=True) == ["a"]


@follows('`format` "auto", or a shorter key.')
def test_a_long_name():
    key = "k" * 120
    with hinted('`format` "auto", or a shorter key.'):
        write(key, format="ustar")
    assert write(key, format="auto") == [key]
    assert write(key[:90], format="ustar") == [key[:90]]


@follows("train-{i:06d}.tar", "use {i:06d}.")
@pytest.mark.parametrize(
    ("pattern", "hint"), [("train.tar", "train-{i:06d}.tar"), ("train-{n}.tar", "use {i:06d}.")]
)
def test_a_pattern_of_shards(pattern, hint):
    with hinted(hint):
        tarmac.ShardWriter(pattern)
    with tarmac.ShardWriter("train-{i:06d}.tar", max_samples=1) as shards:
        for key in ("a", "b"):
            shards.write({"__key__": key, "txt": "1"})
    assert sorted(path.name for path in Path().glob("train*")) == ["train-000000.tar", "train-000001.tar"]


@follows("rest={} for the other samples.")
def test_shares_that_leave_a_rest(shard, capsys):
    with hinted("rest=0.1 for the other samples.") as caught:
        tarmac.copy(shard, "{split}.tar", split={"train": 0.9}, jobs=1)
    rest = float(caught.value.hint.partition("=")[2].split()[0])
    assert tarmac.copy(shard, "{split}.tar", split={"train": 0.9, "rest": rest}, jobs=1).written == 3
    assert run(["copy", shard, "-o", "f-{split}.tar", "-j", "1", "--split", "train=0.9"]) == 2
    assert "Try: rest=0.1 for the other samples." in capsys.readouterr().err
    assert run(["copy", shard, "-o", "f-{split}.tar", "-j", "1", "--split", "train=0.9,rest=0.1"]) == 0


@follows("`repeated` keep, if each of them begins a whole sample.")
def test_a_duplicate_field(capsys):
    Path("x.tar").write_bytes(plain([("a.txt", b"1"), ("a.txt", b"2")]))
    with hinted("`repeated` keep, if each of them begins a whole sample."):
        list(tarmac.read("x.tar"))
    assert [sample["txt"] for sample in tarmac.read("x.tar", repeated="keep")] == [b"1", b"2"]
    assert run(["show", "x.tar"]) == 1
    assert "Try: --repeated keep, if each of them begins a whole sample." in capsys.readouterr().err
    assert run(["show", "x.tar", "--repeated", "keep"]) == 0
