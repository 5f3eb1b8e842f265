"""The tree of a condition: ranks of operators, the columns it names, bounds, errors that help."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import IndexingError
from tarmac.indexing.grammar import Among, Between, Chain, Column, Comparison, Constant, Like, Unary, parse


def show(node):
    """The tree with all its parentheses."""
    match node:
        case Constant():
            return repr(node.value)
        case Column():
            return node.name
        case Unary():
            return f"({node.operator} {show(node.operand)})"
        case Comparison():
            return f"({show(node.left)} {node.operator} {show(node.right)})"
        case Chain():
            rest = zip(node.operators, map(show, node.operands[1:]), strict=True)
            return f"({show(node.operands[0])} {' '.join(f'{sign} {part}' for sign, part in rest)})"
        case Between():
            return f"({show(node.operand)} between {show(node.low)} {show(node.high)})"
        case Among():
            return f"({show(node.operand)} in {' '.join(map(show, node.items))})"
        case Like():
            return f"({show(node.operand)} {'ilike' if node.any_case else 'like'} {node.pattern!r})"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a or b and not c", "(a or (b and (not c)))"),
        ("not a = 1", "(not (a = 1))"),
        ("not not a", "(not (not a))"),
        ("a and b and c or d", "((a and b and c) or d)"),
        ("(a or b) and c", "((a or b) and c)"),
        ("a + b * c - d > -e / 2", "((a + (b * c) - d) > ((- e) / 2))"),
        ("a == 1 or a <> 2", "((a = 1) or (a != 2))"),
        ("a between 1 and 2 and b", "((a between 1 2) and b)"),
        ("a not between -1 and 2 + 3", "(not (a between (- 1) (2 + 3)))"),
        ("a IN (1, -2.5, 'x''y', NULL, True)", '(a in 1 -2.5 "x\'y" None True)'),
        ("a not in (1)", "(not (a in 1))"),
        ("a like '%'", "(a like '%')"),
        ("a not ilike 'x_'", "(not (a ilike 'x_'))"),
        ("a is null or b is not null", "((is null a) or (not (is null b)))"),
        ("length(lower(a)) > 3", "((length (lower a)) > 3)"),
        ("length = 3 and LENGTH(x) = 3", "((length = 3) and ((length x) = 3))"),
        ('"json.a ""b""" = 1', '(json.a "b" = 1)'),
        ("9223372036854775807 < 9223372036854775808", "(9223372036854775807 < 9.223372036854776e+18)"),
        ("has(seg.png) and has('a b') and has(\"in\") and has(in)", None),
    ],
)
def test_ranks_of_operators(text, tree):
    found = show(parse(text)[0])
    assert found == (tree or "(has:seg.png and has:a b and has:in and has:in)")


def test_columns_and_where_they_are_first_named():
    _, places = parse('a.b > 1 and ("x y" = c or has(jpg)) and a.b < 3')
    assert places == {"a.b": 0, "x y": 13, "c": 21, "has:jpg": 26}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a column, .* found the end, at character 1 "),
        ("a >", "expected a column, .* found the end, at character 4 "),
        ("a > and b", 'expected a column, .* found "and", at character 5 '),
        ("(a > 1", r"expected \), found the end, at character 7 "),
        ("a > 1)", r'expected and, or, or the end, found "\)", at character 6 '),
        ("a b", 'expected and, or, or the end, found "b", at character 3 '),
        ("1 < a < 3", 'expected and, or, or the end, found "<", at character 7 '),
        ("a not 3", 'expected in, like, ilike or between, found "3"'),
        ("a is 3", 'expected null, found "3"'),
        ("a in 3", r'expected \(, found "3"'),
        ("a in ()", r'expected a number, a text .*, found "\)"'),
        ("a in (b)", 'expected a number, a text .*, found "b"'),
        ("a in (-'x')", "expected a number, found \"'x'\""),
        ("a like b", 'expected a pattern in single quotes, found "b"'),
        ("a between 1 or 2", 'expected and, found "or"'),
        ("upper(a) = 'x'", "no function upper; there are length, lower, has, at character 1 "),
        ("has(5)", 'expected the name of a field, found "5"'),
        ("length a", 'found "a"'),
        ("a > 1e999", "too large, at character 5 "),
        ("a > " + "9" * 5000, "too large, at character 5 "),
    ],
)
def test_errors_say_what_was_expected_and_found(text, message):
    with pytest.raises(IndexingError, match=message):
        parse(text)


@pytest.mark.parametrize("opening", ["(", "not ", "- ", "length(", "+ ", "(not (-"])
def test_nesting_is_bounded(opening):
    with pytest.raises(IndexingError, match="levels of nesting"):
        parse(opening * 1_000 + "a")


def test_length_is_bounded_and_long_chains_are_flat():
    text = " or ".join(["a=1"] * 1_400)
    tree, _ = parse(text)
    assert len(tree.operands) == 1_400
    with pytest.raises(IndexingError, match="10000 are allowed"):
        parse(text * 2)


PIECES = (
    "a jpg.width \"x\" 1 2.5 'text' null true ( ) and or not in like between is = < + - * / , has length ! '"
)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(st.lists(st.sampled_from(PIECES.split()), max_size=12))
def test_every_text_is_understood_or_refused(pieces):
    try:
        tree, _ = parse(" ".join(pieces))
    except IndexingError:
        return
    if "'" not in pieces:
        assert show(parse(" \n".join(pieces))[0]) == show(tree)
        assert show(parse(f"({' '.join(pieces)})")[0]) == show(tree)
