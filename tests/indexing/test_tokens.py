"""The words of a condition, and errors that point at them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import IndexingError
from tarmac.indexing.tokens import problem, tokens, unquote


def words(text):
    return [(token.kind, token.text) for token in tokens(text)][:-1]


def test_kinds():
    assert words("""jpg.width>=1.5e3 AND "a b"<>'it''s' """) == [
        ("name", "jpg.width"),
        ("sign", ">="),
        ("number", "1.5e3"),
        ("word", "and"),
        ("quoted", '"a b"'),
        ("sign", "<>"),
        ("string", "'it''s'"),
    ]
    assert words("in.x IN (-.5, 1.)") == [
        ("name", "in.x"),
        ("word", "in"),
        ("sign", "("),
        ("sign", "-"),
        ("number", ".5"),
        ("sign", ","),
        ("number", "1."),
        ("sign", ")"),
    ]
    assert words("größe é_1") == [("name", "größe"), ("name", "é_1")]
    assert words("\n\t ") == []


@settings(derandomize=True, deadline=None)
@given(st.text())
def test_any_text_can_be_quoted(text):
    quoted = "'" + text.replace("'", "''") + "'"
    (token,) = words(quoted)
    assert token == ("string", quoted)
    assert unquote(quoted) == text


@settings(derandomize=True, deadline=None)
@given(st.text(max_size=30))
def test_every_text_is_read_with_its_places_or_refused(text):
    try:
        found = list(tokens(text))
    except IndexingError:
        return
    assert found[-1] == ("end", "", len(text), len(text))
    for token in found[:-1]:
        assert text[token.start : token.end].lower() == token.text.lower()


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        ("a = 'x''", "the text that begins here has no end", 5),
        ('a = "x', "the name that begins here has no end", 5),
        ('a = ""', "has no end", 5),
        ("a = 5x", "no number", 5),
        ("a = 1.2.3", "no number", 5),
        ("a ; b", '";" has no meaning', 3),
    ],
)
def test_what_cannot_be_read_is_pointed_at(text, message, at):
    with pytest.raises(IndexingError, match=message) as caught:
        list(tokens(text))
    line, mark = str(caught.value).splitlines()[1:3]
    assert line[mark.index("^") :] == text[at - 1 :]
    assert f"at character {at} " in str(caught.value)


def test_long_texts_are_shown_in_part():
    text = "a" * 500 + "!" + "\n" * 500
    what, line, mark, way_out = str(problem(text, 500, "wrong", "right.")).splitlines()
    assert what == "wrong, at character 501 of the condition:"
    assert line[mark.index("^")] == "!"
    assert line.strip().startswith("…a")
    assert len(line) < 100
    assert way_out == " Try: right."
