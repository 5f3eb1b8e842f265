"""Recipes, as tarp reads them but without its limits."""

from __future__ import annotations

import pytest

from tarmac.errors import DuplicateField, NotFound, UnsafeUrl, UsageError
from tools.pack.trees import read_all, source, write_tree


def recipe(tmp_path, text, **options):
    path = tmp_path / "r.recipe"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return source(path, **options)


@pytest.mark.processes
def test_all_sources(tmp_path):
    write_tree(tmp_path, {"in/a.jpg": b"A", "in/b b.jpg": b"B"})
    text = """
# a comment
a.jpg  in/a.jpg
b.jpg\tfile:in/b b.jpg
a.txt text:  two  spaces and a # in it \r
   b.cls text:7
a.out pipe:echo hi
"""
    samples, _ = read_all(recipe(tmp_path, text, allow_exec=True))
    assert samples == [  # the lines of a sample need not be adjacent
        {"__key__": "a", "jpg": b"A", "txt": b"  two  spaces and a # in it ", "out": b"hi\n"},
        {"__key__": "b", "jpg": b"B", "cls": b"7"},
    ]


def test_base(tmp_path):
    write_tree(tmp_path / "other", {"a.jpg": b"A"})
    assert read_all(recipe(tmp_path, "x.jpg a.jpg", base=str(tmp_path / "other")))[0][0]["jpg"] == b"A"
    with pytest.raises(NotFound, match=r"a\.jpg"):
        read_all(recipe(tmp_path, "x.jpg a.jpg"))


def test_a_line_of_any_length(tmp_path):
    text = "w" * 1_000_000
    assert read_all(recipe(tmp_path, f"a.txt text:{text}"))[0] == [{"__key__": "a", "txt": text.encode()}]


def test_bytes_that_are_not_utf8(tmp_path):
    assert read_all(recipe(tmp_path, b"a.txt text:\xff\xfe"))[0][0]["txt"] == b"\xff\xfe"


@pytest.mark.parametrize(
    ("line", "error", "what"),
    [
        ("a.txt text:1\n\na.TXT text:2", DuplicateField, "line 3"),
        ("a.txt text:1\nnodot text:2", UsageError, "line 2"),
        (".hidden text:2", UsageError, "line 1"),
        ("a.txt", UsageError, "line 1"),
        ("a.txt -", UsageError, "line 1"),
        ("a.txt pipe:echo", UnsafeUrl, "line 1.*`allow_exec`"),
    ],
)
def test_errors_name_the_line(tmp_path, line, error, what):
    with pytest.raises(error, match=what):
        read_all(recipe(tmp_path, line))
