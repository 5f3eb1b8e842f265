"""Written samples read back or raise; a name on disk is a complete shard."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tarmac
from tarmac.errors import (
    BadName,
    CommitFailed,
    DuplicateField,
    EncodeFailed,
    MissingField,
    NoCodec,
    UsageError,
    WriteError,
)
from tarmac.indexing.build import IndexOptions, index_shard
from tarmac.samples.writer import TarWriter
from tarmac.storage import WriteOptions


def written(*samples, **options):
    stream = io.BytesIO()
    with TarWriter(stream, **options) as shard:
        for sample in samples:
            shard.write(sample)
    return stream.getvalue()


def read_back(data, tmp_path, **options):
    path = tmp_path / "back.tar"
    path.write_bytes(data)
    return [{k: v for k, v in sample.items() if k != "__url__"} for sample in tarmac.read(path, **options)]


keys = st.from_regex(r"[a-zA-Z0-9_ äß-]{1,20}(/[a-z0-9_-]{1,20}){0,2}", fullmatch=True)
fields = st.from_regex(r"[a-z0-9_-]{1,8}(\.[a-z0-9]{1,4})?", fullmatch=True).filter(
    lambda name: not name.endswith("gz") and not tarmac.samples.naming.is_reserved(name)
)


@settings(
    deadline=None,
    max_examples=200,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.dictionaries(
        keys, st.dictionaries(fields, st.binary(max_size=1500), min_size=1, max_size=4), max_size=5
    )
)
def test_round_trip(tmp_path, content):
    samples = [{"__key__": key, **values} for key, values in content.items()]
    back = read_back(written(*samples), tmp_path)
    assert back == samples
    # and by an independent reader
    with tarfile.open(fileobj=io.BytesIO(written(*samples))) as archive:
        names = archive.getnames()
    assert names == [f"{key}.{field}" for key, values in content.items() for field in sorted(values)]


def test_fields_are_sorted_and_times_are_zero():
    data = written({"__key__": "a", "txt": "x", "cls": 1})
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert [(info.name, info.mtime, info.mode, info.uname) for info in archive] == [
            ("a.cls", 0, 0o444, "bigdata"),
            ("a.txt", 0, 0o444, "bigdata"),
        ]


def test_owner_time_and_metadata():
    sample = {"__key__": "a", "txt": "x", "__meta__": "m", "_x": b"kept"}
    data = written(sample, user="u", group="g", mode=0o600, mtime=5.9, keep_meta=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        infos = archive.getmembers()
    assert [info.name for info in infos] == ["a.__meta__", "a._x", "a.txt"]
    assert {(info.uname, info.gname, info.mode, info.mtime) for info in infos} == {("u", "g", 0o600, 5)}
    assert [i.name for i in tarfile.open(fileobj=io.BytesIO(written(sample)))] == ["a._x", "a.txt"]


@pytest.mark.parametrize(
    ("format", "magic", "long_name"), [("gnu", b"ustar  \0", b"L"), ("pax", b"ustar\x0000", b"x")]
)
def test_formats(format, magic, long_name, tmp_path):
    data = written({"__key__": "a", "txt": "x"}, format=format)
    assert data[257:265] == magic
    long = written({"__key__": "k" * 200, "txt": "x"}, format=format)
    assert read_back(long, tmp_path)[0]["__key__"] == "k" * 200
    assert long[156:157] == long_name
    with pytest.raises(UsageError, match="`format`"):
        written(format="zip")


@pytest.mark.parametrize(
    ("compress", "start"),
    [
        (True, b"\x1f\x8b"),
        ("gz", b"\x1f\x8b"),
        ("bz2", b"BZh"),
        ("xz", b"\xfd7zXZ"),
        ("zst", b"\x28\xb5\x2f\xfd"),
    ],
)
def test_compression(compress, start, tmp_path):
    samples = [{"__key__": f"{i}", "txt": b"x" * i} for i in range(50)]
    data = written(*samples, compress=compress)
    assert data.startswith(start)
    assert read_back(data, tmp_path) == samples


def test_compression_from_the_name(tmp_path):
    for name, start in (
        ("a.tar.gz", b"\x1f\x8b"),
        ("a.tgz", b"\x1f\x8b"),
        ("a.tar.zst", b"\x28\xb5"),
        ("a.tar", b"k.txt"),
    ):
        with TarWriter(tmp_path / name) as shard:
            shard.write({"__key__": "k", "txt": "x"})
        assert (tmp_path / name).read_bytes().startswith(start)
    with TarWriter(str(tmp_path / "b.tgz"), compress=False) as shard:
        shard.write({"__key__": "k", "txt": "x"})
    assert (tmp_path / "b.tgz").read_bytes().startswith(b"k.txt")


def test_an_unknown_compression_touches_nothing(tmp_path):
    with pytest.raises(UsageError, match="`compress`"):
        TarWriter(tmp_path / "a.tar", compress="rar")
    assert os.listdir(tmp_path) == []


def test_encoder_argument():
    sample = {"__key__": "a", "json": {"x": 1}, "cls": 3}
    assert b'{"x": 1}' in written(sample)
    with pytest.raises(EncodeFailed, match="encoder=True"):
        written(sample, encoder=False)
    assert b"<3>" in written({"__key__": "a", "cls": 3}, encoder={"cls": lambda value: b"<%d>" % value})
    with pytest.raises(NoCodec):
        written({"__key__": "a", "json": {}}, encoder={"cls": str})
    assert b"whole" in written(sample, encoder=lambda sample: {"__key__": "b", "txt": b"whole"})
    with pytest.raises(EncodeFailed, match='field "cls"'):
        written({"__key__": "a", "cls": 3}, encoder={"cls": str})
    with pytest.raises(UsageError, match="`encoder`"):
        written(encoder="yes")
    assert b"raw" in written(
        {"__key__": "a", "cls": bytearray(b"raw"), "txt": memoryview(b"raw")}, encoder=False
    )


def test_gz_fields_are_compressed_once_and_reproducibly(tmp_path):
    data = written({"__key__": "a", "txt.gz": "hello", "json.gz": {"a": 1}, "bin.gz": b"raw"})
    assert data == written({"__key__": "a", "txt.gz": "hello", "json.gz": {"a": 1}, "bin.gz": b"raw"})
    (sample,) = read_back(data, tmp_path)
    assert gzip.decompress(sample["txt.gz"]) == b"hello"
    assert gzip.decompress(sample["json.gz"]) == b'{"a": 1}'
    assert gzip.decompress(sample["bin.gz"]) == b"raw"


@pytest.mark.parametrize(
    ("sample", "error"),
    [
        ({"txt": "x"}, MissingField),
        ({"__key__": "a"}, MissingField),
        ({"__key__": "img.001", "txt": "x"}, BadName),
        ({"__key__": "", "txt": "x"}, BadName),
        ({"__key__": "a\0b", "txt": "x"}, BadName),
        ({"__key__": "a", "t/xt": "x"}, BadName),
        ({"__key__": "a", "txt": "x", "TXT": "y"}, DuplicateField),
        ({"__key__": "a", "txt": 3}, EncodeFailed),
        ({"__key__": "a", "cls": "x", "json": object()}, EncodeFailed),
        ({"__key__": "a", "weird": [1]}, NoCodec),
        ({"__key__": "a", 3: "x"}, BadName),
    ],
)
def test_an_invalid_sample_leaves_the_shard_unchanged(sample, error, tmp_path):
    stream = io.BytesIO()
    with TarWriter(stream) as shard:
        shard.write({"__key__": "first", "txt": "1"})
        with pytest.raises(error):
            shard.write(sample)
        shard.write({"__key__": "last", "txt": "2"})
    assert [sample["__key__"] for sample in read_back(stream.getvalue(), tmp_path)] == ["first", "last"]


def test_duplicate_keys():
    with pytest.raises(BadName, match='sample "a"'):
        written({"__key__": "a", "txt": "x"}, {"__key__": "a", "cls": 1})


def test_a_failed_sample_can_be_corrected_and_written():
    stream = io.BytesIO()
    with TarWriter(stream) as shard:
        with pytest.raises(EncodeFailed):
            shard.write({"__key__": "a", "json": object()})
        assert shard.write({"__key__": "a", "json": {"ok": 1}}) == len('{"ok": 1}')


def test_keys_with_dots_need_another_naming_rule(tmp_path):
    data = written(
        {"__key__": "img.001", "jpg": b"1"}, {"__key__": "img.002", "jpg": b"2"}, split_name=tarmac.last_dot
    )
    assert [sample["__key__"] for sample in read_back(data, tmp_path, split_name=tarmac.last_dot)] == [
        "img.001",
        "img.002",
    ]


def test_nothing_is_published_before_close(tmp_path):
    path = tmp_path / "a.tar"
    writer = TarWriter(path)
    writer.write({"__key__": "a", "txt": "x"})
    assert not path.exists()
    writer.close()
    assert len(list(tarmac.read(path))) == 1
    assert os.listdir(tmp_path) == ["a.tar"]
    writer.close()
    with pytest.raises(WriteError, match="closed"):
        writer.write({"__key__": "b", "txt": "x"})


@pytest.mark.parametrize("k", range(5))
def test_an_exception_inside_with_publishes_nothing(tmp_path, k):
    path = tmp_path / "a.tar"
    with pytest.raises(RuntimeError, match="boom"), TarWriter(path) as shard:
        for i in range(5):
            if i == k:
                raise RuntimeError("boom")
            shard.write({"__key__": f"{i}", "txt": "x"})
    assert os.listdir(tmp_path) == []


def test_the_same_samples_make_the_same_bytes(tmp_path):
    script = (
        "import tarmac, sys, numpy\n"
        "with tarmac.TarWriter('-') as w:\n"
        "    for i in range(20):\n"
        "        w.write({'__key__': f'{i}', 'txt': 'x' * i, 'json': {'a': i}, 'npy': numpy.arange(i),"
        " 'npz': {'a': numpy.arange(3)}, 'txt.gz': 'y' * i, 'png': numpy.zeros((3, 4, 3), 'uint8')})\n"
    )
    digests = set()
    for seed in ("0", "1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=env, check=True)
        digests.add(hashlib.sha256(done.stdout).hexdigest())
    assert len(digests) == 1


def test_overwriting(tmp_path):
    path = tmp_path / "a.tar"
    for text in ("one", "two"):
        with TarWriter(path) as shard:
            shard.write({"__key__": "a", "txt": text})
    assert next(iter(tarmac.read(path)))["txt"] == b"two"
    with pytest.raises(CommitFailed, match="exists"):
        TarWriter(path, write=WriteOptions(overwrite=False))


def test_two_writers_of_one_name(tmp_path):
    path = tmp_path / "a.tar"
    first, second = TarWriter(path), TarWriter(path)
    for writer, text in ((first, "first"), (second, "second")):
        writer.write({"__key__": "a", "txt": text})
    first.close()
    with pytest.raises(CommitFailed, match=r"a\.tar: .*overwrite=True"):
        second.close()
    assert next(iter(tarmac.read(path)))["txt"] == b"first"
    assert os.listdir(tmp_path) == ["a.tar"]


def test_numpy_integers_as_class():
    assert b"7" in written({"__key__": "a", "cls": np.int64(7)})


@settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.dictionaries(
        keys, st.dictionaries(fields, st.binary(max_size=1500), min_size=1, max_size=4), max_size=5
    ),
    st.sampled_from(["auto", "gnu", "pax"]),
)
def test_an_index_written_with_the_shard_equals_one_built_later(tmp_path, content, format):
    path = tmp_path / "a.tar"
    with TarWriter(path, index=True, format=format, keep_meta=True) as shard:
        for key, values in content.items():
            shard.write({"__key__": key, "__note__": b"not read", "long" * 40: b"long", **values})
    assert shard.sidecar == f"{path}.arrow"
    built = index_shard(str(path), IndexOptions(digests=True))
    assert (tmp_path / "a.tar.arrow").read_bytes() == built


def test_no_index_by_default_or_after_a_failure(tmp_path):
    with TarWriter(tmp_path / "a.tar") as shard:
        shard.write({"__key__": "a", "x": b""})
    assert shard.sidecar is None
    with pytest.raises(RuntimeError), TarWriter(tmp_path / "b.tar", index=True) as shard:
        shard.write({"__key__": "a", "x": b""})
        raise RuntimeError
    assert os.listdir(tmp_path) == ["a.tar"]
    with TarWriter(tmp_path / "c.tar", index=True) as shard:
        shard.write({"__key__": "a", "x": b"1"})
        with pytest.raises(NoCodec):
            shard.write({"__key__": "b", "x": b"1", "y": object()})
        shard.write({"__key__": "c", "x": b"2"})
    built = index_shard(str(tmp_path / "c.tar"), IndexOptions(digests=True))
    assert (tmp_path / "c.tar.arrow").read_bytes() == built


@pytest.mark.parametrize("target", [io.BytesIO(), "a.tar.gz", "pipe:cat >/dev/null", "-"])
def test_targets_that_cannot_be_indexed_raise_before_writing(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="`index`"):
        TarWriter(target, index=True)
    assert os.listdir(tmp_path) == []


def test_memory_views_are_written_as_they_were_when_passed(tmp_path):
    """Test a reused buffer, four-byte integers and a strided view."""
    path = str(tmp_path / "x.tar")
    buffer = bytearray(1 << 16)
    numbers = np.arange(20_000, dtype=np.int32)
    fixed = bytes(range(256)) * 256
    with TarWriter(path) as writer:
        for letter in b"ABC":
            buffer[:] = bytes([letter]) * len(buffer)
            writer.write({"__key__": chr(letter), "bin": memoryview(buffer)})
            writer.write({"__key__": f"{chr(letter)}r", "bin": memoryview(buffer).toreadonly()})
        writer.write({"__key__": "n", "bin": memoryview(numbers)})
        writer.write({"__key__": "s", "bin": memoryview(fixed)[::2]})
        writer.write({"__key__": "v", "bin": memoryview(fixed)[1000:]})
    result = {sample["__key__"]: sample["bin"] for sample in tarmac.read(path)}
    for letter in "ABC":
        assert result[letter] == result[f"{letter}r"] == letter.encode() * len(buffer)
    assert result["n"] == numbers.tobytes()
    assert result["s"] == fixed[::2]
    assert result["v"] == fixed[1000:]


@pytest.mark.parametrize("writer", ["TarWriter", "ShardWriter"])
def test_a_missing_compression_library_leaves_nothing(writer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "backports", None)
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    with pytest.raises(ImportError):
        if writer == "TarWriter":
            TarWriter(tmp_path / "x.tar.zst")
        else:
            tarmac.ShardWriter(str(tmp_path / "x-%d.tar.zst")).write({"__key__": "a", "txt": "x"})
    assert os.listdir(tmp_path) == []
