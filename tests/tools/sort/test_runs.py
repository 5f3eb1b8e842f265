"""Sorting more than fits into memory."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.tools.sort import runs as sort_runs
from tarmac.tools.sort.runs import Runs, write_numbers


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.binary(max_size=2), max_size=60), st.booleans(), st.sampled_from([1, 400, 1 << 20]))
def test_sorted_and_stable_in_any_memory(tmp_path_factory, values, reverse, memory):
    runs = Runs(str(tmp_path_factory.mktemp("runs")), memory, reverse=reverse)
    for number, value in enumerate(values):
        runs.add(value, number * 3)
    assert list(runs) == sorted(
        ((value, number * 3) for number, value in enumerate(values)), key=lambda row: row[0], reverse=reverse
    )


def test_many_runs_are_merged_in_between(tmp_path, monkeypatch):
    monkeypatch.setattr(sort_runs, "MOST_RUNS", 4)
    rng = random.Random(1)
    values = [b"%d" % rng.randrange(30) for _ in range(200)]
    runs = Runs(str(tmp_path), 500)
    for number, value in enumerate(values):
        runs.add(value, number)
    assert 0 < runs.spilled < 4
    assert len(os.listdir(tmp_path)) == runs.spilled
    rows = list(runs)
    assert [number for _, number in rows] == sorted(range(200), key=values.__getitem__)


@pytest.mark.parametrize("count", [0, 1, 1 << 16, (1 << 16) + 1])
def test_numbers_in_a_file(tmp_path, count):
    path = str(tmp_path / "x.npy")
    write_numbers(path, iter(range(count)))
    found = np.load(path, mmap_mode="r") if count else np.load(path)
    assert found.dtype == np.int64
    assert np.array_equal(found, np.arange(count))
    assert os.listdir(tmp_path) == ["x.npy"]
