"""What fields hold."""

from __future__ import annotations

import pytest

from tarmac.errors import BadName, DecodeFailed, UrlError
from tarmac.tools.export.values import Json, Kinds, parse_kinds, text_key, value_of
from tarmac.tools.select import parse_fields


def test_names_say_what_is_in_a_field():
    kinds = Kinds()
    assert [kinds.of(name) for name in ("cls", "TXT", "a.json", "jpg", "x")] == [
        "int",
        "text",
        "json",
        "bytes",
        "bytes",
    ]
    told = parse_kinds("x=text, a.json=bytes")
    assert (told.of("x"), told.of("a.json"), told.of("json")) == ("text", "bytes", "json")


def test_a_renamed_field_holds_what_it_held():
    kinds = Kinds().after(parse_fields("caption=txt,image=jpg|png,label=cls,json=bin"))
    assert [kinds.of(name) for name in ("caption", "image", "label", "json")] == [
        "text",
        "bytes",
        "int",
        "json",
    ]
    assert kinds.is_image("image")


@pytest.mark.parametrize("text", ["x", "=text", "x=float", "x=text;y=int"])
def test_what_cannot_be_understood(text):
    with pytest.raises(UrlError, match="--as"):
        parse_kinds(text)


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
def test_what_a_field_does_not_hold(field, data):
    with pytest.raises(DecodeFailed, match=rf'the field "{field}" is not .*--as {field}=text'):
        value_of(Kinds(), field, data)


def test_keys_that_are_no_text():
    assert text_key({"__key__": "é"}) == "é"
    with pytest.raises(BadName, match="not UTF-8"):
        text_key({"__key__": "a\udc80"})
