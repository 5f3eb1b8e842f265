"""From a URL to its store."""

from __future__ import annotations

import io

import pytest

from tarmac.errors import UnsupportedScheme, UsageError
from tarmac.storage import (
    FileStore,
    is_local,
    open_read,
    open_write,
    read_range,
    register_scheme,
    scheme_of,
    schemes,
    stat,
)


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(schemes, "_registered", {})


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("a.tar", ""),
        ("/a/b:c.tar", ""),
        ("C:\\x.tar", ""),
        ("a#b?c", ""),
        ("mem:x", ""),
        ("-", "-"),
        ("--", ""),
        ("file:a", "file"),
        ("file:///a", "file"),
        ("FILE:///a", "file"),
        ("pipe:cat", "pipe"),
        ("http://h/x", "http"),
        ("HTTPS://h/x", "https"),
        ("s3://b/x", "s3"),
        ("a+b.c-d://x", "a+b.c-d"),
        ("http:/x", ""),
        (" s3://b", ""),
    ],
)
def test_scheme_of(url, scheme):
    assert scheme_of(url) == scheme
    assert is_local(url) == (scheme in ("", "file"))


def test_an_unknown_scheme():
    for operation in (open_read, open_write, stat, lambda url: read_range(url, 0, 1)):
        with pytest.raises(UnsupportedScheme, match=r'"ftp:".*s3.*register_scheme'):
            operation("ftp://host/x.tar")


@pytest.mark.parametrize("name", ["", "a", "1x", "a b", "a:", "é"])
def test_invalid_names_of_schemes(name):
    with pytest.raises(UsageError, match="name"):
        register_scheme(name, FileStore(io.BytesIO))


def test_a_built_in_scheme_can_be_replaced():
    register_scheme("s3", FileStore(lambda _: io.BytesIO(b"mine")))
    with open_read("s3://b/x") as source:
        assert source.read(10) == b"mine"


def test_an_invalid_range():
    with pytest.raises(UsageError, match="start"):
        read_range("x.tar", 5, 3)
