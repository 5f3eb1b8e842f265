"""Splitting a name inverts joining key and field, or the name is invalid."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import BadName
from tarmac.samples.naming import (
    check_field,
    check_key,
    first_dot,
    is_metadata,
    is_reserved,
    known_fields,
    last_dot,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a/b.seg.png", ("a/b", "seg.png")),
        ("a.b/c.jpg", ("a.b/c", "jpg")),
        ("a/b.c.jpg", ("a/b", "c.jpg")),
        ("noext", None),
        (".hidden", None),
        ("a/.hidden.jpg", None),
        ("a/._mac.jpg", None),
        ("a.", None),
        ("", None),
        ("dir.x/noext", None),
        ("../../etc/passwd.txt", ("../../etc/passwd", "txt")),
    ],
)
def test_first_dot(name, expected):
    assert first_dot(name) == expected


def test_other_rules():
    assert last_dot("img.001.jpg") == ("img.001", "jpg")
    split = known_fields(["jpg", "seg.png", "png"])
    assert split("img.001.seg.png") == ("img.001", "seg.png")
    assert split("img.001.PNG") == ("img.001", "PNG")
    assert split("img.001.txt") is None


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(deadline=None, max_examples=2000, derandomize=True)
@given(names, names, st.sampled_from([first_dot, last_dot, known_fields(["jpg", "a.b"])]))
def test_split_inverts_join_or_the_name_is_invalid(key, field, split):
    try:
        check_key(key, split)
        check_field(field, key, split)
    except BadName:
        return
    assert split(f"{key}.{field}") == (key, field)
    assert not is_metadata(key.encode())
    assert not is_reserved(field)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/abs",
        "a/",
        "a//b",
        "..",
        "../a",
        "a/../b",
        "./a",
        "a/.",
        "a\0b",
        "a\nb",
        "a\\b",
        "img.001",
        ".a",
        "__x__/a",
        7,
        None,
        b"a",
    ],
)
def test_keys_that_would_not_read_back(key):
    with pytest.raises(BadName):
        check_key(key)


@pytest.mark.parametrize("field", ["", "a/b", "a b", "x\0", "__key__", "__url__", "__x__", 3])
def test_fields_that_would_not_read_back(field):
    with pytest.raises(BadName):
        check_field(field, "k")


def test_the_hint_for_keys_with_dots_works():
    with pytest.raises(BadName, match=r"split_name=tarmac\.last_dot"):
        check_key("img.001")
    assert check_key("img.001", last_dot) == "img.001"
