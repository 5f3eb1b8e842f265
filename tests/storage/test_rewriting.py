"""URLs that the environment rewrites: in all functions, and never into a command."""

from __future__ import annotations

import io

import pytest

import tarmac
from harness.servers import aistore
from harness.shards import plain
from tarmac.compat.webdataset.gopen import gopen, gopen_schemes, rewrite_url
from tarmac.errors import UnsafeUrl, UnsupportedScheme, UrlError
from tarmac.storage import (
    Cache,
    FileStore,
    enforce_security,
    open_read,
    open_write,
    read_range,
    schemes,
    stat,
)

SHARD = plain([("a.txt", b"1"), ("b.txt", b"2")])


@pytest.fixture
def rules(monkeypatch):
    def set_rules(text):
        monkeypatch.setenv("GOPEN_REWRITE", text)

    return set_rules


@pytest.mark.parametrize(
    ("text", "url", "expected"),
    [
        ("s3://a/=gs://b/", "s3://a/x.tar", "gs://b/x.tar"),
        ("s3://a/=gs://b/;s3://=az://", "s3://c/x.tar", "az://c/x.tar"),
        ("s3://a/=s3://a/;s3://=az://", "s3://a/x.tar", "s3://a/x.tar"),  # the first matching rule applies
        ("s3://([a-z]+)/=https://host/\\1-copy/", "s3://data/x.tar", "https://host/data-copy/x.tar"),
        ("s3://a/=/data/;", "s3://a/x=1;y.tar", "/data/x=1;y.tar"),
        ("/data/=s3://a/", "/data/x.tar", "s3://a/x.tar"),
        ("pipe:cat =", "pipe:cat x.tar", "x.tar"),
        ("x.tar=y.tar", "s3://a/x.tar", "s3://a/x.tar"),  # only at the beginning
        ("a|b=c", "xb", "xb"),
        ("s3:=gs:", "-", "-"),
        (".*=y", "-", "-"),
        ("", "s3://a/x.tar", "s3://a/x.tar"),
    ],
)
def test_rules(rules, text, url, expected):
    rules(text)
    assert rewrite_url(url) == expected


@pytest.mark.parametrize("url", ["s3://a/x.tar", "/data/x.tar", "pipe:cat x.tar"])
@pytest.mark.parametrize("target", ["pipe:cat ", "PIPE://cat ", "pipe:"])
def test_rules_cannot_produce_commands(rules, tmp_path, url, target):
    rules(f"s3://a/={target};/data/={target};pipe:cat ={target}tac ")
    opened = (open_read, open_write, stat, gopen, lambda url: read_range(url, 0, 1))
    for operation in (rewrite_url, *opened):
        with pytest.raises(UnsafeUrl, match="GOPEN_REWRITE"):
            operation(url)
    with pytest.raises(UnsafeUrl, match="GOPEN_REWRITE"):
        Cache(tmp_path).open_read("s3://a/x.tar")


def test_names_cannot_leave_the_directory_of_a_rule(rules):
    rules("s3://a/=/data/")
    with pytest.raises(UnsafeUrl, match="GOPEN_REWRITE"):
        rewrite_url("s3://a/../etc/passwd")
    rules("s3://a/=file:///data/")
    with pytest.raises(UnsafeUrl, match="GOPEN_REWRITE"):
        rewrite_url("s3://a/%2e%2E/etc/passwd")
    rules("../=../../")
    assert rewrite_url("../x.tar") == "../../x.tar"  # it was local before


def test_secure_mode_rejects_rules(rules, tmp_path):
    (tmp_path / "x.tar").write_bytes(SHARD)
    rules("s3://a/=s3://b/")
    enforce_security()
    try:
        with pytest.raises(UnsafeUrl, match=r"x\.tar: .*GOPEN_REWRITE"):
            list(tarmac.read(str(tmp_path / "x.tar")))
        rules("")
        assert len(list(tarmac.read(str(tmp_path / "x.tar")))) == 2
    finally:
        enforce_security(False)


@pytest.mark.parametrize("text", ["s3://", "=x", "a=b;c"])
def test_invalid_rules(rules, text):
    rules(text)
    with pytest.raises(ValueError, match=r"rule [12] .*GOPEN_REWRITE"):
        rewrite_url("s3://a/x")


@pytest.mark.parametrize("text", ["(=x", "s3://=\\3", "s3://=\\g<name>"])
def test_errors_of_invalid_expressions_hide_secrets(rules, text):
    rules(f"{text};x=http://user:secret@host")
    with pytest.raises(UrlError, match=r"rule 1 .*GOPEN_REWRITE") as caught:
        rewrite_url("s3://a/x")
    assert "secret" not in str(caught.value)


def test_every_way_of_opening(rules, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "x.tar").write_bytes(SHARD)
    rules(f"s3://bucket/={data}/")
    url = "s3://bucket/x.tar"
    with open_read(url) as source:
        assert source.read(len(SHARD)) == SHARD
    assert read_range(url, 3, 9) == SHARD[3:9]
    assert stat(url).size == len(SHARD)
    with gopen(url) as file:
        assert file.read() == SHARD
    with gopen("s3://bucket/y.txt", "wb") as file:
        file.write(b"text")
    assert (data / "y.txt").read_bytes() == b"text"
    with Cache(tmp_path / "cache").open_read(url) as source:
        assert source.read(len(SHARD)) == SHARD
    for cache_dir in (None, tmp_path / "cache2"):
        samples = list(tarmac.WebDataset(url, shardshuffle=False, cache_dir=cache_dir))
        assert [sample["__key__"] for sample in samples] == ["a", "b"]
        assert samples[0]["__url__"] == url
    with tarmac.TarWriter("s3://bucket/z.tar") as shard:
        shard.write({"__key__": "k", "txt": b"3"})
    assert [sample["txt"] for sample in tarmac.read("s3://bucket/z.tar")] == [b"3"]
    assert sorted(path.name for path in data.iterdir()) == ["x.tar", "y.txt", "z.tar"]


def test_rules_are_applied_once(rules, monkeypatch):
    seen = []

    def opener(url, mode, bufsize, **kw):
        seen.append((url, kw))
        return io.BytesIO(b"text")

    rules("mem://a=mem://a/a")
    monkeypatch.setattr(schemes, "_registered", {})
    gopen_schemes["mem"] = opener
    try:
        gopen("mem://a/x").close()
        gopen("mem://a/x", token=1).close()
        open_read("mem://a/x").close()
    finally:
        del gopen_schemes["mem"]
    assert seen == [("mem://a/a/x", {}), ("mem://a/a/x", {"token": 1}), ("mem://a/a/x", {})]


def test_schemes_for_aistore(monkeypatch, tmp_path, hasty):
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "x.tar").write_bytes(SHARD)
    with pytest.raises(UnsupportedScheme):
        open_read("aws://bucket/x.tar", hasty)
    monkeypatch.setenv("USE_AIS_FOR", "aws:GS:s3")
    with aistore(tmp_path) as endpoint:
        monkeypatch.setenv("AIS_ENDPOINT", endpoint)
        for scheme in ("aws", "gs", "s3"):
            url = f"{scheme}://bucket/x.tar"
            assert [sample["txt"] for sample in tarmac.read(url, storage=hasty)] == [b"1", b"2"]
            assert stat(url, hasty).size == len(SHARD)
        with gopen("gs://bucket/y.txt", "wb") as file:
            file.write(b"text")
    assert (tmp_path / "bucket" / "y.txt").read_bytes() == b"text"


def test_registered_schemes_take_precedence_over_aistore(monkeypatch):
    monkeypatch.setenv("USE_AIS_FOR", "gs")
    monkeypatch.setattr(schemes, "_registered", {})
    tarmac.register_scheme("gs", FileStore(lambda url: io.BytesIO(b"own")))
    with open_read("gs://bucket/x") as source:
        assert source.read(10) == b"own"
