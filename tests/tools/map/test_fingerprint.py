"""Functions of the same source that were given other values are other functions, in every session."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import pytest

import tarmac
from tarmac.errors import JobMismatch
from tarmac.tools.map.functions import Function
from tools.shards import make as make_shards

SAMPLE = {"__key__": "a", "__url__": "x.tar", "cls": b"7"}


def resize(sample, size):
    return {"x": b"%d" % size}


def closure(size):
    calls = 0

    def function(sample):
        nonlocal calls
        calls += 1
        return {"x": b"%d" % size}

    return function


class Resize:
    def __init__(self, size, options=(), seen=()):
        self._size, self.options, self.seen = size, dict(options), list(seen)
        self.calls = 0

    def __call__(self, sample):
        self.calls += 1
        self.seen.append(sample["__key__"])
        return {"x": b"%d" % self._size}


@pytest.mark.parametrize(
    "make",
    [
        lambda size: partial(resize, size=size),
        lambda size: partial(resize, size=[{"height": (size, 1.5)}, {"a", "b", "c"}]),
        closure,
        Resize,
        lambda size: Resize(1, {"height": size}),
        lambda size: Resize(size).__call__,
        lambda size: partial(map, closure(size)),
        lambda size: partial(map, lambda sample: resize(sample, size)),
    ],
)
def test_what_a_function_was_given_counts(tmp_path, make):
    """Other arguments under the same source are refused, and what the function counts is not looked at."""
    one = make(1)
    before = Function(one).options()
    if not isinstance(one, partial):
        one(SAMPLE)
    assert before == Function(one).options() == Function(make(1)).options() != Function(make(2)).options()


def test_other_arguments_are_refused_by_name(tmp_path):
    urls = make_shards(tmp_path, 2, 2)
    tarmac.map(urls, f"{tmp_path}/out/", Resize(1), jobs=1)
    (tmp_path / "out" / "in-1.tar").unlink()
    with pytest.raises(JobMismatch, match="Resize has other arguments"):
        tarmac.map(urls, f"{tmp_path}/out/", Resize(2), jobs=1)
    assert tarmac.map(urls, f"{tmp_path}/out/", Resize(1), jobs=1).done == 1


def test_a_version_speaks_for_an_object():
    class Versioned(Resize):
        version = 1

    assert Function(Versioned(1)).options() == Function(Versioned(2)).options()


def test_the_job_of_an_earlier_version_continues(tmp_path):
    urls = make_shards(tmp_path, 2, 2)
    tarmac.map(urls, f"{tmp_path}/out/", Resize(1), jobs=1)
    head = tmp_path / "out" / ".tarmac" / "map.job" / "job.json"
    stored = json.loads(head.read_text())
    assert " arguments=" in stored["options"]["py"]
    stored["options"]["py"] = stored["options"]["py"].partition(" arguments=")[0]
    head.write_text(json.dumps(stored))
    assert tarmac.map(urls, f"{tmp_path}/out/", Resize(2), jobs=1).kept == 2


NOTEBOOK = """
import sys
from tarmac.tools.map.functions import Function

del sys.modules["__main__"].__file__  # as in a notebook
SIZE = {size}
seen = []

def function(sample, more=(1, "{more}")):
    seen.append(sample["__key__"])
    return {{name: (lambda x: x[:SIZE])(value) for name, value in sample.items()}}

print(Function(function).options()["py"])
"""


@pytest.mark.processes
def test_a_function_of_a_notebook_is_the_same_in_the_next_session(tmp_path):
    def options(size=1, more="a"):
        (tmp_path / "cells.py").write_text(NOTEBOOK.format(size=size, more=more))
        done = subprocess.run(
            [sys.executable, "cells.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert options() == options()
    assert len({options(), options(size=2), options(more="b")}) == 3
