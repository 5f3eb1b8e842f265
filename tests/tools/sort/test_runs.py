"""Runs: a stable sort in bounded memory."""

from __future__ import annotations

import os
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.tools.sort.runs import Runs


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.binary(max_size=2), max_size=60), st.booleans(), st.sampled_from([1, 400, 1 << 20]))
def test_sorted_and_stable_in_any_memory(tmp_path_factory, values, reverse, memory):
    runs = Runs(str(tmp_path_factory.mktemp("runs")), memory, reverse=reverse)
    for number, value in enumerate(values):
        runs.add(value, number * 3)
    assert list(runs) == sorted(
        ((value, number * 3) for number, value in enumerate(values)), key=lambda row: row[0], reverse=reverse
    )
    assert list(runs.numbers()) == [number for _, number in runs]


def test_many_runs_are_merged_in_between(tmp_path, monkeypatch):
    monkeypatch.setattr("tarmac.tools.sort.runs.MAX_RUNS", 4)
    rng = random.Random(1)
    values = [b"%d" % rng.randrange(30) for _ in range(200)]
    runs = Runs(str(tmp_path), 500)
    for number, value in enumerate(values):
        runs.add(value, number)
    assert 0 < len(os.listdir(tmp_path)) < 4
    rows = list(runs)
    assert [number for _, number in rows] == sorted(range(200), key=values.__getitem__)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=2), max_size=20), max_size=6),
    st.booleans(),
    st.sampled_from([1, 400, 1 << 20]),
)
def test_files_of_others_are_merged(tmp_path_factory, groups, reverse, memory):
    directory = tmp_path_factory.mktemp("runs")
    runs, rows = Runs(str(directory), memory, reverse=reverse), []
    for number, values in enumerate(groups):
        (directory / str(number)).mkdir()
        other = Runs(str(directory / str(number)), 500, reverse=reverse)
        for value in values:
            other.add(value, len(rows))
            rows.append((value, len(rows)))
        for file in other.files():
            runs.add_file(file)
    assert list(runs) == sorted(rows, key=lambda row: row[0], reverse=reverse)
    assert list(runs.numbers()) == [number for _, number in runs]
