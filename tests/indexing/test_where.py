"""Conditions on metadata: column names, the same results as SQLite, pickling, and errors."""

from __future__ import annotations

import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import rounds
from tarmac.errors import IndexingError
from tarmac.indexing.where import Condition, parse_where, resolve

TABLE = pa.table(
    {
        "key": ["a/1", "a/2", "b/3"],
        "members": [[1], [2], [3]],
        "jpg.width": [600, 200, None],
        "jpg.height": [400, 400, 400],
        "json.lang": ["en", "en", "de"],
        "json.a b": [1, 2, 3],
        "has:txt": [True, False, True],
    }
)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("width >= 512 and lang = 'en'", [True, False, False]),
        ("jpg.width * jpg.height >= 240000", [True, False, False]),
        ("width / height > 1 or key like 'b/%'", [True, False, True]),
        ("has(txt) and not lang = 'de'", [True, False, False]),
        ('"json.a b" in (1, 3) and "a b" > 1', [False, False, True]),
    ],
)
def test_samples_are_selected_by_metadata(text, mask):
    result = parse_where(text).mask(TABLE)
    assert isinstance(result, np.ndarray)
    assert result.tolist() == mask


def test_a_condition_has_its_columns_and_its_text():
    text = " width >= 512\n and has(seg.png) and WIDTH < 9 and \"a b\" = 'x'"
    condition = parse_where(text)
    assert condition.columns == {"width", "has:seg.png", "WIDTH", "a b"}
    assert str(condition) == text
    copy = pickle.loads(pickle.dumps(condition))
    assert copy == condition
    assert (hash(copy), str(copy), copy.columns) == (hash(condition), text, condition.columns)
    assert parse_where("1 = 1") != parse_where("1 = 2")
    assert isinstance(condition, Condition)
    assert "tree" not in repr(condition)


def test_resolving_names():
    columns = [
        "key",
        "members",
        "jpg.width",
        "json.a.b",
        "json.lang",
        "png;webp.width2",
        "has:x.lang",
        "lang.x",
    ]
    assert resolve("key", columns) == "key"
    assert resolve("width", columns) == "jpg.width"
    assert resolve("b", columns) == resolve("a.b", columns) == "json.a.b"
    assert resolve("lang", columns) == "json.lang"
    assert resolve("width2", columns) == "png;webp.width2"
    assert resolve("has:x.lang", columns) == "has:x.lang"
    assert resolve("b", ["json.a.b", "b"]) == "b"
    assert parse_where("width > 1 and key = 'x'").resolve(columns) == {"width": "jpg.width", "key": "key"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("widht > 3", r"(?s)\"widht\".* jpg.width\? .*--meta FIELD.widht"),
        ("key = 'a' and json.age > 3", '(?s)"json.age".*, at character 15 .*--meta json.age'),
        ("zzz > 3", "jpg.height, jpg.width, json.a b, json.lang, key, at character 1 "),
        ('lang = "en"', "(?s)\"en\".*: 'en'$"),
        ("idth > 3", '"idth".*, at character 1 '),
        ("has(wav)", '"wav", at character 1 '),
    ],
)
def test_missing_columns(text, message):
    with pytest.raises(IndexingError, match=message) as caught:
        parse_where(text).mask(TABLE)
    assert "members" not in str(caught.value)


def test_ambiguous_names_are_rejected():
    with pytest.raises(IndexingError, match=r'"width" .*: jpg.width, png.width, at character 7 '):
        parse_where("1 = 2*width").mask(pa.table({"png.width": [1], "jpg.width": [2]}))


def test_long_lists_of_columns_are_shortened():
    with pytest.raises(IndexingError, match=r"json\.c26 .*\b80 ") as caught:
        resolve("nothing", [f"json.c{number}" for number in range(100)])
    assert len(str(caught.value)) < 500


def test_parsing_does_not_import_pyarrow():
    script = (
        "import sys; from tarmac.indexing.where import parse_where; parse_where('a > 1')\n"
        "print('pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# The law: on random tables and conditions, the rows are those that SQLite selects. Its integer division drops
# the fraction, ours keeps it, so SQLite is given `* 1.0 /`.

quarters = st.integers(-40, 40).map(lambda number: number / 4)
strings = st.text("abAB'%_ é", max_size=3)
table_rows = st.lists(
    st.tuples(
        st.none() | st.integers(-9, 9),
        st.none() | st.integers(-9, 9),
        st.none() | quarters,
        st.none() | strings,
        st.none() | strings,
        st.none() | st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
NAMES = ("i", "j", "x", "s", "u", "t")
TYPES = (pa.int64(), pa.int64(), pa.float64(), pa.string(), pa.string(), pa.bool_())


def quote(text):
    return "'" + text.replace("'", "''") + "'"


def join(parts, signs):
    """Mix operands and operators without parentheses, so that precedence and order count."""
    return st.lists(parts, min_size=1, max_size=3).flatmap(
        lambda operands: st.lists(
            st.sampled_from(signs), min_size=len(operands) - 1, max_size=len(operands) - 1
        ).map(
            lambda between: " ".join(
                word for pair in zip(["", *between], operands, strict=True) for word in pair
            ).strip()
        )
    )


number_items = st.integers(-9, 9).map(str) | quarters.map(str)
plain_numbers = st.sampled_from(["i", "j", "x", "length(s)"]) | number_items
numbers = st.deferred(
    lambda: (
        plain_numbers
        | join(plain_numbers, ["+", "-", "*", "/"])
        | numbers.map(lambda inner: f"({inner})")
        | plain_numbers.map(lambda inner: f"- {inner}")
    )
)
texts = st.sampled_from(["s", "u", "lower(s)"]) | st.text("abAB'é", max_size=3).map(quote)
signs = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">="])
negation = st.sampled_from(["", "not "])
orders = st.sampled_from([numbers, texts])


def written(form, *parts):
    return st.tuples(*parts).map(lambda words: form.format(*words))


def listed(items):
    return st.lists(items | st.just("null"), min_size=1, max_size=4).map(", ".join)


predicates = st.one_of(
    written("{} {} {}", numbers, signs, numbers),
    written("{} {} {}", texts, signs, texts),
    orders.flatmap(lambda kind: written("{} {}between {} and {}", kind, negation, kind, kind)),
    written("{} is {}null", numbers | texts | st.just("t"), negation),
    written("{} {}in ({})", numbers, negation, listed(number_items)),
    written("{} {}in ({})", texts, negation, listed(strings.map(quote))),
    written("{} {}like {}", texts, negation, strings.map(quote)),
    st.sampled_from(["t", "null", "t = true", "t != false", "true", "t is null"]),
)
conditions = st.recursive(
    predicates,
    lambda inner: st.one_of(
        join(inner, ["and", "or", "AND", "Or"]),
        written("not {}", inner),
        written("({})", inner),
        written("({}) is {}null", inner, negation),
        written("({}) = ({})", inner, inner),
    ),
    max_leaves=6,
)


def by_sqlite(rows, text):
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("pragma case_sensitive_like = on")
        database.execute("create table d (i integer, j integer, x real, s text, u text, t integer)")
        database.executemany("insert into d values (?, ?, ?, ?, ?, ?)", rows)
        selected = database.execute(f"select rowid - 1 from d where {text.replace('/', '* 1.0 /')}")
        return sorted(row for (row,) in selected)


def by_tarmac(rows, text):
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, TYPES, strict=True)]
    table = pa.table(arrays, names=NAMES)
    return np.flatnonzero(parse_where(text).mask(table)).tolist()


@pytest.mark.parametrize("outer", ["{}", "not ({})", "({}) is null", "({}) = true", "({}) or t is null"])
@pytest.mark.parametrize("inner", ["t and i > 0", "t or i > 0", "not t", "t = (i > 0)", "i in (1, null)"])
def test_truth_tables_are_those_of_sqlite(inner, outer):
    rows = [(i, None, None, None, None, t) for i in (0, 1, None) for t in (True, False, None)]
    text = outer.format(inner)
    assert by_tarmac(rows, text) == by_sqlite(rows, text)


@settings(derandomize=True, deadline=None, max_examples=rounds(200))
@given(table_rows, conditions)
def test_results_are_those_of_sqlite(rows, text):
    assert by_tarmac(rows, text) == by_sqlite(rows, text)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(table_rows, conditions)
def test_every_row_fulfils_a_condition_or_its_negation_or_is_null(rows, text):
    selected = [by_tarmac(rows, form.format(text)) for form in ("({})", "not ({})", "({}) is null")]
    assert sorted(row for part in selected for row in part) == list(range(len(rows)))


@settings(derandomize=True, deadline=None, max_examples=100)
@given(table_rows, st.text("abAB%_", max_size=4))
def test_ilike_is_the_like_of_sqlite(rows, pattern):
    with closing(sqlite3.connect(":memory:")) as database:
        expected = [
            row
            for row, values in enumerate(rows)
            if database.execute("select ? like ?", (values[3], pattern)).fetchone()[0]
        ]
    assert by_tarmac(rows, f"s ilike {quote(pattern)}") == expected
