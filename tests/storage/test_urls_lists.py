"""Files that list shards: plain lists, shardspecs, manifests."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from harness.work import calls
from storage.files import touch, write_manifest
from tarmac.errors import NotFound, TooManyShards, UrlError
from tarmac.limits import Limits
from tarmac.storage.urls import expand, iter_urls


def test_lists(cwd):
    touch("data/b0.tar", "data/b1.tar")
    Path("data/list.txt").write_text("# comment\n\n x{0..1}.tar \nb*.tar\ns3://bucket/y.tar\n/abs.tar\n")
    expected = ["data/x0.tar", "data/x1.tar", "data/b0.tar", "data/b1.tar", "s3://bucket/y.tar", "/abs.tar"]
    assert expand("@data/list.txt") == expected
    assert expand("z.tar::@data/list.txt") == ["z.tar", *expected]
    assert expand(f"@file://{cwd}/data/list.txt")[0] == f"{cwd}/data/x0.tar"
    with pytest.raises(NotFound, match=r"none\.txt"):
        expand("@none.txt")
    Path("bad.txt").write_bytes(b"\xff\xfe\n")
    with pytest.raises(UrlError, match="list"):
        expand("@bad.txt")
    with pytest.raises(TooManyShards, match="list_bytes"):
        expand("@data/list.txt", limits=Limits(list_bytes=10))


def test_shardspecs(cwd, monkeypatch):
    monkeypatch.setenv("WDS_PLACE", "s3://bucket/")
    monkeypatch.setenv("SECRET", "hidden")
    spec = "prefix: ${PLACE}\ndatasets:\n- shards: a{0..1}.tar\n- name: x\n  shards: [b.tar, c.tar]\n"
    Path("spec.yaml").write_text(spec)
    assert expand("spec.yaml") == [f"s3://bucket/{name}.tar" for name in ("a0", "a1", "b", "c")]
    Path("spec.YML").write_text("datasets: [{shards: http://evil/$SECRET}]")
    assert expand("spec.YML") == ["http://evil/$SECRET"]  # only WDS_ variables are replaced
    for text in (
        "{",
        "a: [",
        "- x",
        "datasets: 3",
        "datasets: [3]",
        "datasets: [{shards: 3}]",
        "x: 2001-99-99",
    ):
        Path("bad.yaml").write_text(text)
        with pytest.raises(UrlError, match=r"bad\.yaml"):
            expand("bad.yaml")
    Path("bad.yaml").write_text("[" * 100_000)
    with pytest.raises(UrlError, match=r"bad\.yaml"):
        expand("bad.yaml")
    Path("code.yaml").write_text("!!python/object/apply:os.system [touch gotcha]")
    with pytest.raises(UrlError, match=r"code\.yaml"):
        expand("code.yaml")
    assert not Path("gotcha").exists()


def test_manifests(cwd):
    os.mkdir("d")
    assert expand(write_manifest("d/m.json", "a#1.tar", "s3://b/x.tar")) == ["d/a#1.tar", "s3://b/x.tar"]
    assert expand(write_manifest("d/m.json", "a.tar", base="s3://b/")) == ["s3://b/a.tar"]
    for text in ("{", "[]", "{}", '{"shardlist": [3]}', '{"shardlist": [{"url": 3}]}', "[" * 100_000):
        Path("bad.json").write_text(text)
        with pytest.raises(UrlError, match=r"bad\.json"):
            expand("bad.json")
    with pytest.raises(UrlError, match="base"):
        expand(write_manifest("d/m.json", "a.tar", base=[1]))


def test_a_list_that_contains_itself_is_read_once(cwd):
    assert expand(write_manifest("m.json", "m.json")) == ["m.json"]
    Path("l.txt").write_text("@l.txt\n")
    assert expand("@l.txt") == ["@l.txt"]


def test_many_lines_with_many_shards_are_bounded(cwd):
    Path("l.txt").write_text("{0..9999999}\n" * 1000)

    def begin():
        assert list(itertools.islice(iter_urls("@l.txt"), 3)) == ["0", "1", "2"]
        with pytest.raises(TooManyShards):
            for _ in iter_urls("@l.txt", limits=Limits(shards=1000)):
                pass

    assert calls(begin) < 100_000  # a thousand lines with ten million shards each
