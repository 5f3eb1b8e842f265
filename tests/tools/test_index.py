"""Index shards through `tarmac.index`: in parallel, again, more of them, elsewhere; and find stale indexes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import tarmac
from harness.datasets import write_shards
from harness.servers import required, seaweed_s3
from harness.shards import header_offsets, plain
from tarmac import index
from tarmac.errors import (
    BadManifest,
    IndexDamaged,
    IndexMissing,
    IndexStale,
    NotFound,
    Truncated,
    UrlError,
    UsageError,
)
from tarmac.errors import WriteError as CannotWrite
from tarmac.exact.dataset import Dataset
from tarmac.indexing.build import index_shard
from tarmac.indexing.manifest import Manifest, Shard, read_manifest, write_manifest
from tarmac.storage import StorageOptions, open_write, read_range
from tarmac.tools.index import stale_shards


@pytest.fixture
def urls(tmp_path):
    return write_shards(tmp_path, [3, 0, 4], index=False)


@pytest.fixture
def manifest(tmp_path):
    return str(tmp_path / "all.json")


def sidecars(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.arrow")}


def test_shards_and_their_manifest(urls, manifest, tmp_path):
    report = index(urls, manifest)
    assert (report.built, report.up_to_date) == (urls, [])
    assert report.manifest == read_manifest(manifest)
    assert report.manifest.name == "all"
    assert [shard.samples for shard in report.manifest.shards] == [3, 0, 4]
    assert sidecars(tmp_path) == {f"{os.path.basename(url)}.arrow": index_shard(url) for url in urls}
    assert list(Dataset(manifest)) == list(tarmac.read(urls))
    names = [entry["url"] for entry in json.loads(Path(manifest).read_text())["shardlist"]]
    assert names == [os.path.basename(url) for url in urls]


def test_parallel_jobs_give_the_same(urls, manifest, tmp_path):
    options = {"digests": True, "meta": ["cls", "txt.size"]}
    index(urls, manifest, **options)
    one, text = sidecars(tmp_path), Path(manifest).read_text()
    for name in one:
        (tmp_path / name).unlink()
    report = index(urls, manifest, **options, jobs=2)
    assert report.built == urls
    assert (sidecars(tmp_path), Path(manifest).read_text()) == (one, text)
    with open(urls[0], "r+b") as file:
        file.truncate(600)
    with pytest.raises(Truncated, match=r"s000\.tar"):
        index(urls, manifest, **options, jobs=2)
    assert Path(manifest).read_text() == text


def test_only_what_changed_is_read_again(urls, manifest):
    index(urls, manifest)
    report = index(urls, manifest)
    assert (report.built, report.up_to_date) == ([], urls)
    os.utime(urls[1], ns=(5, 5))
    assert index(urls, manifest).built == [urls[1]]
    assert index(urls, manifest, digests=True).built == urls
    assert index(urls, manifest).built == []  # more than asked for is fine
    assert index(urls, manifest, meta=["cls"]).built == urls
    assert index(urls, manifest, meta=["cls"]).built == []
    assert len(Dataset(manifest).where("cls >= 5")) == 2


def test_a_dataset_that_grows(urls, manifest, tmp_path, monkeypatch):
    elsewhere = tmp_path / "idx"
    index(urls[:2], manifest, sidecars=str(elsewhere), name="named", info={"a": 1})
    assert not sidecars(tmp_path)
    monkeypatch.chdir(tmp_path)
    report = index("./s*.tar", "all.json", add=True)  # names written in another way
    assert (report.built, report.kept) == (["./s002.tar"], 2)
    results = read_manifest(manifest)
    assert [os.path.basename(shard.url) for shard in results.shards] == ["s000.tar", "s001.tar", "s002.tar"]
    assert (results.name, results.info) == ("named", {"a": 1})
    assert results.shards[0].index == str(elsewhere / "s000.tar.arrow")
    assert list(Dataset(manifest).keys()) == [f"{i:05d}" for i in range(7)]
    assert set(sidecars(tmp_path)) == {"s002.tar.arrow"}
    assert index(urls, str(tmp_path / "new.json"), add=True).manifest.samples == 7  # nothing to add to


def test_what_other_tools_say_of_shards_is_kept(urls, manifest):
    extra = {"md5sum": "77", "dataset": "d"}
    write_manifest(Manifest([Shard(urls[0], 3, extra=extra)]), manifest)
    index(urls[1:], manifest, add=True)
    results = read_manifest(manifest).shards
    assert results[0].extra == extra
    assert results[0].fingerprint is not None
    assert results[1].extra == {}


def test_indexes_in_a_directory_of_their_own(urls, manifest, tmp_path):
    index(urls, manifest, sidecars=str(tmp_path / "deep/idx"))
    assert len(os.listdir(tmp_path / "deep/idx")) == 3
    assert not sidecars(tmp_path)
    (tmp_path / "moved").mkdir()
    for name in ("all.json", "deep", *map(os.path.basename, urls)):
        shutil.move(tmp_path / name, tmp_path / "moved" / name)
    assert len(list(Dataset(tmp_path / "moved/all.json"))) == 7
    (tmp_path / "b").mkdir()
    twin = write_shards(tmp_path / "b", [1])
    with pytest.raises(UsageError, match="`sidecars`"):
        index([str(tmp_path / "moved/s000.tar"), *twin], sidecars=str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("names", "manifest"),
    [
        (["train-000.tar", "train-001.tar"], "train.json"),
        (["train-000.tar"], "train.json"),
        (["v2-7.tar", "v2-8.tar"], "v2.json"),
        (["000.tar", "001.tar"], "index.json"),
        (["a.tar", "b.tar"], "index.json"),
    ],
)
def test_the_manifest_is_beside_the_shards_by_default(tmp_path, names, manifest):
    shards = write_shards(tmp_path, [2] * len(names), index=False)
    urls = [str(tmp_path / name) for name in names]
    for shard, url in zip(shards, urls, strict=True):
        os.rename(shard, url)
    assert index(urls, dry_run=True).output == str(tmp_path / manifest)
    assert not (tmp_path / manifest).exists()
    report = index(urls)
    assert report.output == str(tmp_path / manifest)
    assert read_manifest(report.output) == report.manifest
    assert index(urls, sidecars=str(tmp_path / "side")).output == str(tmp_path / "side" / manifest)
    assert index(report.output).output is None  # a manifest is not written again by itself


def test_a_default_manifest_replaces_only_one_of_the_same_shards(urls, tmp_path):
    manifest = tmp_path / "s.json"
    manifest.write_text("notes")
    with pytest.raises(UrlError, match=r"s\.json"):
        index(urls)
    assert manifest.read_text() == "notes"
    assert not list(tmp_path.glob("*.arrow"))
    manifest.unlink()
    index(urls[:2])
    assert index(urls).manifest.urls == urls  # more of them
    with pytest.raises(UsageError, match=r"s\.json.*`add`.*`output`"):
        index(urls[1:])
    assert index(urls[1:], add=True).manifest.urls == urls
    assert index(urls[1:], manifest).manifest.urls == urls[1:]
    (tmp_path / "b").mkdir()
    report = index([*urls, *write_shards(tmp_path / "b", [1])])
    assert report.output is None
    assert "`output`" in report.remarks[0]


def test_columns_without_a_value_are_reported(urls):
    assert index(urls, meta=["cls", "json.widht"]).remarks == [
        "no sample has a value in the column json.widht"
    ]
    assert index(urls, meta=["cls"]).remarks == []


def test_the_same_shard_twice(urls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for twice in ([urls[0], urls[0]], [urls[0], "s000.tar"], ["./s000.tar", f"file://{urls[0]}"]):
        with pytest.raises(UsageError, match="s000"):
            index(twice)


def test_what_cannot_be_done(urls, manifest, tmp_path):
    with pytest.raises(UsageError, match="`dali`"):
        index(urls, dali=True, digests=True)
    with pytest.raises(NotFound):
        index([*urls, str(tmp_path / "absent.tar")], manifest)
    assert not os.path.exists(manifest)
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match="`sidecars`"):
        index(urls, sidecars=str(tmp_path / "file"))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(BadManifest):
        index(urls, str(tmp_path / "bad.json"), add=True)
    with pytest.raises(UrlError, match=r"s000\.tar"):
        index(urls, "s3://bucket/m.json")


def test_taking_over_from_dali(urls, manifest, tmp_path):
    for url in urls:
        data, lines = Path(url).read_bytes(), []
        for start in header_offsets(data):
            name = data[start : start + 100].rstrip(b"\0").decode()
            size, extension = int(data[start + 124 : start + 135], 8), name.partition(".")[2]
            lines.append(f"{extension} {start + 512} {size} {name}")
        pairs = [f"{a} {b}" for a, b in zip(lines[::2], lines[1::2], strict=True)]
        with open(f"{url[:-4]}.idx", "w") as file:
            file.write(f"v1.2 {len(pairs)}\n" + "".join(f"{pair}\n" for pair in pairs))
    index(urls, manifest, dali=True)
    taken = sidecars(tmp_path)
    assert taken == {f"{os.path.basename(url)}.arrow": index_shard(url) for url in urls}
    assert list(Dataset(manifest)) == list(tarmac.read(urls))


def test_what_is_stale(urls, manifest, tmp_path):
    index(urls, manifest)
    assert list(stale_shards(manifest)) == []

    def stale():
        return [(os.path.basename(bad.url), type(bad.error)) for bad in stale_shards(manifest)]

    os.utime(urls[0], ns=(5, 5))
    assert stale() == []  # as it is with a copy
    content = Path(urls[0]).read_bytes()
    Path(urls[0]).write_bytes(content.replace(b"00000.cls", b"0000x.cls"))
    assert stale() == [("s000.tar", IndexStale)]
    (tmp_path / "s001.tar.arrow").unlink()
    shutil.copy(tmp_path / "s000.tar.arrow", tmp_path / "s002.tar.arrow")
    assert stale() == [("s000.tar", IndexStale), ("s001.tar", IndexMissing), ("s002.tar", IndexStale)]
    Path(urls[0]).write_bytes(content)
    with open(urls[2], "wb") as file:
        file.write(plain([("other.x", b"")]))
    index(urls, None)
    assert stale() == [("s002.tar", IndexDamaged)]  # it has an index, but of other samples than listed
    os.unlink(urls[0])
    assert stale()[0] == ("s000.tar", NotFound)


@pytest.fixture(scope="module")
def s3():
    with required(seaweed_s3()) as server:
        server.make_bucket("data")
        yield server


def test_a_bucket(urls, s3, tmp_path):
    storage = StorageOptions(config=s3.config(), backoff=0.01, retries=3)
    remote = []
    for url in urls:
        remote.append(f"s3://data/d/{os.path.basename(url)}")
        sink = open_write(remote[-1], storage)
        sink.write(Path(url).read_bytes())
        sink.commit()
    manifest = "s3://data/d/all.json"
    report = index("s3://data/d/*.tar", manifest, digests=True, storage=storage)
    assert report.built == remote
    assert index(remote, manifest, storage=storage).built == []
    text = read_range(manifest, 0, 10, storage)
    assert text.startswith(b"{")
    ds = Dataset(manifest, storage=storage, verify=True)
    assert [sample["cls"] for sample in ds] == [sample["cls"] for sample in tarmac.read(urls)]
    assert [s["__key__"] for s in ds.batch([6, 0, 3])] == ["00006", "00000", "00003"]
    local = index(remote, str(tmp_path / "local.json"), storage=storage)
    assert local.manifest.fingerprint == report.manifest.fingerprint
    assert len(Dataset(tmp_path / "local.json", storage=storage)) == 7
    sink = open_write(remote[0], storage)
    sink.write(plain())
    sink.commit()
    assert [bad.url for bad in stale_shards(manifest, storage=storage)] == remote[:1]
