"""Pack generated samples: generated again, but written once."""

from __future__ import annotations

import os
import sys

import pytest

import tarmac
from tarmac.errors import EncodeFailed, JobError, JobMismatch, MissingField, UsageError

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
    yield {"__key__": "b", "cls": 0.5}
    yield {"__key__": "c", "cls": 3}
three = 3
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return str(path)


def pack(sources, folder, **options):
    return tarmac.pack(sources, f"{folder}/out/x-{{i}}.tar", **({"max_samples": 4} | options))


def keys(folder):
    paths = sorted((folder / "out").glob("*.tar")) if (folder / "out").exists() else []
    return [[sample["__key__"] for sample in tarmac.read(str(path))] for path in paths]


def test_a_named_function_and_its_arguments(module, tmp_path):
    report = pack(["9"], tmp_path, function=f"{module}:make")
    assert (report.units, report.read, report.written, report.failed) == (3, 9, 9, 0)
    assert keys(tmp_path) == [["000", "001", "002", "003"], ["004", "005", "006", "007"], ["008"]]
    first = next(iter(tarmac.read(str(tmp_path / "out/x-0.tar"))))
    assert (first["cls"], first["json"], first["txt"]) == (b"0", b'{"n": 0}', b"x")
    again = pack(["9"], tmp_path, function=f"{module}:make")
    assert (again.done, again.kept, again.written) == (0, 3, 9)


def samples():
    return ({"__key__": f"{number}", "cls": number} for number in range(5))


@pytest.mark.parametrize("generated", [samples, samples(), list(samples())])
def test_functions_and_iterables(tmp_path, generated):
    assert pack(generated, tmp_path).written == 5
    assert keys(tmp_path) == [["0", "1", "2", "3"], ["4"]]
    if not hasattr(generated, "__next__"):
        assert pack(generated, tmp_path).kept == 2


def test_existing_shards_are_not_written_again(module, tmp_path, monkeypatch):
    monkeypatch.setenv("BREAK", "6")
    with pytest.raises(JobError, match="RuntimeError: out of luck"):
        pack([], tmp_path, function=f"{module}:make")
    assert keys(tmp_path) == [["000", "001", "002", "003"]]
    before = os.stat(tmp_path / "out/x-0.tar")
    monkeypatch.delenv("BREAK")
    report = pack([], tmp_path, function=f"{module}:make")
    assert (report.done, report.kept) == (2, 1)
    assert os.stat(tmp_path / "out/x-0.tar") == before
    (tmp_path / "out/x-1.tar").unlink()
    assert pack([], tmp_path, function=f"{module}:make").done == 1
    assert [len(each) for each in keys(tmp_path)] == [4, 4, 2]


def test_another_function_is_another_job(module, tmp_path):
    pack([], tmp_path, function=f"{module}:make")
    with pytest.raises(JobMismatch, match="py"):
        pack([], tmp_path, function=f"{module}:other")


@pytest.mark.parametrize("numbers", [range(8), range(3, 13)])
def test_other_samples_than_before_are_an_error(tmp_path, numbers):
    pack([{"__key__": f"{n:03d}", "txt": "x"} for n in range(10)], tmp_path)
    with pytest.raises(JobMismatch, match="out"):
        pack([{"__key__": f"{n:03d}", "txt": "x"} for n in numbers], tmp_path)


def test_bad_samples(module, tmp_path):
    with pytest.raises(EncodeFailed, match='sample "b"'):
        pack([], tmp_path, function=f"{module}:bad")
    assert keys(tmp_path) == []
    options = {"function": f"{module}:bad", "overwrite": True, "on_error": "skip", "require": ["cls"]}
    report = pack([], tmp_path, **options)
    assert (report.read, report.written, report.failed) == (3, 2, 1)
    with pytest.raises(MissingField, match=r'sample "k0".* jpg'):
        pack([], tmp_path, function=f"{module}:other", overwrite=True, require=["jpg"])


def broken():
    yield {"__key__": "a", "txt": "x"}
    raise KeyError("b")


@pytest.mark.parametrize(
    ("generated", "what"),
    [(sys.exit, "SystemExit"), (broken, "KeyError"), ([3], "sample 0"), ([{}], "sample 0"),
     ([{"__key__": 3}], "sample 0")],
)  # fmt: skip
def test_functions_that_fail(tmp_path, generated, what):
    with pytest.raises(JobError, match=what):
        pack(generated, tmp_path)


@pytest.mark.parametrize("spec", ["nothing", "no.such.module:f", "{module}:absent", "{module}:three"])
def test_invalid_functions(module, tmp_path, spec):
    with pytest.raises(UsageError, match="function"):
        pack([], tmp_path, function=spec.format(module=module))


@pytest.mark.parametrize(
    "options",
    [{"shuffle": True}, {"split": {"a": 1}}, {"task": (0, 2)}, {"format": "csv"}, {"key": "k"},
     {"columns": ["a"]}, {"files": {"a": "b"}}, {"base": "."}, {"dry_run": True}],
)  # fmt: skip
def test_arguments_that_do_not_apply(tmp_path, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        pack(samples, tmp_path, **options)


def test_several_shards_need_a_number(tmp_path):
    with pytest.raises(UsageError, match=r"x\.tar"):
        tarmac.pack(samples, str(tmp_path / "x.tar"), max_samples=4)
