"""Evaluating conditions: types, nulls, and the limits of numbers and patterns."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import IndexingError
from tarmac.indexing.where import parse_where

BIG = (1 << 53) + 1
TABLE = pa.table(
    {
        "n": pa.array([1, None, 3, BIG], pa.int64()),
        "x": pa.array([0.5, float("nan"), None, 1e300], pa.float64()),
        "s": pa.array(["a", None, "B", "ab\nc"], pa.string()),
        "t": pa.array([True, False, None, True], pa.bool_()),
        "none": pa.array([None] * 4, pa.string()),
        "u": pa.array([1, 2, 3, (1 << 64) - 1], pa.uint64()),
        "d": pa.array(["p", "q", None, "p"]).dictionary_encode(),
        "big": pa.array(["p", "q", None, "p"], pa.large_string()),
        "bytes": pa.array([b"a", b"\xff", None, b"b"], pa.binary()),
        "list": pa.array([[1], [], None, [2]]),
        "f32": pa.array([0.5, 1, None, 2], pa.float32()),
        "i8": pa.array([1, -1, None, 127], pa.int8()),
    }
)


def rows(text, table=TABLE, **options):
    mask = parse_where(text).mask(table, **options)
    assert mask.dtype == bool
    assert mask.shape == (table.num_rows,)
    return np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n >= 2", [2, 3]),
        ("n > 0.5", [0, 2, 3]),
        (f"n = {BIG}", [3]),
        (f"n > {BIG - 1}", [3]),
        ("n < 99999999999999999999", [0, 2, 3]),
        ("x = 0.5", [0]),
        ("x != 0.5", [3]),
        ("not x = 0.5", [3]),
        ("x is null", [1, 2]),
        ("x * 1e300 > 1e308", [3]),
        ("x * 1e300 - x * 1e300 is null", [1, 2, 3]),
        ("n * n * n * n * n > 1e50", [3]),
        ("n / 2 = 1.5", [2]),
        ("n / (n - 1) is null", [0, 1]),
        ("n / 0 > 0 or n / 0 <= 0", []),
        ("1 / 2 > 0.4", [0, 1, 2, 3]),
        ("-n < -2 and +n < 5", [2]),
        ("s < 'a'", [2]),
        ("s >= 'a' and s <= 'b'", [0, 3]),
        ("length(s) = 4", [3]),
        ("lower(s) = 'b'", [2]),
        ("t", [0, 3]),
        ("not t", [1]),
        ("t = false", [1]),
        ("t is null", [2]),
        ("true", [0, 1, 2, 3]),
        ("null or t", [0, 3]),
        ("null", []),
        ("null is null", [0, 1, 2, 3]),
        ("n = null", []),
        ("n is not null and null is null", [0, 2, 3]),
        ("n in (3, 1.0, 2.5, 1e30)", [0, 2]),
        ("n in (3.5, 0.5)", []),
        ("n not in (1, 2.5)", [2, 3]),
        ("n not in (1, null)", []),
        ("n in (null)", []),
        ("x in (0.5, 7)", [0]),
        ("x in (1, 2)", []),
        ("s in ('a', 'B')", [0, 2]),
        ("t in (true)", [0, 3]),
        ("5 in (5, 6)", [0, 1, 2, 3]),
        ("none = 5", []),
        ("none = 'x' or none > 3", []),
        ("none in (1)", []),
        ("none + 1 is null", [0, 1, 2, 3]),
        ("none is null and none or t", [0, 3]),
        ("length(none) > 0", []),
        ("none like '%'", []),
        ("s like '%'", [0, 2, 3]),
        ("s like 'a%'", [0, 3]),
        ("s like 'A%'", []),
        ("s ilike 'A%'", [0, 3]),
        ("s like '____'", [3]),
        ("s not like 'a%'", [2]),
        ("n between 1 and 3", [0, 2]),
        ("n not between 1 and 3", [3]),
        ("n between null and 2", []),
        ("n not between null and 2", [2, 3]),
        ("s between 'a' and 'b'", [0, 3]),
        ("(n > 1) = t", [3]),
        ("u > 5", [3]),
        ("d = 'p' and big = 'p'", [0, 3]),
        (r"bytes = 'a' or bytes = '\xff'", [0, 1]),
        ("f32 = 0.5", [0]),
        ("i8 < 0", [1]),
    ],
)
def test_selected_rows(text, expected):
    assert rows(text) == expected
    assert rows(text, TABLE.to_batches()[0]) == expected
    assert rows(text, pa.concat_tables([TABLE.slice(0, 2), TABLE.slice(2)])) == expected
    assert rows(text, TABLE.slice(0, 0)) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n = 'one'", "^n .*'one' .*, at character 1 "),
        ("t and s > 3", "^s .* 3 .*, at character 7 "),
        ("t = 1", "^t .* 1 .*, at character 1 "),
        ("n between 1 and 'x'", "^n .*'x' .*, at character 1 "),
        ("n in (1, 'x')", "^n .*'x' .*, at character 1 "),
        ("s + 1 > 0", "^s .*, at character 1 "),
        ("-s > 0", "^s .*, at character 2 "),
        ("n", "^n .*, at character 1 "),
        ("t or n + 1", r"^n \+ 1 .*, at character 6 "),
        ("length(n) > 1", "^n .*, at character 8 "),
        ("n like '1%'", "^n .*, at character 1 "),
        ("list = 1", '"list" .*list<'),
        ("n = '" + "x" * 500 + "'", "^n .*'xxx.*….*, at character 1 "),
    ],
)
def test_type_errors(text, message):
    with pytest.raises(IndexingError, match=message) as caught:
        rows(text)
    assert len(str(caught.value)) < 400


def test_shards_of_different_types_give_consistent_results():
    from tarmac.indexing.promote import common_types

    shards = [pa.table({"y": values}) for values in ([1999, None], ["n/a", "1999"], [0.5, 1.0])]
    with pytest.raises(IndexingError, match=r"^y .*'1999'.*, at character 1 "):
        rows("y = '1999'", shards[0])
    types = common_types(shards)
    assert [rows("y = '1999'", shard, types=types) for shard in shards] == [[0], [1], []]
    assert [rows("y = '1.0'", shard, types=types) for shard in shards] == [[], [], [1]]
    for shard in shards:
        with pytest.raises(IndexingError, match=r"^y .* 1999 .*, at character 1 "):
            rows("y = 1999", shard, types=types)
    numbers = common_types([shards[0], shards[2]])
    assert rows("y > 0.7", shards[0], types=numbers) == [0]


SCORES = pa.table(
    {
        "i": ["3", "10", " -2 ", None, "+4", "null"],
        "f": ["0.5", ".25", "5.", "1e3", "", "-7"],
        "mixed": ["1", "n/a", "2.5", "99999999999999999999", None, "1_0"],
        "w": ["a", "b", "c", "d", "e", "f"],
    }
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i > 3", [1, 4]),
        ("4 = i", [4]),
        ("i in (3, -2.0, 1.5)", [0, 2]),
        ("i between -2 and 3", [0, 2]),
        ("i * 2 >= 8", [1, 4]),
        ("-i > 1", [2]),
        ("f >= 0.5", [0, 2, 3]),
        ("number(i) > f", [0, 1]),
        ("i = '10' or f = '5.'", [1, 2]),  # text is still text
        ("number(mixed) < 3", [0, 2]),
        ("number(mixed) > 1e19", [3]),
        ("number(mixed) is null", [1, 4, 5]),
        ("number(i) + number(f) > 8", [1]),
        ("number('7') = 7 and i = 3", [0]),
        ("number(null) is null and i = 3", [0]),
    ],
)
def test_text_that_holds_numbers(text, expected):
    for table in (SCORES, SCORES.to_batches()[0], pa.concat_tables([SCORES.slice(0, 2), SCORES.slice(2)])):
        assert rows(text, table) == expected
    assert rows(text, SCORES.slice(0, 0)) == []


@pytest.mark.parametrize(
    "text", ["mixed > 1", "1 < mixed", "mixed in (1, 2)", "mixed + 1 > 1", "w between 1 and 2"]
)
def test_text_that_does_not(text):
    column = "w" if "w" in text else "mixed"
    with pytest.raises(IndexingError, match=rf"Try: number\({column}\)"):
        rows(text, SCORES)


def test_deep_and_long_conditions_are_evaluated():
    deep = "n"
    for level in range(15):
        deep = f"-({deep} + 1 * {level} / 1)"
    assert len(rows(f"{deep} is not null")) == 3
    truths = "t"
    for _ in range(32):
        truths = f"t or t and ({truths}) = t"
    assert rows(truths) == [0, 3]
    between = "t"
    for _ in range(30):
        between = f"({between} between false and true)"
    assert rows(between) == [0, 1, 3]
    assert rows(" or ".join(["n=1"] * 1_400)) == [0]
    assert rows("n = " + "+".join(["1"] * 4_000)) == []
    assert rows(f"n in ({', '.join(map(str, range(1_800)))})") == [0, 2]


def like(pattern):
    """Return the regular expression that `like` means."""
    wild = {"%": ".*", "_": "."}
    parts = re.findall(r"(?s)\\.|.", pattern)
    return re.compile("(?s)" + "".join(wild.get(part) or re.escape(part[-1]) for part in parts))


texts = st.text(st.sampled_from("aB_%\\.*é\n\0 ^$"), max_size=5)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(texts, min_size=1), texts)
def test_patterns(values, pattern):
    table = pa.table({"s": values})
    quoted = pattern.replace("'", "''")
    expected = [row for row, value in enumerate(values) if like(pattern).fullmatch(value)]
    assert rows(f"s like '{quoted}'", table) == expected
    folded = [row for row, value in enumerate(values) if like(pattern.lower()).fullmatch(value.lower())]
    assert rows(f"s ilike '{quoted}'", table) == folded


def test_a_plain_pattern_is_equality():
    table = pa.table({"s": ["a.b*", "axb*", "100%", "100x"]})
    assert rows("s like 'a.b*'", table) == [0]
    assert rows(r"s like '100\%'", table) == [2]
    assert rows("s like '" + "_" * 9_000 + "'", table) == []
