"""The Access arguments have an effect on every verb that rewrites shards, indexed or streamed."""

from __future__ import annotations

import gzip

import pytest

import tarmac
from harness.shards import plain
from tarmac.errors import LimitExceeded, TooManyShards, TrailingData, UnsafeUrl
from tarmac.samples.naming import known_fields
from tools.shards import keys


def same(sample):
    return sample


VERBS = {
    "copy": tarmac.copy,
    "sort": tarmac.sort,
    "map": lambda sources, output, **options: tarmac.map(sources, output, same, **options),
    "join": lambda sources, output, **options: tarmac.join(sources, sources, output, replace=True, **options),
}


@pytest.fixture
def shard(tmp_path, monkeypatch, request):
    """A shard whose members are named by the last dot."""
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    data = plain([("a.b.txt", b"1234"), ("a.b.cls", b"2"), ("a.c.txt", b"3")])
    path = tmp_path / ("x.tar.gz" if request.param == "streamed" else "x.tar")
    path.write_bytes(gzip.compress(data, 1, mtime=0) if request.param == "streamed" else data)
    return str(path)


both = pytest.mark.parametrize("shard", ["indexed", "streamed"], indirect=True)


@both
@pytest.mark.parametrize("verb", VERBS)
def test_split_name(shard, verb):
    call = VERBS[verb]
    for rule in (tarmac.last_dot, known_fields(["txt", "cls"])):
        call(shard, "y.tar", split_name=rule, overwrite=True)
        assert [sample["__key__"] for sample in tarmac.read("y.tar", split_name=tarmac.last_dot)] == [
            "a.b",
            "a.c",
        ]
    # An index for one rule is not used for another.
    call(shard, "z.tar")
    assert keys("z.tar") == ["a"]


@both
@pytest.mark.parametrize("verb", VERBS)
def test_limits(shard, verb):
    with pytest.raises(TooManyShards):
        VERBS[verb]([shard, shard], "y.tar", limits=tarmac.Limits(shards=1))
    if shard.endswith("gz") and verb in ("copy", "map"):  # members of files are not held in memory
        with pytest.raises(LimitExceeded):
            VERBS[verb](shard, "y.tar", limits=tarmac.Limits(member_bytes=3))


@both
@pytest.mark.parametrize("verb", VERBS)
def test_tar_options(shard, verb):
    joined = plain([("a.txt", b"1")]) + plain([("b.txt", b"2")])
    with open(shard, "wb") as file:
        file.write(gzip.compress(joined, 1, mtime=0) if shard.endswith("gz") else joined)
    with pytest.raises(TrailingData):
        VERBS[verb](shard, "y.tar")
    VERBS[verb](shard, "z.tar", tar=tarmac.TarOptions(concatenated=True))
    assert keys("z.tar") == ["a", "b"]
    with pytest.raises(TrailingData):  # although there is an index, for other options
        VERBS[verb](shard, "y.tar")


@pytest.mark.processes
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("shard", ["indexed"], indirect=True)
def test_commands_can_be_rejected(shard, verb):
    assert VERBS[verb](f"pipe:cat {shard}", "y.tar").written == 1
    with pytest.raises(UnsafeUrl):
        VERBS[verb](f"pipe:cat {shard}", "z.tar", allow_exec=False)
