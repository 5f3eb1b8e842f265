"""Manifests of tarmac and widsindex: read, written, rejected and shown."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness.memory import peak, reset_peak
from harness.work import calls
from storage.caches import Origin
from tarmac.errors import BadManifest, NotFound, TarmacError, UnsafeUrl, UrlError
from tarmac.indexing.manifest import Manifest, Shard, _resolver, read_manifest, relative_name, write_manifest
from tarmac.storage import FileStore, register_scheme, schemes
from tarmac.storage.urls import allowed_name


def written(path, **content):
    path.write_text(json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1} | content))
    return str(path)


SHARDS = st.lists(
    st.builds(
        Shard,
        st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=6).map(
            lambda name: f"/data/{name}.tar"
        ),
        st.integers(0, 2**31 - 1),
        st.none() | st.integers(0, 1 << 60),
        st.none() | st.just("/data/sub/x.arrow") | st.just("/elsewhere/x.arrow"),
        st.none() | st.just("f00"),
        st.just({}) | st.just({"md5sum": "1", "dataset": "d"}),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(SHARDS, st.text(), st.none() | st.text() | st.dictionaries(st.text(), st.integers()))
def test_written_and_read_again(tmp_path_factory, shards, name, info):
    folder = tmp_path_factory.mktemp("m")

    def moved(shard, root):
        index = None if shard.index is None else shard.index.replace("/data", root, 1)
        return Shard(
            shard.url.replace("/data", root, 1),
            shard.samples,
            shard.size,
            index,
            shard.fingerprint,
            shard.extra,
        )

    write_manifest(
        Manifest([moved(shard, str(folder)) for shard in shards], name, info), str(folder / "m.json")
    )
    # Names are relative, so the whole directory may be moved.
    folder = folder.rename(folder.with_name(f"{folder.name}-moved"))
    results = read_manifest(str(folder / "m.json"))
    assert results.name == name
    assert results.info == info
    expected = [moved(shard, str(folder)) for shard in shards]
    tidy = [
        (os.path.normpath(s.url), s.samples, s.size, s.index, s.fingerprint, s.extra) for s in results.shards
    ]
    assert tidy == [(s.url, s.samples, s.size, s.index, s.fingerprint, s.extra) for s in expected]


def test_names_that_are_not_text(tmp_path):
    shards = [Shard(str(tmp_path / "a\udcff.tar"), 1), Shard(str(tmp_path / "é.tar"), 2)]
    write_manifest(Manifest(shards), str(tmp_path / "m.json"))
    assert read_manifest(str(tmp_path / "m.json")).shards == shards
    assert "é.tar" in (tmp_path / "m.json").read_text()


def test_manifests_have_what_wids_needs(tmp_path):
    shards = [Shard(str(tmp_path / "a.tar"), 3, 2048, None, "f00"), Shard("s3://b/c.tar", 4)]
    write_manifest(Manifest(shards, "name", "about"), str(tmp_path / "m.json"))
    results = json.loads((tmp_path / "m.json").read_text())
    fingerprint = Manifest(shards).fingerprint
    assert results == {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "name": "name",
        "info": "about",
        "tarmac": {"version": 1, "samples": 7, "fingerprint": fingerprint},
        "shardlist": [
            {"url": "a.tar", "nsamples": 3, "filesize": 2048, "fingerprint": "f00"},
            {"url": "s3://b/c.tar", "nsamples": 4},
        ],
    }


def test_manifests_of_widsindex(tmp_path):
    shard = {"url": "a.tar", "nsamples": 2, "filesize": 9, "md5sum": "77"}
    results = read_manifest(written(tmp_path / "m.json", shardlist=[shard], name="d"))
    assert results.shards == [Shard(str(tmp_path / "a.tar"), 2, 9, extra={"md5sum": "77"})]
    based = read_manifest(written(tmp_path / "m.json", shardlist=[shard], base="/data/"))
    assert based.shards[0].url == "/data/a.tar"
    remote = read_manifest(written(tmp_path / "m.json", shardlist=[shard], base="gs://b/x"))
    assert remote.shards[0].url == "gs://b/x/a.tar"
    nested = {"datasets": [{"shardlist": [shard]}, {"base": "/b", "shardlist": [shard]}], "base": "/a"}
    assert [s.url for s in read_manifest(written(tmp_path / "m.json", **nested)).shards] == [
        "/a/a.tar",
        "/b/a.tar",
    ]


def test_without_kind_and_version(tmp_path):
    (tmp_path / "m.json").write_text('{"shardlist": [{"url": "a.tar", "nsamples": 2}]}')
    assert read_manifest(str(tmp_path / "m.json")).samples == 2


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("\xff", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[]", "JSON"),
        ("{}", "shardlist"),
        ('{"shardlist": []}', "shards"),
        ('{"shardlist": 3}', "shardlist"),
        ('{"shardlist": [3]}', "url"),
        ('{"shardlist": [{"url": 3, "nsamples": 1}]}', "url"),
        ('{"shardlist": [{"url": "", "nsamples": 1}]}', "empty"),
        ('{"shardlist": [{"url": "a.tar"}]}', "nsamples"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": -1}]}', "nsamples"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": "1"}]}', "nsamples"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": true}]}', "nsamples"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": 1e3}]}', "nsamples"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": 9999999999999999999999}]}', "nsamples"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": 1, "filesize": "1"}]}', "filesize"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": 1, "filesize": -1}]}', "filesize"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": 1, "index": 3}]}', "index"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": 1, "fingerprint": 3}]}', "fingerprint"),
        ('{"__kind__": "other", "shardlist": []}', "'other'"),
        ('{"wids_version": 2, "shardlist": []}', "wids 2"),
        ('{"tarmac": {"version": 2}, "shardlist": []}', "tarmac 2"),
        ('{"datasets": [{"source_url": "x.json"}]}', "shardlist"),
    ],
)
def test_invalid_manifests(tmp_path, text, match):
    path = tmp_path / "m.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadManifest, match=match) as caught:
        read_manifest(str(path))
    assert str(path) in str(caught.value)


def test_missing(tmp_path):
    with pytest.raises(NotFound):
        read_manifest(str(tmp_path / "absent.json"))


@pytest.mark.parametrize("field", ["url", "index"])
def test_data_runs_no_commands(tmp_path, field):
    for name in ("pipe:rm -rf /", " pipe:x", "-"):
        shard = {"url": "a.tar", "nsamples": 1} | {field: name}
        with pytest.raises(UnsafeUrl):
            read_manifest(written(tmp_path / "m.json", shardlist=[shard]))


@pytest.mark.parametrize("field", ["url", "index"])
@pytest.mark.parametrize("name", ["/etc/passwd", "file:///etc/passwd", "pipe:id", "~/x"])
def test_a_remote_manifest_cannot_name_local_files(monkeypatch, field, name):
    monkeypatch.setattr(schemes, "_registered", {})
    shard = {"url": "a.tar", "nsamples": 1} | {field: name}
    origin = Origin()
    origin.body = lambda _url: json.dumps({"shardlist": [shard]}).encode()
    register_scheme("mem", FileStore(origin.open))
    if name == "~/x":
        results = read_manifest("mem://b/m.json").shards[0]
        assert (results.url if field == "url" else results.index) == "mem://b/~/x"
        return
    with pytest.raises(UnsafeUrl):
        read_manifest("mem://b/m.json")


@pytest.mark.parametrize(
    ("url", "manifest", "name"),
    [
        ("a.tar", "m.json", "a.tar"),
        ("d/a.tar", "m.json", "d/a.tar"),
        ("/x/a.tar", "/x/m.json", "a.tar"),
        ("/x/a.tar", "/xy/m.json", "/x/a.tar"),
        ("/a.tar", "/m.json", "a.tar"),
        ("/x/a.tar", "/x/y/m.json", "/x/a.tar"),
        ("/x/a:b.tar", "/x/m.json", "./a:b.tar"),
        ("/x/-", "/x/m.json", "./-"),
        ("/x/~a.tar", "/x/m.json", "./~a.tar"),
        ("s3://b/a.tar", "/x/m.json", "s3://b/a.tar"),
        ("s3://b/d/a.tar", "s3://b/d/m.json", "a.tar"),
        ("s3://b/d/pipe:a.tar", "s3://b/d/m.json", "s3://b/d/pipe:a.tar"),
        ("s3://b/e/a.tar", "s3://b/d/m.json", "s3://b/e/a.tar"),
        ("https://h/d/a.tar", "https://h/d/m.json?sig=1", "a.tar"),
        ("https://h/d/a.tar?sig=2", "https://h/d/m.json", "https://h/d/a.tar?sig=2"),
        ("https://h/d/a.tar#b", "https://h/d/m.json", "https://h/d/a.tar#b"),
    ],
)
def test_relative_names(url, manifest, name):
    assert relative_name(url, manifest) == name


def test_a_remote_manifest_of_local_shards_is_rejected():
    with pytest.raises(UrlError, match=r"/data/a\.tar"):
        write_manifest(Manifest([Shard("/data/a.tar", 1)]), "s3://bucket/m.json")


def test_fingerprints():
    def of(*shards):
        return Manifest([Shard(*shard) for shard in shards]).fingerprint

    first = of(("/x/a.tar", 3, 9, None, "f1"), ("/x/b.tar", 4, 9, None, "f2"))
    assert of(("s3://y/q.tar", 3, 9, "i", "f1"), ("s3://y/r.tar", 4, 9, None, "f2")) == first
    assert of(("/x/b.tar", 4, 9, None, "f2"), ("/x/a.tar", 3, 9, None, "f1")) != first
    assert of(("/x/a.tar", 3, 9, None, "f1")) != first
    assert of(("/x/a.tar", 3, 9)) == of(("/y/a.tar", 3, 9)) != of(("/y/b.tar", 3, 9))


def test_a_manifest_shows_its_size_and_no_secrets():
    shards = [Shard(f"https://user:secret@h/<{number}>.tar", 10, 1000) for number in range(12)]
    manifest = Manifest(shards, "train")
    assert repr(manifest).startswith("Manifest('train', 12 shards, 120 samples, 12000 bytes, first 'https://")
    assert repr(Manifest([Shard("a.tar", 1)])) == "Manifest(1 shard, 1 sample, first 'a.tar')"
    html = manifest._repr_html_()
    assert "&lt;0&gt;.tar" in html
    assert "and 2 more" in html
    assert "secret" not in html + repr(manifest)


NAMES = st.text(st.sampled_from("ab./-_:~@ %?#é"), min_size=1, max_size=8)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(NAMES, st.sampled_from(["m.json", "/x/m.json", "s3://b/d/m.json", "https://h/d/m.json?a=/b"]))
def test_the_fast_path_resolves_names_as_all_others(name, manifest):
    try:
        expected = allowed_name(manifest, name)
    except UrlError as error:
        with pytest.raises(type(error)):
            _resolver(manifest)(name)
    else:
        assert _resolver(manifest)(name) == expected


def test_a_hundred_thousand_shards(tmp_path):
    shards = [
        Shard(f"{tmp_path}/train-{i:06d}.tar", 10_000, 10**9 + i, None, f"{i:032x}") for i in range(100_000)
    ]
    path = str(tmp_path / "m.json")
    write_manifest(Manifest(shards), path)
    before = reset_peak()
    results = read_manifest(path)
    assert peak() - before < 250 << 20
    assert results.samples == 10**9
    assert results.shards == shards
    assert results.fingerprint == Manifest(shards).fingerprint
    assert calls(lambda: read_manifest(path)) < 20 * len(shards)
    assert calls(lambda: Manifest(shards).fingerprint) < 20 * len(shards)


@pytest.mark.parametrize("field", ["url", "index", "fingerprint"])
def test_lone_surrogates_are_rejected(tmp_path, field):
    entry = {"url": "x.tar", "nsamples": 1} | {field: "x\ud800.tar"}
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"wids_version": 1, "shardlist": [entry]}))
    with pytest.raises(BadManifest, match="surrogate"):
        read_manifest(str(path))
    with pytest.raises(TarmacError):
        tarmac.Dataset(str(path))
