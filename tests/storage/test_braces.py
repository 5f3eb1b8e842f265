"""Braces expand as in bash, lazily and within limits."""

from __future__ import annotations

import itertools

import bracex
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.memory import peak, reset_peak
from harness.work import calls
from tarmac.errors import TarmacError, TooManyShards, UrlError
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.storage.braces import expand_braces


def names(spec: str, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    return list(expand_braces(spec, limits))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("x{000..002}.tar", ["x000.tar", "x001.tar", "x002.tar"]),
        ("x{8..10}", ["x8", "x9", "x10"]),
        ("x{08..10}", ["x08", "x09", "x10"]),
        ("x{10..8}", ["x10", "x9", "x8"]),
        ("x{0..10..5}", ["x0", "x5", "x10"]),
        ("x{10..0..-5}", ["x10", "x5", "x0"]),
        ("x{-1..1}", ["x-1", "x0", "x1"]),
        ("x{-01..1}", ["x-01", "x000", "x001"]),
        ("x{0..1}{0..1}", ["x00", "x01", "x10", "x11"]),
        ("{a,b}{0..1}", ["a0", "a1", "b0", "b1"]),
        ("{a,b{0..1}}", ["a", "b0", "b1"]),
        ("{a,b}", ["a", "b"]),
        ("{a}", ["{a}"]),
        ("{}", ["{}"]),
        ("a{b", ["a{b"]),
        ("a}b", ["a}b"]),
        ("a{b{0..1}c", ["a{b0c", "a{b1c"]),
        ("{0..1}}", ["0}", "1}"]),
        ("{a..c}", ["a", "b", "c"]),
        ("pipe:cat ${HOME}/x", ["pipe:cat ${HOME}/x"]),
        ("pipe:cat ${HOME,,}/{a,b}", ["pipe:cat ${HOME,,}/a", "pipe:cat ${HOME,,}/b"]),
        (r"a\{0..1\}", [r"a\{0..1\}"]),
    ],
)
def test_expansion(spec, expected):
    assert names(spec) == expected


numbers = st.integers(-9, 30).map(str) | st.integers(0, 30).map("{:04d}".format)
ranges = st.builds("{{{}..{}}}".format, numbers, numbers)
steps = st.builds("{{{}..{}..{}}}".format, numbers, numbers, st.integers(1, 7))
words = st.builds("{{{},{}}}".format, st.text("abc", min_size=1), st.text("xyz"))
patterns = st.lists(ranges | steps | words | st.text("ab-/.", max_size=4), max_size=3).map("".join)


@given(patterns)
@settings(deadline=None, derandomize=True, max_examples=400)
def test_agrees_with_bracex(pattern):
    expected = bracex.expand(pattern, keep_escapes=True, limit=0) if pattern else [""]
    assert names(pattern) == expected


BOMBS = [
    "{0..999999999}",
    "{000000000..999999999}",
    "{0..9999999}{0..9999999}",
    "{a,b}" * 40,
    "{a,b}" * 24,
    "{x" + "{a,b}" * 23 + ",y}",
    "{a..z}" * 10,
    "{a,{b,{c,{0..999999999}}}}",
    "{a," * 20 + "{0..99999999}" + "}" * 20,
    "{0..1}" * 100_000,
    "{" * 100_000,
    "{a," * 5_000,
    "{a,b" * 5_000 + "}" * 5_000,
    "{0.." + "9" * 5_000 + "}",
    "{0.." + "9" * 19 + "}",
    "{0.." + "0" * 1_000_000 + "1}",
    "{-999999999999999..999999999999999}",
    "{1..2..999999999999999999999}",
]


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_bombs_are_rejected_without_expansion(bomb):
    names("warm{a,{0..1}}up")
    messages = []

    def expand():
        try:
            few = list(itertools.islice(expand_braces(bomb, DEFAULT_LIMITS), 10))
            assert few == [bomb]  # not a group: a literal name
        except UrlError as error:
            messages.append(str(error))

    before = reset_peak()
    work = calls(expand)
    assert peak() - before < 50 << 20
    assert work < 1000 + 50 * len(bomb)
    assert all(len(message) < 600 for message in messages)


def test_ten_million_names_are_expanded_lazily():
    def first():
        assert next(expand_braces("x{0..9999999}", DEFAULT_LIMITS)) == "x0"
        with pytest.raises(TooManyShards, match="10000000"):
            next(expand_braces("x{0..10000000}", DEFAULT_LIMITS))

    assert calls(first) < 1000


def test_the_limit_is_exact():
    assert len(names("{0..9}{0..9}", Limits(shards=100))) == 100
    with pytest.raises(TooManyShards):
        names("{0..9}{0..10}", Limits(shards=100))
    assert len(names("{a,b}{a,b}", Limits(shards=4))) == 4
    with pytest.raises(TooManyShards):
        names("{a,b}{a,b}", Limits(shards=3))


@given(st.text("{},.0123456789abz\\$-", max_size=30))
@settings(deadline=None, derandomize=True, max_examples=500)
def test_any_text_expands_or_raises_a_typed_error(text):
    try:
        for _ in itertools.islice(expand_braces(text, Limits(shards=10_000)), 100):
            pass
    except TarmacError:
        pass
