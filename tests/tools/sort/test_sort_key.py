"""Sort keys compare as their values do."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tarmac
from tarmac.errors import DecodeFailed, MissingField, SampleError, UsageError
from tarmac.exact.dataset import Dataset
from tarmac.tools.sort.sort_key import SortKey, number_bytes

NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(allow_nan=False),
    st.integers(2**53 - 3, 2**53 + 3),
    st.integers(-3, 3),
)


@settings(max_examples=500, derandomize=True)
@given(NUMBERS, NUMBERS)
@example(2**53, 2**53 + 1)
@example(10**400, math.inf)
@example(-(10**400), -math.inf)
@example(0.0, -0.0)
@example(-(2**70), -(2**70) - 1)
def test_numbers_of_all_kinds_have_one_order(left, right):
    a, b = number_bytes(left), number_bytes(right)
    assert (a < b, a == b) == (left < right, left == right)


def dataset(tmp_path, *samples):
    path = str(tmp_path / "a.tar")
    with tarmac.TarWriter(path, encoder=False, index=True) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"k{number}", **sample})
    return Dataset(path)


def order(by, ds):
    values = list(by.values(ds))
    assert all(isinstance(value, bytes) for value in values), values
    return sorted(range(len(values)), key=values.__getitem__)


def test_text_comes_after_numbers(tmp_path):
    values = ["a", 3, 2.5, "B", -1, True, None]
    ds = dataset(tmp_path, *({"json": json.dumps({"x": x}).encode()} for x in values[:-1]))
    assert [values[i] for i in order(SortKey("json.x"), ds)] == [-1, True, 2.5, 3, "B", "a"]
    ds = dataset(tmp_path, {"json": b'{"x": null}'}, {"json": b"{"}, {"json": b'{"x": "\\ud800"}'})
    missing, damaged, half = SortKey("json.x").values(ds)
    assert isinstance(missing, MissingField)
    assert isinstance(damaged, DecodeFailed)
    assert damaged.key == "k1"
    assert isinstance(half, bytes)


def test_a_field_of_that_name_comes_first(tmp_path):
    ds = dataset(tmp_path, {"seg.size": b"2", "seg": b"12345"}, {"seg.size": b"1", "seg": b"1"})
    assert order(SortKey("seg.size"), ds) == [1, 0]
    ds = dataset(tmp_path, {"seg": b"12345"}, {"seg": b"1"})
    assert order(SortKey("seg.size"), ds) == [1, 0]
    assert order(SortKey("SEG"), ds) == [1, 0]


def test_keys(tmp_path):
    ds = dataset(tmp_path, {"txt": b""}, {"txt": b""})
    assert list(SortKey("key", "bytes").values(ds)) == [b"k0", b"k1"]
    (error, _) = SortKey("key", "int").values(ds)
    assert isinstance(error, SampleError)
    assert error.key == "k0"


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            "int",
            [b"1", b" -7\n", b"+3", b"9" * 400],
            [b"", b"1.0", b"1_0", b"0x1", b"9" * 5000, b"\xff", "٣".encode()],
        ),
        ("float", [b"1", b".5", b"-1.e3", b"inf", b"-Infinity"], [b"", b"nan", b"1_0", b"one", b"1e", b"."]),
    ],
)
def test_what_is_a_number(tmp_path, kind, good, bad):
    values = list(
        SortKey("txt", kind).values(dataset(tmp_path, *({"txt": value} for value in [*good, *bad])))
    )
    assert [isinstance(value, bytes) for value in values] == [True] * len(good) + [False] * len(bad)
    assert len(str(values[-1])) < 400


def test_invalid_keys():
    with pytest.raises(UsageError, match="by"):
        SortKey("")
    for wrong in ({"type": "str"}, {"unique": "last"}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            SortKey("cls", **wrong)
    for wrong in ({"reverse": True}, {"type": "int"}, {"unique": "first"}):
        with pytest.raises(UsageError, match="random"):
            SortKey("random", **wrong)


def test_whole_numbers_larger_than_any_float(tmp_path):
    values = [10**400, 1, -(10**400), 10**400 + 1, 1e308]
    ds = dataset(tmp_path, *({"json": json.dumps({"x": x}).encode()} for x in values))
    assert [values[i] for i in order(SortKey("json.x"), ds)] == sorted(values)
