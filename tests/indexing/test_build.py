"""Building indexes: of all types of archives, from files and streams, on first use, and of invalid shards."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import tarfile

import pytest
import xxhash
from hypothesis import given, settings

import tarmac
from harness.datasets import archives, write_shards
from harness.faultserver import FaultServer
from harness.shards import COMPRESSED_KINDS, FILES, PLAIN_KINDS, plain
from tarmac.errors import (
    ArchiveError,
    BadManifest,
    DecodeFailed,
    DuplicateField,
    IndexingError,
    NotATar,
    NotFound,
    ObjectChanged,
    SplitSample,
    TransferError,
    Truncated,
    TruncatedTail,
    UsageError,
)
from tarmac.indexing import build as indexing
from tarmac.indexing.build import IndexOptions, index_shard, manifest_of, usable_index
from tarmac.indexing.manifest import Manifest, Shard, write_manifest
from tarmac.indexing.meta import meta_plan
from tarmac.indexing.sidecar import read_sidecar, sidecar_url, write_sidecar
from tarmac.samples.naming import last_dot
from tarmac.storage import FileStore, StorageOptions, register_scheme, schemes

DIGESTS = IndexOptions(digests=True)


class Slow(io.BytesIO):
    """A stream that returns a few bytes per read."""

    def __init__(self, data, piece):
        super().__init__(data)
        self.piece = piece

    def read(self, size=-1, /):
        return super().read(min(size, self.piece))


def check_extents(url, data, sidecar):
    """Every field is at its extent in the index, with its digest, and none is missing."""
    samples = list(tarmac.read(url))
    assert sidecar.keys() == [sample["__key__"] for sample in samples]
    for row, sample in enumerate(samples):
        fields = {}
        for member in range(sidecar.starts[row], sidecar.starts[row + 1]):
            payload = data[sidecar.offsets[member] :][: sidecar.sizes[member]]
            fields[sidecar.fields[sidecar.field_of[member]]] = payload
            if sidecar.digests is not None:
                assert sidecar.digests[member] == xxhash.xxh3_64_intdigest(payload)
        assert list(fields.items()) == list(sample.items())[2:]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(archives())
def test_every_field_is_at_its_extent(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("law") / "a.tar"
    path.write_bytes(data)
    check_extents(str(path), data, read_sidecar(index_shard(str(path), DIGESTS), "x"))


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_streams_and_files_give_the_same_index(tmp_path, monkeypatch, kind):
    data = PLAIN_KINDS[kind]()
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    check_extents(str(path), data, read_sidecar(index_shard(str(path), DIGESTS), "x"))

    monkeypatch.setattr(schemes, "_registered", {})
    every = [IndexOptions(), DIGESTS, IndexOptions(meta=meta_plan(["txt.size", "cls.size"]))]
    for piece, options in itertools.product((1, 700, 1 << 20), every):
        register_scheme("mem", FileStore(lambda _url, piece=piece: Slow(data, piece)))
        streamed = read_sidecar(index_shard("mem://a.tar", options), "x")
        mapped = read_sidecar(index_shard(str(path), options), "x")
        assert streamed.facts.fingerprint == mapped.facts.fingerprint
        assert (streamed.digests is None) == (mapped.digests is None) == (not options.digests)
        if options.digests:
            assert streamed.digests.tolist() == mapped.digests.tolist()
        for name in mapped.metadata:
            assert streamed.column(name) == mapped.column(name)


def test_archives_of_gnu_tar_and_of_python(tmp_path):
    (tmp_path / "d").mkdir()
    for number in range(5):
        (tmp_path / "d" / f"{number}.txt").write_bytes(b"x" * 300 * number)
        (tmp_path / "d" / f"{number}.cls").write_bytes(b"%d" % number)
    names = sorted(f"d/{name}" for name in os.listdir(tmp_path / "d"))
    for form in ("gnu", "posix", "ustar", "v7"):
        path = tmp_path / f"{form}.tar"
        subprocess.run(["tar", f"--format={form}", "-cf", path, *names], cwd=tmp_path, check=True)
        sidecar = read_sidecar(index_shard(str(path), DIGESTS), "x")
        assert len(sidecar) == 5
        check_extents(str(path), path.read_bytes(), sidecar)
    with tarfile.open(tmp_path / "python.tar", "w") as archive:
        archive.add(tmp_path / "d", "d")
    path = tmp_path / "python.tar"
    check_extents(str(path), path.read_bytes(), read_sidecar(index_shard(str(path)), "x"))


META = [
    ("a.json", b'{"w": 3}'),
    ("a.bin", b"x" * 2000),
    ("b.json", b'{"w": 4}'),
    ("b.bin", b""),
    ("c.bin", b"1"),
]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("digests", [True, False])
def test_metadata(tmp_path, monkeypatch, mapped, digests):
    path = tmp_path / "a.tar"
    path.write_bytes(plain(META))
    asked = []

    class Watched(indexing.MetaColumns):
        def add(self, sample, key, sizes=None):
            asked.append(list(sample))
            super().add(sample, key, sizes)

    monkeypatch.setattr(indexing, "MetaColumns", Watched)
    if not mapped:
        monkeypatch.setattr("tarmac.storage.local.LocalSource.map", lambda self: None)
    options = IndexOptions(digests=digests, meta=meta_plan(["json.w", "bin.size"]))
    results = read_sidecar(index_shard(str(path), options), "x")
    assert results.column("json.w").to_pylist() == [3, 4, None]
    assert results.column("bin.size").to_pylist() == [2000, 0, 1]
    assert asked == [["json"], ["json"], []]  # a size does not need the bytes


def test_damaged_metadata(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("a.json", b"{")]))
    with pytest.raises(DecodeFailed) as caught:
        index_shard(str(path), IndexOptions(meta=meta_plan(["json.w"])))
    assert (caught.value.key, caught.value.url) == ("a", str(path))
    options = IndexOptions(meta=meta_plan(["json.w"], on_bad="null"))
    assert read_sidecar(index_shard(str(path), options), "x").column("json.w").to_pylist() == [None]


def test_other_naming_rules(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("a.b.JPG", b""), ("a.c.JPG", b"")]))
    results = read_sidecar(index_shard(str(path), IndexOptions(split_name=last_dot, lower=False)), "x")
    assert (results.keys(), results.fields) == (["a.b", "a.c"], ["JPG"])


@pytest.mark.parametrize("kind", COMPRESSED_KINDS)
def test_compressed_shards_are_rejected(tmp_path, monkeypatch, kind):
    path = tmp_path / "a.tar"
    path.write_bytes(COMPRESSED_KINDS[kind]())
    monkeypatch.setattr(schemes, "_registered", {})
    register_scheme("mem", FileStore(lambda _url: Slow(path.read_bytes(), 1)))
    for url in (str(path), "mem://a.tar"):
        with pytest.raises(IndexingError, match=r"a\.tar") as caught:
            index_shard(url)
        assert caught.value.url == url


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", NotATar),
        (plain()[:1500], ArchiveError),
        (plain()[:-1024], ArchiveError),
        (plain([("a.x", b""), ("b.x", b""), ("a.y", b"")]), SplitSample),
        (plain([("a.x", b""), ("a.X", b"")]), DuplicateField),
    ],
)
def test_damage_raises(tmp_path, data, error):
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    with pytest.raises(error, match=r"a\.tar"):
        index_shard(str(path))


def test_missing(tmp_path):
    with pytest.raises(NotFound):
        index_shard(str(tmp_path / "absent.tar"))


def test_a_shard_that_changes_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    real = indexing.read_members

    def while_reading(*args, **kw):
        yield from real(*args, **kw)
        os.utime(path, ns=(1, 1))

    monkeypatch.setattr(indexing, "read_members", while_reading)
    with pytest.raises(ObjectChanged, match=r"a\.tar"):
        index_shard(str(path))


def test_which_existing_index_is_usable(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    url, index = str(path), sidecar_url(str(path))
    meta = IndexOptions(meta=meta_plan(["cls.size"]))
    assert usable_index(url, index) is None  # missing
    write_sidecar(index, index_shard(url))
    assert len(usable_index(url, index)) == 3
    assert usable_index(url, index, DIGESTS) is None
    assert usable_index(url, index, meta) is None
    write_sidecar(
        index, index_shard(url, IndexOptions(digests=True, meta=meta_plan(["cls.size", "txt.size"])))
    )
    assert len(usable_index(url, index, DIGESTS)) == 3
    assert len(usable_index(url, index, meta)) == 3
    os.utime(path, ns=(1, 1))
    assert len(usable_index(url, index)) == 3  # it looks like a copy
    assert usable_index(url, index, unchanged=True) is None
    path.write_bytes(plain([("s0.cls", b"8"), *FILES[1:]]))
    assert usable_index(url, index) is None  # stale
    path.write_bytes(plain())
    assert usable_index(url, index, IndexOptions(keep=False)) is None  # it has more than requested
    (tmp_path / "a.tar.arrow").write_bytes(b"junk")
    assert usable_index(url, index) is None
    path.unlink()
    write_sidecar(index, b"")
    assert usable_index(url, index) is None


FAST = IndexOptions(storage=StorageOptions(backoff=0.001, max_backoff=0.005, retries=1, idle_timeout=60))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_manifest_is_returned_unchanged():
    manifest = Manifest([Shard("a.tar", 1)])
    assert manifest_of(manifest) is manifest


def test_a_manifest_by_name(tmp_path):
    write_manifest(Manifest([Shard(str(tmp_path / "a.tar"), 1)], "name"), str(tmp_path / "M.JSON"))
    for source in (tmp_path / "M.JSON", str(tmp_path / "M.JSON")):
        assert manifest_of(source).name == "name"
    (tmp_path / "x.json").write_text(json.dumps({}))
    with pytest.raises(BadManifest):
        manifest_of(tmp_path / "x.json")


def test_shards_are_read_only_the_first_time(tmp_path, monkeypatch):
    urls = write_shards(tmp_path, [2, 3], index=False)
    read, real = [], indexing.read_members

    def counted(source, *args, url, **kw):
        read.append(url)
        return real(source, *args, url=url, **kw)

    monkeypatch.setattr(indexing, "read_members", counted)
    for source in (urls, str(tmp_path / "s*.tar"), str(tmp_path / "s{000..001}.tar"), iter(urls)):
        manifest = manifest_of(source)
        assert [(s.url, s.samples) for s in manifest.shards] == list(zip(urls, [2, 3], strict=True))
        assert all(s.fingerprint and s.size == os.path.getsize(s.url) for s in manifest.shards)
    assert read == urls


def test_indexes_of_remote_shards_go_to_the_cache_directory(home):
    data = plain()
    with FaultServer(data) as server:
        urls = [f"{server.url}?{number}" for number in range(20)]
        manifest = manifest_of(urls, FAST)
        assert [(shard.url, shard.samples, shard.size) for shard in manifest.shards] == [
            (url, 3, len(data)) for url in urls
        ]
        assert len(os.listdir(home / "index")) == 20
        assert not [name for name in os.listdir(home / "index") if "?" in name]
        # This server returns the shard for every URL, also for that of the index.
        server.clear()
        assert manifest_of(urls[:1], FAST).shards == manifest.shards[:1]
    with pytest.raises(TransferError):
        manifest_of(urls, FAST)


def test_one_damaged_shard_is_an_error(tmp_path):
    urls = write_shards(tmp_path, [2, 3], index=False)
    with open(urls[1], "r+b") as file:
        file.truncate(1024)
    with pytest.raises(Truncated, match=r"s001\.tar"):
        manifest_of(urls)
    with pytest.raises(NotFound):
        manifest_of([])


def test_progress_can_be_switched_off(tmp_path, capsys):
    urls = write_shards(tmp_path, [1, 1])
    manifest_of(urls, progress=False)
    assert capsys.readouterr().err == ""


def test_lenient_indexes_stay_away_from_strict_readers(tmp_path, monkeypatch):
    """A lenient dataset has the complete samples of a truncated shard; a strict one raises, before and after."""
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    shard, lenient = tmp_path / "cut.tar", tarmac.TarOptions(end="lenient")
    shard.write_bytes(plain([(f"{number}.txt", b"x" * 600) for number in range(5)])[: -1024 - 700])
    with pytest.warns(TruncatedTail):
        assert list(tarmac.Dataset(shard, tar=lenient).keys()) == ["0", "1", "2", "3"]
    assert not (tmp_path / "cut.tar.arrow").exists()
    with pytest.raises(Truncated):
        tarmac.Dataset(shard)
    assert tarmac.copy(shard, tmp_path / "whole.tar", tar=lenient).written == 4
    with pytest.raises(UsageError, match="`tar`"):
        tarmac.index(shard, tar=lenient)
