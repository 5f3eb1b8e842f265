"""Stages as functions and classes."""

from __future__ import annotations

import pickle

import pytest

from tarmac.errors import MissingField, UsageError
from tarmac.steps.stage import Each, PipelineStage, located, pipelinefilter


@pipelinefilter
def add(source, amount, times=1):
    """Add a number."""
    for item in source:
        yield item + amount * times


class Half(Each):
    def apply(self, item):
        return None if item % 2 else item // 2


def test_functions_become_stages():
    stage = add(3, times=2)
    assert list(stage([1, 2])) == [7, 8]
    assert add.__doc__ == "Add a number."
    assert repr(stage) == "<add (3,) {'times': 2}>"


def test_each_leaves_out_none():
    assert list(Half()([1, 2, 3, 4])) == [1, 2]
    assert list(Half(threads=2)([1, 2, 3, 4])) == [1, 2]
    assert pickle.loads(pickle.dumps(Half(threads=2))).threads == 2
    with pytest.raises(UsageError, match="threads"):
        Half(threads=-1)


def test_a_stage_without_run():
    with pytest.raises(NotImplementedError, match=r"PipelineStage\b.*\brun\b"):
        PipelineStage()([])


def test_located():
    error = located(MissingField("x."), {"__key__": "k", "__url__": "u"})
    assert str(error) == 'u, sample "k": x.'
    assert str(located(MissingField("x."), (1, 2))) == "x."
    assert str(located(MissingField("x."), {"__key__": 3})) == "x."
