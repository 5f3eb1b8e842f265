"""Clients are cached by server, options and environment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tarmac.errors import UrlError
from tarmac.storage import open_read, stat
from tarmac.storage.clients import is_web, locate, login_of


def test_options_are_keys_of_cached_clients(hasty):
    config = {"a": "1"}
    one, two = replace(hasty, headers=config), replace(hasty, headers={"a": "1"})
    config["a"] = "2"
    assert one == two
    assert hash(one) == hash(two)
    assert one != replace(hasty, headers=config)
    assert locate("http://h/x", one)[0] is locate("http://h/y", two)[0]
    assert locate("http://h/x", one)[0] is not locate("http://h/x", hasty)[0]


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "gs://", "az:///x/y"])
def test_urls_without_a_bucket(url, hasty):
    with pytest.raises(UrlError, match="BUCKET"):
        open_read(url, hasty)


def test_invalid_config(hasty):
    with pytest.raises(UrlError, match="key"):
        stat("s3://bucket/x", replace(hasty, config={"no_such_setting": "1"}))


def test_web_addresses(hasty):
    one, path = locate("http://h/a/b.tar", hasty)
    assert path == "a/b.tar"
    assert locate("http://h/c.tar", hasty)[0] is one
    for url in ("http://h/a%20b.tar", "http://h/a.tar?sig=1", "http://h/", "http://h//a.tar", "http://h/a b"):
        store, path = locate(url, hasty)
        assert store is not one
        assert path == ""
    assert is_web("HTTPS://h/x")
    assert not is_web("s3://http://x")


def test_names_of_objects_are_not_unescaped(hasty):
    assert locate("s3://bucket/a%20b#1?x=y.tar", hasty)[1] == "a%20b#1?x=y.tar"


def test_the_environment_is_part_of_the_key(hasty, monkeypatch):
    one = locate("s3://bucket/x", hasty)[0]
    assert locate("s3://bucket/y", hasty)[0] is one
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert locate("s3://bucket/y", hasty)[0] is not one


def test_login():
    assert login_of("http://h/x") == ("http://h/x", {})
    assert login_of("http://me:p%40ss@h/x?y") == ("http://h/x?y", {"Authorization": "Basic bWU6cEBzcw=="})
