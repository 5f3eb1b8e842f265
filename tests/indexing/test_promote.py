"""Types of metadata columns: the narrowest that keeps all values, and common types of shards."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.indexing.promote import as_array, as_text, common_types, promote

BIG = 1 << 63


@pytest.mark.parametrize(
    ("values", "expected", "stored"),
    [
        ([True, None, False], pa.bool_(), [True, None, False]),
        ([1, None, -BIG, BIG - 1], pa.int64(), [1, None, -BIG, BIG - 1]),
        ([1, BIG, None], pa.string(), ["1", str(BIG), None]),
        ([1, 0.5, None], pa.float64(), [1.0, 0.5, None]),
        ([0.5, 10**400], pa.string(), ["0.5", "1" + "0" * 400]),
        (["a", None, ""], pa.string(), ["a", None, ""]),
        ([True, 1], pa.string(), ["true", "1"]),
        (["é", 1, 2.0, None], pa.string(), ["é", "1", "2.0", None]),
        (["half \ud800", None], pa.string(), ["half \\ud800", None]),
        ([None, None], pa.string(), [None, None]),
        ([], pa.string(), []),
    ],
)
def test_the_type_follows_from_the_values(values, expected, stored):
    array = as_array(values)
    assert array.type == expected
    assert array.to_pylist() == stored


@settings(derandomize=True, deadline=None)
@given(st.lists(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()))
def test_no_value_is_lost(values):
    array = as_array(values)
    assert len(array) == len(values)
    for value, stored in zip(values, array.to_pylist(), strict=True):
        if isinstance(stored, str) and not isinstance(value, str):
            stored = json.loads(stored)
        assert stored == value


def test_equal_values_have_equal_text():
    assert as_text({"b": [1], "a": "é"}) == as_text({"a": "é", "b": [1]}) == '{"a": "é", "b": [1]}'
    assert as_text("text") == "text"


def shard(*values):
    return pa.record_batch({"x": as_array(values)})


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        ([shard(1), shard(2)], pa.int64()),
        ([shard(1), shard(0.5)], pa.float64()),
        ([shard(1), shard(None)], pa.int64()),
        ([shard(None), shard(1)], pa.int64()),
        ([shard(1), shard("a"), shard(2)], pa.string()),
        ([shard(True), shard(1)], pa.string()),
        ([shard(None), shard(None)], pa.null()),
    ],
)
def test_common_types_of_shards(shards, expected):
    types = common_types(shards)
    assert types == {"x": expected}
    columns = [promote(batch.column("x"), types["x"]) for batch in shards]
    assert all(column.type == expected or column.null_count == len(column) for column in columns)


def test_promoting_equals_indexing_together():
    assert promote(as_array([1, None]), pa.string()) == as_array([1, None, "a"])[:2]
    assert promote(as_array([1.0, None]), pa.string()) == as_array([1.0, None, "a"])[:2]
    assert promote(as_array([2, None]), pa.float64()) == as_array([2, None, 0.5])[:2]
    assert promote(as_array([2**60 + 1]), pa.float64()).to_pylist() == [2.0**60]
