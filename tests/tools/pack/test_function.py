"""Samples of a function: run again, written once."""

from __future__ import annotations

import os

import pytest

import tarmac
from tarmac.errors import EncodeFailed, JobError, JobMismatch, MissingField, UrlError
from tarmac.jobs.engines.local import LocalEngine
from tarmac.tools.output import Output
from tarmac.tools.pack.function import pack_function
from tarmac.tools.pack.pack import Making
from tarmac.tools.rewrite import Run

RUN = Run(LocalEngine(1))
MODULE = """
import json, os
def make(count="10"):
    for n in range(int(count)):
        yield {"__key__": f"{n:03d}", "cls": n, "json": {"n": n}, "txt": "x", "__meta__": 1}
        if n == int(os.environ.get("BREAK", -1)):
            raise RuntimeError("out of luck")
def other():
    yield from ({"__key__": f"k{n}", "txt": "y"} for n in range(10))
def bad():
    yield {"__key__": "a", "cls": 1}
    yield {"__key__": "b", "cls": "not encodable"[0:0] or 0.5}
    yield {"__key__": "c", "cls": 3}
three = 3
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "samples_of_mine.py"
    path.write_text(MODULE)
    return str(path)


def to(tmp_path, **more):
    return Output(str(tmp_path / "out/x-{i}.tar"), **({"max_samples": 4} | more))


def found(tmp_path):
    names = sorted((tmp_path / "out").glob("*.tar"))
    return [[sample["__key__"] for sample in tarmac.read(str(name))] for name in names]


def test_samples(module, tmp_path):
    report = pack_function(f"{module}:make", ["9"], to(tmp_path), RUN)
    assert (report.units, report.read, report.written, report.failed) == (3, 9, 9, 0)
    assert found(tmp_path) == [["000", "001", "002", "003"], ["004", "005", "006", "007"], ["008"]]
    first = next(iter(tarmac.read(str(tmp_path / "out/x-0.tar"))))
    assert (first["cls"], first["json"], first["txt"]) == (b"0", b'{"n": 0}', b"x")
    again = pack_function(f"{module}:make", ["9"], to(tmp_path), RUN)
    assert (again.done, again.kept, again.written) == (0, 3, 9)
    assert "nothing to do" in str(again)


def test_what_is_there_is_not_written_again(module, tmp_path, monkeypatch):
    monkeypatch.setenv("BREAK", "6")
    with pytest.raises(JobError, match="RuntimeError: out of luck"):
        pack_function(f"{module}:make", [], to(tmp_path), RUN)
    assert found(tmp_path) == [["000", "001", "002", "003"]]
    before = os.stat(tmp_path / "out/x-0.tar")
    monkeypatch.delenv("BREAK")
    report = pack_function(f"{module}:make", [], to(tmp_path), RUN)
    assert (report.done, report.kept) == (2, 1)
    assert os.stat(tmp_path / "out/x-0.tar") == before
    (tmp_path / "out/x-1.tar").unlink()
    assert pack_function(f"{module}:make", [], to(tmp_path), RUN).done == 1
    assert [len(keys) for keys in found(tmp_path)] == [4, 4, 2]


def test_another_function_is_noticed(module, tmp_path):
    pack_function(f"{module}:make", [], to(tmp_path), RUN)
    with pytest.raises(JobMismatch, match="other options"):
        pack_function(f"{module}:other", [], to(tmp_path), RUN)


@pytest.mark.parametrize(("change", "what"), [("range(8)", "fewer"), ("range(3, 13)", "others than before")])
def test_a_function_that_changes_its_mind(tmp_path, monkeypatch, change, what):
    text = 'def f():\n    yield from ({"__key__": f"{n:03d}", "txt": "x"} for n in RANGE)\n'
    (tmp_path / "first.py").write_text(text.replace("RANGE", "range(10)"))
    (tmp_path / "second.py").write_text(text.replace("RANGE", change))
    monkeypatch.setattr("tarmac.tools.pack_function.Making.options", lambda _: {"py": "same"})
    pack_function(f"{tmp_path}/first.py:f", [], to(tmp_path), RUN)
    with pytest.raises(JobMismatch, match=what):
        pack_function(f"{tmp_path}/second.py:f", [], to(tmp_path), RUN)


def test_errors(module, tmp_path):
    with pytest.raises(EncodeFailed, match='sample "b"'):
        pack_function(f"{module}:bad", [], to(tmp_path), RUN)
    assert found(tmp_path) == []
    making = Making(on_error="skip", require=frozenset({"cls"}))
    report = pack_function(f"{module}:bad", [], to(tmp_path, overwrite=True), RUN, making=making)
    assert (report.read, report.written, report.failed) == (3, 2, 1)
    with pytest.raises(MissingField, match="no jpg"):
        pack_function(f"{module}:other", [], to(tmp_path, overwrite=True), RUN,
                      making=Making(require=frozenset({"jpg"})))  # fmt: skip


@pytest.mark.parametrize("spec", ["nothing", "no.such.module:f", "{module}:absent", "{module}:three"])
def test_what_is_no_function(module, tmp_path, spec):
    with pytest.raises(UrlError, match="--py"):
        pack_function(spec.format(module=module), [], to(tmp_path), RUN)


def test_what_a_stream_cannot_do(module, tmp_path):
    for making in (Making(shuffle=True), Making(part="a=1"), Making(total_shards=2)):
        with pytest.raises(UrlError, match="as they come"):
            pack_function(f"{module}:make", [], to(tmp_path), RUN, making=making)
    with pytest.raises(UrlError, match="dry"):
        pack_function(f"{module}:make", [], to(tmp_path), Run(LocalEngine(1), dry=True))
    with pytest.raises(UrlError, match="several shards"):
        pack_function(f"{module}:make", [], Output(str(tmp_path / "x.tar"), max_samples=4), RUN)
