"""Reading shards: order, fields, naming rules, and damage that stays in one shard."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

import tarmac
from harness.shards import header_offsets, plain
from tarmac.errors import (
    BadChecksum,
    LimitExceeded,
    MissingField,
    NotFound,
    Truncated,
    TruncatedTail,
    UsageError,
)
from tarmac.samples.naming import known_fields
from tarmac.samples.reader import SampleReader, read_shard


@pytest.fixture
def shards(tmp_path):
    for number in range(3):
        files = [
            (f"{number}{i}.{field}", b"%d%d" % (number, i)) for i in range(4) for field in ("cls", "txt")
        ]
        (tmp_path / f"x-{number:02d}.tar").write_bytes(plain(files))
    return str(tmp_path / "x-{00..02}.tar")


def test_samples_in_order(shards):
    reader = tarmac.read(shards)
    keys = [sample["__key__"] for sample in reader]
    assert keys == [f"{number}{i}" for number in range(3) for i in range(4)]
    assert reader.report.shards == 3
    assert reader.report.samples == 12
    assert [sample["__key__"] for sample in reader] == keys  # a second iteration


def test_urls_and_fields(shards, tmp_path):
    sample = next(iter(tarmac.read(shards, fields=["TXT"])))
    assert sample == {"__key__": "00", "__url__": str(tmp_path / "x-00.tar"), "txt": b"00"}
    with pytest.raises(UsageError, match="`fields`"):
        tarmac.read(shards, fields="txt")


def test_a_misspelt_field_is_an_error(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2"), ("b.cls", b"3")]))
    (tmp_path / "empty.tar").write_bytes(plain([]))
    shards = [str(tmp_path / "empty.tar"), str(path)]
    assert [sample["__key__"] for sample in tarmac.read(shards, fields=["cls", "text"])] == ["b"]
    assert list(tarmac.read(shards[:1], fields=["text"])) == []
    reader = tarmac.read(shards, fields=["text"])
    with pytest.raises(MissingField, match="'txt'"):
        list(reader)
    assert reader.report.samples == 0


def test_naming_rules(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain([("img.001.seg.png", b"1"), ("img.001.cls", b"2")]))

    def keys(rule):
        return [(sample["__key__"], *sample) for sample in tarmac.read(tmp_path / "a.tar", split_name=rule)]

    reserved = ("__key__", "__url__")
    assert keys(tarmac.first_dot) == [("img", *reserved, "001.seg.png", "001.cls")]
    assert keys(tarmac.last_dot) == [("img.001.seg", *reserved, "png"), ("img.001", *reserved, "cls")]
    assert keys(known_fields(["seg.png", "cls"])) == [("img.001", *reserved, "seg.png", "cls")]


def test_limits_override_those_of_tar(shards):
    small = tarmac.Limits(member_bytes=1)
    with pytest.raises(LimitExceeded):
        list(tarmac.read(shards, limits=small))
    with pytest.raises(LimitExceeded):
        list(SampleReader(list(tarmac.read(shards).urls), limits=small))


def test_without_mmap(shards, tmp_path):
    assert list(tarmac.read(shards, mmap=False)) == list(tarmac.read(shards))
    path = tmp_path / "x-00.tar"
    path.write_bytes(plain([(f"{i:05d}.bin", b"x" * 4096) for i in range(1000)]))
    reader = iter(tarmac.read(path, mmap=False))
    next(reader)
    os.truncate(path, 2 << 20)
    with pytest.raises(Truncated):
        list(reader)


def test_paths_lists_and_missing(shards, tmp_path):
    assert len(list(tarmac.read(tmp_path / "x-01.tar"))) == 4
    assert len(list(tarmac.read([tmp_path / "x-01.tar", str(tmp_path / "x-02.tar")]))) == 8
    with pytest.raises(NotFound, match="absent"):
        list(tarmac.read(tmp_path / "absent.tar"))
    with pytest.raises(NotFound, match=str(tmp_path)):
        list(tarmac.read(tmp_path))
    with pytest.raises(NotFound):
        tarmac.read([])


def test_damage_in_one_shard_leaves_the_next_clean(shards, tmp_path):
    """No field of one shard ends up in a sample of another."""
    path = tmp_path / "x-00.tar"
    good = path.read_bytes()
    later = [dict(sample) for sample in tarmac.read(tmp_path / "x-01.tar")]
    for size in range(0, len(good) - 1024, 101):
        path.write_bytes(good[:size])
        reader = tarmac.read([path, tmp_path / "x-01.tar"])
        with pytest.raises((Truncated, tarmac.errors.NotATar)) as caught:
            list(reader)
        assert caught.value.url == str(path)
        assert [dict(sample) for sample in read_shard(reader, str(tmp_path / "x-01.tar"))] == later


def test_errors_have_url_and_offset_after_pickling(shards, tmp_path):
    path = tmp_path / "x-01.tar"
    data = bytearray(path.read_bytes())
    start = header_offsets(bytes(data))[5]
    data[start] ^= 8
    path.write_bytes(data)
    with pytest.raises(BadChecksum) as caught:
        list(tarmac.read(shards))
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    assert (error.url, error.offset) == (str(path), start)


def test_lenient_reading_of_a_truncated_shard(shards, tmp_path):
    path = tmp_path / "x-00.tar"
    path.write_bytes(path.read_bytes()[:-1024])
    with pytest.raises(Truncated, match=r"x-00\.tar"):
        list(tarmac.read(path))
    with pytest.warns(TruncatedTail):
        reader = tarmac.read(shards, tar=tarmac.TarOptions(end="lenient"))
        assert len(list(reader)) == 12
    assert reader.report.skipped["truncated tail"] == 1


def test_empty_shards_are_reported(tmp_path):
    (tmp_path / "e.tar").write_bytes(bytes(1024))
    reader = tarmac.read(tmp_path / "e.tar")
    assert list(reader) == []
    assert reader.report.empty_shards == [str(tmp_path / "e.tar")]


def open_shards(directory):
    """Return the open descriptors of files under a directory."""
    links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
    return [link for link in links if os.path.lexists(link) and os.readlink(link).startswith(str(directory))]


def test_stopping_early_closes_the_shard(shards, tmp_path):
    iterators = [iter(tarmac.read(shards)) for _ in range(50)]
    for iterator in iterators:
        next(iterator)
    assert open_shards(tmp_path)
    for iterator in iterators:
        iterator.close()
    assert not open_shards(tmp_path)


def test_descriptors_stay_constant_over_many_shards(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    highest = max(len(open_shards(tmp_path)) for _ in tarmac.read([path] * 2000))
    assert highest <= 2  # the file and its map
    assert not open_shards(tmp_path)


def test_standard_input(shards, tmp_path):
    script = "import tarmac; print(sum(1 for _ in tarmac.read('-')))"
    with (tmp_path / "x-00.tar").open("rb") as file:
        done = subprocess.run([sys.executable, "-c", script], stdin=file, capture_output=True, check=True)
    assert done.stdout.strip() == b"4"


def test_pipe(shards, tmp_path):
    assert len(list(tarmac.read(f"pipe:cat {tmp_path}/x-{{00..02}}.tar"))) == 12
    with pytest.raises(tarmac.errors.CommandFailed, match="status 7"):
        list(tarmac.read(f"pipe:cat {tmp_path}/x-00.tar; exit 7"))
