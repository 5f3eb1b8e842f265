"""Lists of shards in JSON: names, bases, references, and what only code may name."""

from __future__ import annotations

import io
import json

import pytest

from tarmac.compat.wids.wids_specs import (
    check_shards,
    load_dsdesc_and_resolve,
    rebase_shardlist,
    resolve_dsdesc,
    set_all,
    urldir,
    urlmerge,
)
from tarmac.errors import BadManifest, NotFound, UnsafeUrl
from tarmac.storage import FileStore, register_scheme, schemes


def make_list(*urls, **more):
    return {"wids_version": 1, "shardlist": [{"url": url, "nsamples": 2} for url in urls], **more}


def urls(spec):
    return [shard["url"] for shard in spec["shardlist"]]


@pytest.fixture
def write(tmp_path):
    def writer(name, spec):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(spec))
        return str(path)

    return writer


@pytest.fixture
def remote(tmp_path):
    """Files of tmp_path under remote://host/."""
    register_scheme(
        "remote", FileStore(lambda url: open(tmp_path / url.removeprefix("remote://host/"), "rb"))
    )
    yield "remote://host"
    del schemes._registered["remote"]


@pytest.mark.parametrize(
    ("base", "url", "merged"),
    [
        ("http://h/a", "b.tar", "http://h/a/b.tar"),
        ("http://h/a/", "../b.tar?x=1", "http://h/b.tar?x=1"),
        ("http://h/a", "/b.tar", "http://h/b.tar"),
        ("http://h", "b.tar", "http://h/b.tar"),
        ("http://h/a", "s3://b/c.tar", "s3://b/c.tar"),
        ("/data", "b#1.tar", "/data/b#1.tar"),
        ("/data", "/other/b.tar", "/other/b.tar"),
        ("", "b.tar", "b.tar"),
    ],
)
def test_names(base, url, merged):
    assert urlmerge(base, url) == merged


def test_directories():
    assert urldir("http://h/a/b.json?x=1") == "http://h/a"
    assert urldir("a/b#1.json") == "a"
    assert urldir("b.json") == ""
    assert urldir("pipe:cat a/b.json") == ""


def test_names_are_relative_to_the_list(write, tmp_path, remote, monkeypatch):
    path = write("d/list.json", make_list("a.tar", "/abs/b.tar", "s3://bucket/c.tar"))
    assert urls(load_dsdesc_and_resolve(path)) == [f"{tmp_path}/d/a.tar", "/abs/b.tar", "s3://bucket/c.tar"]
    monkeypatch.chdir(tmp_path)
    assert urls(load_dsdesc_and_resolve("d/list.json"))[0] == "d/a.tar"
    write("remote.json", make_list("a.tar"))
    assert urls(load_dsdesc_and_resolve(f"{remote}/remote.json")) == ["remote://host/a.tar"]


def test_the_base_of_a_list_is_used(write, tmp_path):
    """wids ignored the one at the top."""
    path = write("list.json", make_list("a.tar", base="s3://bucket/x"))
    assert urls(load_dsdesc_and_resolve(path)) == ["s3://bucket/x/a.tar"]
    assert urls(load_dsdesc_and_resolve(path, base="/mine")) == ["/mine/a.tar"]
    below = write("below.json", make_list("a.tar", base="sub"))
    assert urls(load_dsdesc_and_resolve(below)) == [f"{tmp_path}/sub/a.tar"]


def test_datasets_of_a_list(write, tmp_path):
    write("sub/other.json", make_list("b.tar", name="other"))
    spec = make_list("a.tar", name="top", weight=3)
    spec["datasets"] = [
        {"source_url": "sub/other.json", "weight": 2},
        {"shardlist": [{"url": "c.tar", "nsamples": 1}], "base": "s3://c", "name": "third"},
    ]
    path = write("list.json", spec)
    result = load_dsdesc_and_resolve(path)
    assert result["name"] == "top"
    assert result["shardlist"] == [
        {"url": f"{tmp_path}/a.tar", "nsamples": 2, "weight": 3, "name": "top"},
        {
            "url": f"{tmp_path}/sub/b.tar",
            "nsamples": 2,
            "weight": 2,
            "source_url": f"{tmp_path}/sub/other.json",
            "dataset": "other",
        },
        {"url": "s3://c/c.tar", "nsamples": 1, "dataset": "third"},
    ]
    write("sub/other.json", {"source_url": "list.json"})
    with pytest.raises(BadManifest, match=r"other\.json.*`source_url`"):
        load_dsdesc_and_resolve(path)


def test_open_files_and_options():
    text = json.dumps(make_list("s3://b/a.tar"))
    assert urls(load_dsdesc_and_resolve(io.StringIO(text))) == ["s3://b/a.tar"]
    result = load_dsdesc_and_resolve(io.BytesIO(text.encode()), options={"name": "mine"}, base="/x")
    assert result["name"] == "mine"
    spec = make_list("a.tar")
    assert urls(resolve_dsdesc(spec, base="/x")) == ["/x/a.tar"]
    assert urls(spec) == ["a.tar"]  # the argument is not modified


def test_a_list_names_no_commands_and_a_remote_list_no_local_files(write, remote):
    for name in ("pipe:touch /tmp/x", "-"):
        with pytest.raises(UnsafeUrl, match="commands"):
            load_dsdesc_and_resolve(write("list.json", make_list(name, base="")))
    for spec in (make_list("file:///etc/passwd"), make_list("passwd", base="file:///etc")):
        write("remote.json", spec)
        with pytest.raises(UnsafeUrl, match="passwd"):
            load_dsdesc_and_resolve(f"{remote}/remote.json")
    write("remote.json", make_list("a.tar"))
    assert urls(load_dsdesc_and_resolve(f"{remote}/remote.json", base="/mirror")) == ["/mirror/a.tar"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[", "JSON"),
        ("[]", "object"),
        ("{}", "wids_version"),
        ('{"wids_version": 2, "shardlist": []}', "wids_version"),
        ('{"wids_version": 1, "shardlist": []}', "shards"),
        ('{"wids_version": 1, "shardlist": {"a": 1}}', "dict"),
        ('{"wids_version": 1, "shardlist": [3]}', "nsamples"),
        ('{"wids_version": 1, "shardlist": [{"url": "a.tar"}]}', "nsamples"),
        ('{"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": -1}]}', "nsamples"),
        ('{"wids_version": 1, "base": 3, "shardlist": [{"url": "a.tar", "nsamples": 1}]}', "base"),
        ('{"wids_version": 1, "datasets": [3]}', "datasets"),
        ('{"wids_version": 1, "datasets": [{}]}', "shardlist"),
    ],
)
def test_invalid_lists(tmp_path, text, match):
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(BadManifest, match=match) as caught:
        load_dsdesc_and_resolve(str(path))
    assert "list.json" in str(caught.value)


def test_a_missing_list(tmp_path):
    with pytest.raises(NotFound):
        load_dsdesc_and_resolve(str(tmp_path / "none.json"))


def test_helpers():
    shards = [{"url": "a", "nsamples": 1, "weight": 1}, {"url": "b", "nsamples": 1}]
    assert check_shards(shards) is shards
    set_all(shards, "weight", 5)
    set_all(shards, "name", None)
    assert [shard["weight"] for shard in shards] == [1, 5]
    assert "name" not in shards[0]
    assert [shard["url"] for shard in rebase_shardlist(shards, None)] == ["a", "b"]
    assert [shard["url"] for shard in rebase_shardlist(shards, "/x")] == ["/x/a", "/x/b"]
