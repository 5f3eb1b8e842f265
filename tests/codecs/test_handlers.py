"""Handlers that depend on the key alone."""

from __future__ import annotations

import pickle

import pytest
import webdataset.autodecode as theirs
from hypothesis import given
from hypothesis import strategies as st

from tarmac.codecs.compression import gzfilter
from tarmac.codecs.handlers import SAFE, FieldHandler, handle_extension

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
