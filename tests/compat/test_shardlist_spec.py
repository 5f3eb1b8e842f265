"""Lists of shards in JSON: names, bases, references, and what data may not ask for."""

from __future__ import annotations

import io
import json

import pytest

from tarmac.compat.shardlist_spec import (
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


def listed(*urls, **more):
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
def far(tmp_path):
    """Files of tmp_path under far://host/."""
    register_scheme("far", FileStore(lambda url: open(tmp_path / url.removeprefix("far://host/"), "rb")))
    yield "far://host"
    del schemes._registered["far"]


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


def test_names_are_relative_to_the_list(write, tmp_path, far, monkeypatch):
    path = write("d/list.json", listed("a.tar", "/abs/b.tar", "s3://bucket/c.tar"))
    assert urls(load_dsdesc_and_resolve(path)) == [f"{tmp_path}/d/a.tar", "/abs/b.tar", "s3://bucket/c.tar"]
    monkeypatch.chdir(tmp_path)
    assert urls(load_dsdesc_and_resolve("d/list.json"))[0] == "d/a.tar"
    write("far.json", listed("a.tar"))
    assert urls(load_dsdesc_and_resolve(f"{far}/far.json")) == ["far://host/a.tar"]


def test_the_base_of_a_list_counts(write, tmp_path):
    """In wids the one at the top was ignored."""
    path = write("list.json", listed("a.tar", base="s3://bucket/x"))
    assert urls(load_dsdesc_and_resolve(path)) == ["s3://bucket/x/a.tar"]
    assert urls(load_dsdesc_and_resolve(path, base="/mine")) == ["/mine/a.tar"]
    below = write("below.json", listed("a.tar", base="sub"))
    assert urls(load_dsdesc_and_resolve(below)) == [f"{tmp_path}/sub/a.tar"]


def test_datasets_of_a_list(write, tmp_path):
    write("sub/other.json", listed("b.tar", name="other"))
    spec = listed("a.tar", name="top", weight=3)
    spec["datasets"] = [
        {"source_url": "sub/other.json", "weight": 2},
        {"shardlist": [{"url": "c.tar", "nsamples": 1}], "base": "s3://c", "name": "third"},
    ]
    path = write("list.json", spec)
    found = load_dsdesc_and_resolve(path)
    assert found["name"] == "top"
    assert found["shardlist"] == [
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
    with pytest.raises(BadManifest, match="refer to another"):
        load_dsdesc_and_resolve(path)


def test_open_files_and_options():
    text = json.dumps(listed("s3://b/a.tar"))
    assert urls(load_dsdesc_and_resolve(io.StringIO(text))) == ["s3://b/a.tar"]
    found = load_dsdesc_and_resolve(io.BytesIO(text.encode()), options={"name": "mine"}, base="/x")
    assert found["name"] == "mine"
    spec = listed("a.tar")
    assert urls(resolve_dsdesc(spec, base="/x")) == ["/x/a.tar"]
    assert urls(spec) == ["a.tar"]  # what was given is not changed


def test_a_list_runs_no_commands_and_a_remote_one_names_no_local_files(write, far):
    for name in ("pipe:touch /tmp/x", "-"):
        with pytest.raises(UnsafeUrl, match="commands"):
            load_dsdesc_and_resolve(write("list.json", listed(name, base="")))
    for spec in (listed("file:///etc/passwd"), listed("passwd", base="file:///etc")):
        write("far.json", spec)
        with pytest.raises(UnsafeUrl, match="local file"):
            load_dsdesc_and_resolve(f"{far}/far.json")
    write("far.json", listed("a.tar"))
    assert urls(load_dsdesc_and_resolve(f"{far}/far.json", base="/mirror")) == ["/mirror/a.tar"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "JSON"),
        ("[]", "object"),
        ("{}", "wids_version"),
        ('{"wids_version": 2, "shardlist": []}', "wids_version"),
        ('{"wids_version": 1, "shardlist": []}', "no shards"),
        ('{"wids_version": 1, "shardlist": {"a": 1}}', "not dict"),
        ('{"wids_version": 1, "shardlist": [3]}', "nsamples"),
        ('{"wids_version": 1, "shardlist": [{"url": "a.tar"}]}', "nsamples"),
        ('{"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": -1}]}', "nsamples"),
        ('{"wids_version": 1, "base": 3, "shardlist": [{"url": "a.tar", "nsamples": 1}]}', "base"),
        ('{"wids_version": 1, "datasets": [3]}', "datasets"),
        ('{"wids_version": 1, "datasets": [{}]}', "shardlist"),
    ],
)
def test_what_is_no_list(tmp_path, text, says):
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(BadManifest, match=says) as caught:
        load_dsdesc_and_resolve(str(path))
    assert "list.json" in str(caught.value)


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(NotFound):
        load_dsdesc_and_resolve(str(tmp_path / "none.json"))


def test_small_parts():
    shards = [{"url": "a", "nsamples": 1, "weight": 1}, {"url": "b", "nsamples": 1}]
    assert check_shards(shards) is shards
    set_all(shards, "weight", 5)
    set_all(shards, "name", None)
    assert [shard["weight"] for shard in shards] == [1, 5]
    assert "name" not in shards[0]
    assert [shard["url"] for shard in rebase_shardlist(shards, None)] == ["a", "b"]
    assert [shard["url"] for shard in rebase_shardlist(shards, "/x")] == ["/x/a", "/x/b"]
