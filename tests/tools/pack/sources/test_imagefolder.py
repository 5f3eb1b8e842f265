"""Class folders become class numbers."""

from __future__ import annotations

import pytest

from tarmac.errors import DuplicateField, UrlError
from tools.pack.trees import read_all, source, write_tree


def test_classes_are_sorted_and_empty_ones_count(tmp_path):
    write_tree(tmp_path, {"dog/1.jpg": b"D", "cat/x/2.png": b"C", "zebra/3.jpg": b"Z", "loose.jpg": b""})
    (tmp_path / "emu").mkdir()
    (tmp_path / ".git").mkdir()
    opened = source(tmp_path, "imagefolder")
    samples, skipped = read_all(opened)
    assert opened.classes == ["cat", "dog", "emu", "zebra"]
    assert samples == [
        {"__key__": "cat/x/2", "png": b"C", "cls": b"0"},
        {"__key__": "dog/1", "jpg": b"D", "cls": b"1"},
        {"__key__": "zebra/3", "jpg": b"Z", "cls": b"3"},
    ]
    assert skipped.counts == {"outside of class folders": 1, "hidden folders": 1}
    assert opened.field_names((("jpg", "x", 0, 0), ("cls", b"1", 1, None))) == {"jpg", "cls"}


def test_invalid_imagefolders(tmp_path):
    write_tree(tmp_path, {"1.jpg": b""})
    with pytest.raises(UrlError, match=str(tmp_path)):
        read_all(source(tmp_path, "imagefolder"))
    write_tree(tmp_path, {"cat/1.jpg": b"", "cat/1.CLS": b"7"})
    with pytest.raises(DuplicateField, match="cat/1"):
        read_all(source(tmp_path, "imagefolder"))
