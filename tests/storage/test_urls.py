"""Patterns and lists expand to shard URLs, and data files cannot run commands."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.faultserver import FaultServer
from harness.memory import peak, reset_peak
from harness.work import calls
from storage.files import touch, write_manifest
from tarmac.errors import NotFound, TarmacError, TooManyShards, UnsafeUrl, UrlError
from tarmac.limits import Limits
from tarmac.storage import FileStore, ObjectInfo, register_scheme, schemes
from tarmac.storage.urls import expand, iter_urls


@pytest.fixture
def no_process(monkeypatch):
    """Any attempt to start a process fails the test."""

    def started(*args, **_):
        raise AssertionError(f"a process was started: {args}")

    for module, name in (
        (subprocess, "Popen"),
        (os, "system"),
        (os, "popen"),
        (os, "posix_spawn"),
        (os, "execv"),
    ):
        monkeypatch.setattr(module, name, started)


# ---- arguments


def test_strings_paths_and_iterables(cwd):
    assert expand("a.tar") == ["a.tar"]
    assert expand(Path("a.tar")) == ["a.tar"]
    assert expand(["a.tar", Path("b.tar"), "{c,d}.tar"]) == ["a.tar", "b.tar", "c.tar", "d.tar"]
    assert expand(f"{i}.tar" for i in range(2)) == ["0.tar", "1.tar"]
    assert expand("a::b{0..1}::c") == ["a", "b0", "b1", "c"]
    assert expand("-") == ["-"]


@pytest.mark.parametrize(
    "wrong",
    ["", [], [""], "a::", "::a", None, 3, b"a.tar", {"a": 1}, [b"a"], [None], [3], "a\0b", "@", "x::@"],
)
def test_invalid_arguments(wrong):
    with pytest.raises(UrlError):
        expand(wrong)


def test_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    touch(f"{tmp_path}/x.tar", f"{tmp_path}/y.tar")
    assert expand("~/x.tar") == [f"{tmp_path}/x.tar"]
    assert expand("~/{x,z}.tar") == [f"{tmp_path}/x.tar", f"{tmp_path}/z.tar"]
    assert expand("~/*.tar") == [f"{tmp_path}/x.tar", f"{tmp_path}/y.tar"]


def test_variables(monkeypatch):
    monkeypatch.setenv("WDS_ROOT", "s3://bucket")
    monkeypatch.setenv("SECRET", "x")
    assert expand("${ROOT}/{0..1}.tar") == ["s3://bucket/0.tar", "s3://bucket/1.tar"]
    with pytest.raises(UrlError, match="WDS_SECRET"):
        expand("http://host/${SECRET}")
    assert expand("pipe:cat ${HOME}/${ROOT}") == ["pipe:cat ${HOME}/s3://bucket"]


def test_remote_urls_are_unchanged(no_process):
    for url in (
        "http://host/a.tar?x=1&y=[2]",
        "http://[::1]:8080/a.tar",
        "https://host/a%20b.tar",
        "s3://bucket/a#1.tar",
        "hf://datasets/a/b/x.tar",
        "ais://b/x",
    ):
        assert expand(url) == [url]
    assert expand("http://[::1]/a::http://[fe80::1]/b") == ["http://[::1]/a", "http://[fe80::1]/b"]


ODD = [
    "a#1.tar",
    "a?b.tar",
    "a%20b.tar",
    "a:b.tar",
    "a b.tar",
    "a{0..3}.tar",
    "a{b,c}.tar",
    "a::b.tar",
    "[x].tar",
]
ODD += ["a*b.tar", "${X}.tar", "é.tar", "a&b;c.tar", "$(x).tar", "a\\b.tar", "a|b.tar", "-x.tar", "a\nb.tar"]
ODD += [
    "http:x.tar",
    "s3:x.tar",
    "#.tar",
    "?.tar",
    "100%.tar",
    "'q'.tar",
    '"q".tar',
    " lead.tar",
    "C:\\x.tar",
]


@pytest.mark.parametrize("name", ODD)
def test_existing_local_names_are_literal(cwd, name):
    touch(name, f"sub/{name}")
    assert expand(name) == [name]
    assert expand([name, f"sub/{name}"]) == [name, f"sub/{name}"]
    assert expand(cwd / name) == [f"{cwd}/{name}"]
    with schemes.open_read(name) as source:
        assert source.read(1) == b""


@pytest.mark.parametrize("name", ["a#1.tar", "a%20b.tar", "a:b.tar", "a b.tar", "é#%?.x.tar"])
def test_names_of_missing_files_are_unchanged(cwd, name):
    assert expand(name.replace("?", "")) == [name.replace("?", "")]


# ---- globs


def test_local_globs(cwd):
    touch("b1.tar", "b0.tar", "c.txt", "d/e/f.tar", ".b2.tar.part-x")
    assert expand("b*.tar") == ["b0.tar", "b1.tar"]
    assert expand("b[0].tar") == ["b0.tar"]
    assert expand("b?.tar") == ["b0.tar", "b1.tar"]
    assert expand("**/*.tar") == ["b0.tar", "b1.tar", "d/e/f.tar"]
    assert expand(f"file://{cwd}/b*.tar") == [f"{cwd}/b0.tar", f"{cwd}/b1.tar"]
    assert expand("{b0,c}*") == ["b0.tar", "c.txt"]
    with pytest.raises(NotFound, match=r"z\*"):
        expand("z*.tar")
    with pytest.raises(UrlError, match="bucket"):
        expand("s3://buck*/x.tar")


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("s3://b/x-*.tar", ["s3://b/x-.tar", "s3://b/x-1.tar"], ["s3://b/x-1/2.tar", "s3://b/x-1.tar2"]),
        ("s3://b/x-?.tar", ["s3://b/x-1.tar"], ["s3://b/x-.tar", "s3://b/x-/.tar", "s3://b/x-12.tar"]),
        ("s3://b/[ab].tar", ["s3://b/a.tar"], ["s3://b/c.tar", "s3://b/ab.tar"]),
        ("s3://b/[!ab].tar", ["s3://b/c.tar"], ["s3://b/a.tar", "s3://b//.tar"]),
        ("s3://b/[0-9]*.tar", ["s3://b/12.tar"], ["s3://b/x.tar"]),
        ("s3://b/[]^].tar", ["s3://b/].tar", "s3://b/^.tar"], ["s3://b/a.tar"]),
        ("s3://b/**/x.tar", ["s3://b/x.tar", "s3://b/1/2/x.tar"], ["s3://b/1x.tar"]),
        ("s3://b/**", ["s3://b/x", "s3://b/1/2"], ["s3://c/x"]),
        ("s3://b/a.b+(c).*", ["s3://b/a.b+(c).d"], ["s3://b/aab+(c).d", "s3://b/a.bb(c).d"]),
        ("s3://b/[.*]x", ["s3://b/.x", "s3://b/*x"], ["s3://b/ax"]),
        ("s3://b/a[", ["s3://b/a["], ["s3://b/a"]),
    ],
)
def test_remote_globs(pattern, matching, other, monkeypatch):
    class Listed(FileStore):
        def list_objects(self, prefix, storage):
            return [(url, ObjectInfo(0, None)) for url in [*other, *matching] if url.startswith(prefix)]

    monkeypatch.setattr(schemes, "_registered", {"s3": Listed(open)})
    assert expand(pattern) == sorted(matching)


# ---- lazy expansion


def test_a_pattern_for_five_million_shards_is_expanded_lazily():
    before = reset_peak()
    urls = iter_urls("s3://bucket/train-{0000000..4999999}.tar")
    first = []
    assert calls(lambda: first.append(next(urls))) < 1000
    assert first == ["s3://bucket/train-0000000.tar"]
    count = sum(1 for _ in itertools.islice(urls, 300_000))
    assert count == 300_000
    assert peak() - before < 20 << 20


def test_the_limit_applies_to_all_patterns_combined():
    with pytest.raises(TooManyShards, match="15"):
        expand(["a{0..9}", "b{0..9}"], limits=Limits(shards=15))
    assert len(expand(["a{0..9}", "b{0..4}"], limits=Limits(shards=15))) == 15


# ---- data is not code

MARKS = [
    "; touch X",
    "$(touch X)",
    "`touch X`",
    "| touch X",
    "& touch X",
    "\ntouch X",
    " > X",
    "|| touch X",
    "\\; touch X",
]
STARTS = [
    "pipe:",
    "pipe: ",
    "pipe:cat a",
    "PIPE:",
    "pipe:{a,b}",
    "pipe:${X}",
    "pipe://",
    " pipe:",
    "\tpipe:",
    "pipe:-",
]
HOSTILE = [f"{start}{mark}" for start in STARTS for mark in MARKS]
HOSTILE += [
    f"{start}{mark}"
    for start in ("-", "--", "a", "http:", "x:", "~", "a::pipe:", "{pipe:a,pipe:b}")
    for mark in MARKS
]
HOSTILE += [f"{start}touch X" for start in STARTS] + [
    "-",
    "pipe:",
    "data:,x",
    "javascript:x",
    "file:|touch X",
]
HOSTILE += [f"a.tar{mark}" for mark in MARKS] + [f"@{start}touch X" for start in STARTS]


def test_the_number_of_hostile_strings():
    assert len(set(HOSTILE)) >= 190


@pytest.mark.parametrize("carrier", ["list", "manifest", "spec", "base"])
def test_no_string_in_a_file_starts_a_process(cwd, no_process, carrier):
    for text in HOSTILE:
        if carrier == "list":
            Path("l.txt").write_text(text)
            name = "@l.txt"
        elif carrier == "manifest":
            name = write_manifest("m.json", text)
        elif carrier == "base":
            name = write_manifest("m.json", "x.tar", base=text)
        else:
            name = "s.yaml"
            Path(name).write_text(json.dumps({"prefix": text, "datasets": [{"shards": "x{0..1}"}]}))
        try:
            urls = expand(name)
        except TarmacError:
            continue
        for url in urls:
            assert schemes.scheme_of(url) not in ("pipe", "-"), (text, url)
            with pytest.raises((TarmacError, AssertionError)) as refused:
                schemes.open_read(url).close()
            assert isinstance(refused.value, TarmacError), (text, url)


def test_expanding_alone_never_starts_a_process(cwd, no_process):
    for text in HOSTILE:
        if "@pipe" in text:
            continue  # code may read a list from a command
        try:
            expand(text)
        except TarmacError:
            continue


def test_commands_in_files_are_rejected(cwd):
    for name in (
        write_manifest("m.json", "pipe:true"),
        write_manifest("m.json", "-"),
        write_manifest("m.json", "x", base="pipe:cat "),
    ):
        with pytest.raises(UnsafeUrl, match="commands"):
            expand(name)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "file:///etc/passwd", "file:/etc/passwd", "pipe:true", "-", "FILE:///x"]
)
@pytest.mark.parametrize("form", ["m.json", "l.txt", "s.yaml"])
def test_remote_lists_cannot_name_commands_or_local_files(no_process, name, form):
    if form == "m.json":
        body, prefix = json.dumps({"shardlist": [{"url": name}]}), ""
    elif form == "l.txt":
        body, prefix = name, "@"
    else:
        body, prefix = json.dumps({"datasets": [{"shards": name}]}), ""
    with FaultServer(body.encode()) as server:
        url = server.url.replace("object.tar", form)
        if name == "/etc/passwd":  # an absolute path is relative to the web server
            assert expand(prefix + url) == [server.url.replace("/object.tar", name)]
        else:
            with pytest.raises(UnsafeUrl):
                expand(prefix + url)


def test_names_in_a_remote_manifest_are_relative_to_it():
    body = json.dumps({"shardlist": [{"url": "a.tar"}, {"url": "../b.tar"}, {"url": "http://other/c.tar"}]})
    with FaultServer(body.encode()) as server:
        base = server.url.removesuffix("/object.tar")
        assert expand(f"{base}/d/m.json?sig=1") == [f"{base}/d/a.tar", f"{base}/b.tar", "http://other/c.tar"]


def test_names_in_a_manifest_of_a_store_stay_in_the_store(monkeypatch):
    import io

    monkeypatch.setattr(schemes, "_registered", {})
    text = json.dumps({"shardlist": [{"url": "a.tar"}, {"url": "/etc/passwd"}]}).encode()
    register_scheme("mem", FileStore(lambda _: io.BytesIO(text)))
    urls = iter_urls("mem://bucket/d/m.json")
    assert next(urls) == "mem://bucket/d/a.tar"
    with pytest.raises(UnsafeUrl, match="/etc/passwd"):
        next(urls)


@given(st.text(max_size=40) | st.text("{}[]*?:@~$.,-/\\0129ab", max_size=40))
@settings(deadline=None, derandomize=True, max_examples=500)
def test_any_text_expands_to_urls_or_raises_a_typed_error(text):
    try:
        for url in itertools.islice(iter_urls(text, limits=Limits(shards=1000)), 50):
            assert url
    except TarmacError:
        pass
