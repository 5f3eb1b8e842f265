"""From shards to indexes: every kind of archive, from files and from streams, and what cannot be indexed."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import tarfile

import pytest
import xxhash
from hypothesis import given, settings

import tarmac
from harness.datasets import archives
from harness.shards import COMPRESSED_KINDS, FILES, PLAIN_KINDS, plain
from tarmac.errors import (
    ArchiveError,
    DecodeFailed,
    DuplicateField,
    IndexingError,
    NotATar,
    NotFound,
    ObjectChanged,
    SplitSample,
)
from tarmac.indexing import build as indexing
from tarmac.indexing.build import IndexOptions, index_shard, usable_index
from tarmac.indexing.meta import parse_meta
from tarmac.indexing.sidecar import read_sidecar, sidecar_url, write_sidecar
from tarmac.samples.naming import last_dot
from tarmac.storage import FileStore, register_scheme, schemes

DIGESTS = IndexOptions(digests=True)


class Slow(io.BytesIO):
    """A stream that gives a few bytes at a time."""

    def __init__(self, data, piece):
        super().__init__(data)
        self.piece = piece

    def read(self, size=-1, /):
        return super().read(min(size, self.piece))


def check_places(url, data, sidecar):
    """Every field is where the index says, with its digest, and nothing is missing."""
    samples = list(tarmac.read(url))
    assert sidecar.keys() == [sample["__key__"] for sample in samples]
    for row, sample in enumerate(samples):
        found = {}
        for member in range(sidecar.starts[row], sidecar.starts[row + 1]):
            payload = data[sidecar.offsets[member] :][: sidecar.sizes[member]]
            found[sidecar.fields[sidecar.field_of[member]]] = payload
            if sidecar.digests is not None:
                assert sidecar.digests[member] == xxhash.xxh3_64_intdigest(payload)
        assert list(found.items()) == list(sample.items())[2:]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(archives())
def test_every_field_is_where_the_index_says(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("law") / "a.tar"
    path.write_bytes(data)
    check_places(str(path), data, read_sidecar(index_shard(str(path), DIGESTS), "x"))


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_streams_give_the_same_as_files(tmp_path, monkeypatch, kind):
    data = PLAIN_KINDS[kind]()
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    check_places(str(path), data, read_sidecar(index_shard(str(path), DIGESTS), "x"))

    monkeypatch.setattr(schemes, "_registered", {})
    every = [IndexOptions(), DIGESTS, IndexOptions(meta=parse_meta("txt.size,cls.size"))]
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
        check_places(str(path), path.read_bytes(), sidecar)
    with tarfile.open(tmp_path / "python.tar", "w") as archive:
        archive.add(tmp_path / "d", "d")
    path = tmp_path / "python.tar"
    check_places(str(path), path.read_bytes(), read_sidecar(index_shard(str(path)), "x"))


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
    options = IndexOptions(digests=digests, meta=parse_meta("json.w,bin.size"))
    found = read_sidecar(index_shard(str(path), options), "x")
    assert found.column("json.w").to_pylist() == [3, 4, None]
    assert found.column("bin.size").to_pylist() == [2000, 0, 1]
    assert asked == [["json"], ["json"], []]  # the bytes of bin are not needed for its size


def test_damaged_metadata(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("a.json", b"{")]))
    with pytest.raises(DecodeFailed) as caught:
        index_shard(str(path), IndexOptions(meta=parse_meta("json.w")))
    assert (caught.value.key, caught.value.url) == ("a", str(path))
    options = IndexOptions(meta=parse_meta("json.w", on_bad="null"))
    assert read_sidecar(index_shard(str(path), options), "x").column("json.w").to_pylist() == [None]


def test_other_naming_rules(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("a.b.JPG", b""), ("a.c.JPG", b"")]))
    found = read_sidecar(index_shard(str(path), IndexOptions(split=last_dot, lower=False)), "x")
    assert (found.keys(), found.fields) == (["a.b", "a.c"], ["JPG"])


@pytest.mark.parametrize("kind", COMPRESSED_KINDS)
def test_compressed_shards_have_no_addresses(tmp_path, monkeypatch, kind):
    path = tmp_path / "a.tar"
    path.write_bytes(COMPRESSED_KINDS[kind]())
    monkeypatch.setattr(schemes, "_registered", {})
    register_scheme("mem", FileStore(lambda _url: Slow(path.read_bytes(), 1)))
    for url in (str(path), "mem://a.tar"):
        with pytest.raises(IndexingError, match="compressed") as caught:
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


def test_a_shard_that_changes_meanwhile(tmp_path, monkeypatch):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    real = indexing.read_members

    def while_reading(*args, **kw):
        yield from real(*args, **kw)
        os.utime(path, ns=(1, 1))

    monkeypatch.setattr(indexing, "read_members", while_reading)
    with pytest.raises(ObjectChanged, match="while it was being indexed"):
        index_shard(str(path))


def test_usable(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    url, place = str(path), sidecar_url(str(path))
    meta = IndexOptions(meta=parse_meta("cls.size"))
    assert usable_index(url, place) is None  # there is none
    write_sidecar(place, index_shard(url))
    assert len(usable_index(url, place)) == 3
    assert usable_index(url, place, DIGESTS) is None
    assert usable_index(url, place, meta) is None
    write_sidecar(place, index_shard(url, IndexOptions(digests=True, meta=parse_meta("cls.size,txt.size"))))
    assert len(usable_index(url, place, DIGESTS)) == 3
    assert len(usable_index(url, place, meta)) == 3
    os.utime(path, ns=(1, 1))
    assert len(usable_index(url, place)) == 3  # a copy, by all that can be seen
    assert usable_index(url, place, unchanged=True) is None
    path.write_bytes(plain([("s0.cls", b"8"), *FILES[1:]]))
    assert usable_index(url, place) is None  # stale
    path.write_bytes(plain())
    assert usable_index(url, place, IndexOptions(keep=False)) is None  # it has more than is asked for
    (tmp_path / "a.tar.arrow").write_bytes(b"junk")
    assert usable_index(url, place) is None
    path.unlink()
    write_sidecar(place, b"")
    assert usable_index(url, place) is None
