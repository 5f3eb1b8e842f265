"""Values of fields by their kind."""

from __future__ import annotations

import pytest

from tarmac.errors import BadName, DecodeFailed, UsageError
from tarmac.tools.export.values import Json, Kinds, text_key, value_of
from tarmac.tools.select import Select


def test_kinds_by_extension_or_as_given():
    kinds = Kinds()
    assert [kinds.of(name) for name in ("cls", "TXT", "a.json", "jpg", "x")] == [
        "int",
        "text",
        "json",
        "bytes",
        "bytes",
    ]
    given = Kinds({"x": "text", "a.json": "bytes"})
    assert (given.of("x"), given.of("a.json"), given.of("json")) == ("text", "bytes", "json")


def test_a_renamed_field_holds_what_it_held():
    kinds = Kinds().after(
        Select({"caption": "txt", "image": ["jpg", "png"], "label": "cls", "json": "bin"}).rule
    )
    assert [kinds.of(name) for name in ("caption", "image", "label", "json")] == [
        "text",
        "bytes",
        "int",
        "json",
    ]
    assert kinds.is_image("image")


def test_invalid_kinds():
    with pytest.raises(UsageError, match=r"`kinds`.*'float'"):
        Kinds({"x": "float"})


def test_values():
    kinds = Kinds()
    assert value_of(kinds, "cls", b" -7\n") == -7
    assert value_of(kinds, "txt", "é\n".encode()) == "é\n"
    assert value_of(kinds, "bin", b"\xff") == b"\xff"
    text = value_of(kinds, "json", b'\xef\xbb\xbf{"a":\r\n\t0.10000000000000000001, "a": 1e400}\n')
    assert isinstance(text, Json)
    assert text == '{"a":   0.10000000000000000001, "a": 1e400}'


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("cls", b""),
        ("cls", b"1.5"),
        ("cls", b"9223372036854775808"),
        ("txt", b"\xff"),
        ("json", b"{"),
        ("json", b"NaN"),
        ("json", b"\xff\xfe"),
        ("json", b'"a\nb"'),
        ("json", b"[" * 100_000),
    ],
)
def test_invalid_values(field, data):
    with pytest.raises(DecodeFailed, match=rf'"{field}".*`kinds` {field}=(text|bytes)'):
        value_of(Kinds(), field, data)


def test_keys_that_are_not_utf8():
    assert text_key({"__key__": "é"}) == "é"
    with pytest.raises(BadName, match="UTF-8"):
        text_key({"__key__": "a\udc80"})
