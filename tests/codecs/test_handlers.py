"""Handlers that depend on the key alone, and optional libraries."""

from __future__ import annotations

import json
import pickle
import re
import tomllib
from pathlib import Path

import pytest
import webdataset.autodecode as theirs
from hypothesis import given
from hypothesis import strategies as st

from tarmac.codecs import gzfilter, handle_extension
from tarmac.codecs.handlers import SAFE, FieldHandler
from tarmac.runtime.extras import import_extra, is_missing_extra

ROOT = Path(__file__).parents[2]
NAMES = st.lists(st.sampled_from(["jpg", "seg", "JPG", "Seg", "a", ""]), min_size=1, max_size=3).map(".".join)


@given(NAMES, st.lists(NAMES.filter(bool), min_size=1, max_size=3).map(" ".join))
def test_extensions_match_as_in_webdataset(field, extensions):
    key = f".{field}"
    assert handle_extension(extensions, len)(key, b"xyz") == theirs.handle_extension(extensions, len)(
        key, b"xyz"
    )


def test_extensions_may_have_dots_and_any_case():
    handler = handle_extension("seg.jpg PNG", bytes.upper)
    assert handler(".a.SEG.jpg", b"x") == b"X"
    assert handler(".jpg", b"x") is None
    assert handler(".aseg.jpg", b"x") is None
    assert handler(".png", b"x") == b"X"
    assert handle_extension(["a", "b"], bytes.upper)(".b", b"x") == b"X"


def test_handlers_are_picklable():
    handler = pickle.loads(pickle.dumps(handle_extension("jpg", bytes.upper)))
    assert handler(".jpg", b"x") == b"X"
    assert pickle.loads(pickle.dumps(gzfilter)) is gzfilter


def test_a_handler_must_implement_find():
    with pytest.raises(NotImplementedError):
        FieldHandler().find(".a", SAFE)


def test_a_missing_library_names_its_extra():
    with pytest.raises(ImportError, match=r'pip install "tarmac-data\[things\]"') as caught:
        import_extra("no_such_library", "things", "thing fields")
    assert is_missing_extra(caught.value)
    assert not is_missing_extra(ImportError("of the data"))
    assert import_extra("json", "x", "y") is json


def test_every_extra_that_is_named_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'import_extra\(\s*"\w+", "(\w+)"', text)}
    assert {"torch", "msgpack", "video"} <= named <= set(extras)
