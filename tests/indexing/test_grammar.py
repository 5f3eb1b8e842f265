"""Parsing conditions: precedence, columns and their positions, limits, and errors that point at them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import IndexingError
from tarmac.indexing.grammar import condition_error, parse


def show(node):
    """Return the tree as text with all parentheses."""
    operator, operands, value = node.operator, [show(operand) for operand in node.operands], node.value
    match operator:
        case "constant":
            return repr(value)
        case "column":
            return value
        case "between" | "in":
            return f"({operands[0]} {operator} {' '.join(operands[1:])})"
        case "like" | "ilike":
            return f"({operands[0]} {operator} {value!r})"
        case "arithmetic":
            rest = zip(value, operands[1:], strict=True)
            return f"({operands[0]} {' '.join(f'{sign} {part}' for sign, part in rest)})"
    return f"({f' {operator} '.join(operands)})" if len(operands) > 1 else f"({operator} {operands[0]})"


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
def test_precedence(text, tree):
    assert show(parse(text)[0]) == (tree or "(has:seg.png and has:a b and has:in and has:in)")


def test_columns_and_their_positions():
    _, positions = parse('a.b > 1 and ("x y" = c or has(jpg)) and a.b < 3')
    assert positions == {"a.b": 0, "x y": 13, "c": 21, "has:jpg": 26}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at character 1 "),
        ("a >", "at character 4 "),
        ("a > and b", '"and", at character 5 '),
        ("(a > 1", r"\), .*, at character 7 "),
        ("a > 1)", r'\band, or, .*"\)", at character 6 '),
        ("a b", r'\band, or, .*"b", at character 3 '),
        ("1 < a < 3", r'\band, or, .*"<", at character 7 '),
        ("a not 3", r'\bin, like, ilike .*between, .*"3", at character 7 '),
        ("a is 3", 'null, .*"3", at character 6 '),
        ("a in 3", r'\(, .*"3", at character 6 '),
        ("a in ()", r'"\)", at character 7 '),
        ("a in (b)", '"b", at character 7 '),
        ("a in (-'x')", "\"'x'\", at character 8 "),
        ("a like b", '"b", at character 8 '),
        ("a between 1 or 2", r'\band, .*"or", at character 13 '),
        ("upper(a) = 'x'", "upper.*length, lower, number, has, at character 1 "),
        ("has(5)", '"5", at character 5 '),
        ("length a", 'got "a"'),
        ("a > 1e999", "large, at character 5 "),
        ("a > " + "9" * 5000, "large, at character 5 "),
    ],
)
def test_errors_say_what_was_expected(text, message):
    with pytest.raises(IndexingError, match=message):
        parse(text)


@pytest.mark.parametrize("opening", ["(", "not ", "- ", "length(", "+ ", "(not (-"])
def test_nesting_is_bounded(opening):
    with pytest.raises(IndexingError, match="nesting"):
        parse(opening * 1_000 + "a")


def test_length_is_bounded_and_long_chains_are_flat():
    text = " or ".join(["a=1"] * 1_400)
    tree, _ = parse(text)
    assert len(tree.operands) == 1_400
    with pytest.raises(IndexingError, match="10000"):
        parse(text * 2)


PIECES = (
    "a jpg.width \"x\" 1 2.5 'text' null true ( ) and or not in like between is = < + - * / , has length ! '"
)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(st.lists(st.sampled_from(PIECES.split()), max_size=12))
def test_every_text_is_parsed_or_rejected(pieces):
    try:
        tree, _ = parse(" ".join(pieces))
    except IndexingError:
        return
    if "'" not in pieces:
        assert show(parse(" \n".join(pieces))[0]) == show(tree)
        assert show(parse(f"({' '.join(pieces)})")[0]) == show(tree)


@settings(derandomize=True, deadline=None)
@given(st.text())
def test_any_text_and_any_name_can_be_quoted(text):
    assert parse("'" + text.replace("'", "''") + "'")[0].value == text
    if text:
        assert parse('"' + text.replace('"', '""') + '"')[0].value == text


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a = 'x''", 5),
        ('a = "x', 5),
        ('a = ""', 5),
        ("a = 5x", 5),
        ("a = 1.2.3", 5),
        ("a ; b", 3),
    ],
)
def test_invalid_characters_are_pointed_at(text, position):
    with pytest.raises(IndexingError, match=f"at character {position} ") as caught:
        parse(text)
    line, pointer = str(caught.value).splitlines()[1:3]
    assert line[pointer.index("^") :] == text[position - 1 :]


def test_long_conditions_are_shown_in_part():
    text = "a" * 500 + "!" + "\n" * 500
    what, line, pointer, hint = str(condition_error(text, 500, "wrong", "right.")).splitlines()
    assert what == "wrong, at character 501 of the condition:"
    assert line[pointer.index("^")] == "!"
    assert line.strip().startswith("…a")
    assert len(line) < 100
    assert hint == " Try: right."
