"""Real object stores and web servers: the same guarantees for each."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pytest

import tarmac
from tarmac.errors import (
    AccessDenied,
    CommitFailed,
    NotFound,
    TarmacError,
    TransferError,
    WriteError,
)
from tarmac.storage import StorageOptions, WriteOptions, open_read, open_write, read_range, stat
from tarmac.storage.urls import expand

BODY = random.Random(4).randbytes(300_000)
LARGE = random.Random(5).randbytes(20 << 20)  # three parts of a multipart upload


@dataclass(frozen=True)
class Store:
    base: str
    options: StorageOptions
    wrong: StorageOptions | None  # with wrong credentials


@pytest.fixture(scope="session", params=["s3", "azure", "gcs"])
def store(request, hasty) -> Store:
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        base, config, wrong = "s3://data", server.config(), {"secret_access_key": "wrong"}
    elif request.param == "azure":
        server = request.getfixturevalue("azure")
        base, config, wrong = "az://data", server.config(), {"account_key": "d3Jvbmc="}
    else:
        base, config, wrong = "gs://data", request.getfixturevalue("open_s3").gcs_config(), None
    return Store(
        base,
        replace(hasty, config=config),
        replace(hasty, config={**config, **wrong}) if wrong else None,
    )


def put(url: str, data: bytes, options: StorageOptions, overwrite: bool | None = None) -> None:
    sink = open_write(url, options, WriteOptions(overwrite))
    for start in range(0, len(data), 1 << 20):
        sink.write(data[start : start + (1 << 20)])
    sink.commit()


def fetch(url: str, options: StorageOptions, size: int = 1 << 20) -> bytes:
    with open_read(url, options) as source:
        return b"".join(iter(lambda: source.read(size), b""))


def test_put_stream_range_stat(store):
    url = f"{store.base}/a/small.bin"
    put(url, BODY, store.options)
    assert fetch(url, store.options) == BODY
    assert fetch(url, store.options, 777) == BODY
    assert read_range(url, 1000, 5000, store.options) == BODY[1000:5000]
    result = stat(url, store.options)
    assert result.size == len(BODY)
    assert result.version
    put(url, BODY[:-1] + b"x", store.options)
    assert stat(url, store.options).version != result.version
    with open_read(url, store.options) as source:
        assert (source.length, source.version) == (len(BODY), stat(url, store.options).version)


def test_large_objects_are_uploaded_in_parts(store):
    url = f"{store.base}/large.bin"
    put(url, LARGE, store.options)
    assert fetch(url, store.options) == LARGE
    assert read_range(url, 9 << 20, (9 << 20) + 10, store.options) == LARGE[9 << 20 : (9 << 20) + 10]


def test_samples_round_trip(store):
    pattern = f"{store.base}/shards/train-%02d.tar"
    with tarmac.ShardWriter(pattern, max_samples=10, storage=store.options) as shards:
        for number in range(25):
            shards.write({"__key__": f"{number:03d}", "txt": f"sample {number}"})
    urls = expand(f"{store.base}/shards/train-*.tar", storage=store.options)
    assert urls == [f"{store.base}/shards/train-{number:02d}.tar" for number in range(3)]
    assert urls == expand(f"{store.base}/sh*/train-[0-9]?.tar", storage=store.options)
    assert urls == expand(f"{store.base}/**/train-*.tar", storage=store.options)
    result = list(tarmac.read(f"{store.base}/shards/train-*.tar", storage=store.options))
    assert [sample["txt"].decode() for sample in result] == [f"sample {number}" for number in range(25)]
    with pytest.raises(NotFound, match="none-"):
        expand(f"{store.base}/shards/none-*.tar", storage=store.options)
    with pytest.raises(tarmac.errors.TooManyShards):
        expand(f"{store.base}/shards/*", storage=store.options, limits=tarmac.Limits(shards=2))


def test_missing_objects(store):
    for operation in (fetch, stat, lambda url, options: read_range(url, 0, 5, options)):
        with pytest.raises(NotFound):
            operation(f"{store.base}/none.tar", store.options)
        with pytest.raises(TarmacError):
            operation(f"{store.base}-no-such-bucket/x.tar", store.options)


def test_wrong_credentials(store):
    if store.wrong is None:
        return  # an anonymous server accepts all credentials
    put(f"{store.base}/x", b"1", store.options)
    for operation in (fetch, stat, lambda url, options: put(url, b"2", options)):
        with pytest.raises(AccessDenied, match="403"):
            operation(f"{store.base}/x", store.wrong)
    with pytest.raises(AccessDenied):
        expand(f"{store.base}/*", storage=store.wrong)
    assert fetch(f"{store.base}/x", store.options) == b"1"


@pytest.mark.parametrize("size", [10, 9 << 20])
def test_overwrite(store, size):
    url, data = f"{store.base}/once-{size}", LARGE[:size]
    put(url, data, store.options, overwrite=False)
    with pytest.raises(CommitFailed, match="exists"):
        put(url, b"2", store.options, overwrite=False)
    assert fetch(url, store.options) == data
    put(url, b"3", store.options, overwrite=True)
    put(url, b"4", store.options)
    assert fetch(url, store.options) == b"4"


def test_two_writers_of_one_name(store):
    url = f"{store.base}/race"
    for round_ in range(2):
        a, b = open_write(url, store.options), open_write(url, store.options)
        a.write(b"first %d" % round_)
        b.write(b"second")
        a.commit()
        with pytest.raises(CommitFailed, match=r"race: .*overwrite=True"):
            b.commit()
        assert fetch(url, store.options) == b"first %d" % round_


def test_abort_leaves_no_object(store):
    sink = open_write(f"{store.base}/aborted", store.options)
    sink.write(BODY)
    sink.abort()
    with pytest.raises(NotFound):
        stat(f"{store.base}/aborted", store.options)
    for late in (lambda: sink.write(b"x"), sink.commit):
        with pytest.raises(WriteError, match="closed"):
            late()
    with (
        pytest.raises(ZeroDivisionError),
        tarmac.TarWriter(f"{store.base}/aborted", storage=store.options) as shard,
    ):
        shard.write({"__key__": "a", "txt": "b"})
        raise ZeroDivisionError
    with pytest.raises(NotFound):
        stat(f"{store.base}/aborted", store.options)


@pytest.mark.parametrize(
    "name", ["a b.tar", "a%20b.tar", "a#1.tar", "a?b=c.tar", "a+b&c.tar", "é.tar", "a=b,c;d.tar", "{x}.tar"]
)
def test_special_characters_in_names(store, name):
    url = f"{store.base}/odd/{name}"
    put(url, name.encode(), store.options)
    assert fetch(url, store.options) == name.encode()
    assert read_range(url, 0, 3, store.options) == name.encode()[:3]
    assert url in expand(f"{store.base}/odd/*", storage=store.options)
    with pytest.raises(NotFound):
        stat(f"{store.base}/odd/a", store.options)


def test_s3_from_the_environment(s3, hasty, monkeypatch):
    for name, value in s3.env().items():
        monkeypatch.setenv(name, value)
    put("s3://data/env", BODY, hasty)
    assert fetch("s3://data/env", hasty) == BODY
    assert fetch("s3a://data/env", hasty) == BODY
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessDenied):
        fetch("s3://data/env", hasty)


def test_paths_outside_of_the_bucket_are_rejected(s3, hasty):
    options = replace(hasty, config=s3.config())
    for path in ("a/../../b", "a/./b", ".."):
        with pytest.raises(TarmacError):
            stat(f"s3://data/{path}", options)


# ---- a web server


def test_nginx(web, web_root, hasty):
    (web_root / "d").mkdir(exist_ok=True)
    (web_root / "d" / "x.tar").write_bytes(LARGE)
    url = f"{web}/d/x.tar"
    assert fetch(url, hasty) == LARGE
    assert fetch(f"{url}?X-Amz-Signature=abc&X-Amz-Expires=5", hasty) == LARGE
    assert read_range(url, 10_000_000, 10_000_100, hasty) == LARGE[10_000_000:10_000_100]
    assert stat(url, hasty).size == len(LARGE)
    before = stat(url, hasty).version
    os.utime(web_root / "d" / "x.tar", (1, 1))
    assert stat(url, hasty).version != before
    for operation in (fetch, stat):
        with pytest.raises(NotFound):
            operation(f"{web}/d/none.tar", hasty)


@pytest.mark.parametrize(
    "name",
    ["a b.tar", "a%b.tar", "a#1.tar", "a?b.tar", "a+b&c.tar", "é.tar", "a:b@c.tar", "a//b.tar", "{x}[1].tar"],
)
def test_special_characters_on_nginx(web, web_root, hasty, name):
    path = Path(web_root / "odd" / name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(name.encode())
    url = f"{web}/odd/{quote(name)}"
    for form in (url, f"{url}?sig=1%2F2"):
        assert fetch(form, hasty) == name.encode()
        assert read_range(form, 0, 2, hasty) == name.encode()[:2]
        assert stat(form, hasty).size == len(name.encode())
    assert expand(url) == [url]


def test_unescaped_characters_in_urls(web, web_root, hasty):
    for name in ("with space.tar", "ü.tar"):
        (web_root / name).write_bytes(b"there")
        assert fetch(f"{web}/{name}", hasty) == b"there"


def test_nginx_rejects_uploads(web, hasty):
    with pytest.raises(TransferError, match="405"):
        put(f"{web}/up.tar", BODY, hasty)


def test_shards_from_nginx(web, web_root, hasty):
    with tarmac.ShardWriter(str(web_root / "t-%03d.tar"), max_samples=7) as shards:
        for number in range(30):
            shards.write({"__key__": f"{number:03d}", "txt": str(number)})
    result = [int(sample["txt"]) for sample in tarmac.read(f"{web}/t-{{000..004}}.tar", storage=hasty)]
    assert result == list(range(30))


def test_streams_with_another_length_than_announced(hasty):
    from tarmac.errors import ShortRead
    from tarmac.storage.objects import ObjectSource

    class Result:
        range = (0, 10)
        meta = {"e_tag": None}

        def __init__(self, *chunks: bytes) -> None:
            self._chunks = chunks

        def stream(self, **_):
            return self._chunks

    for chunks in ((b"12345",), (b"12345", b"678901"), ()):
        with (
            ObjectSource("s3://b/x", hasty, Result(*chunks)) as source,
            pytest.raises(ShortRead, match="expected 10"),
        ):
            while source.read(100):
                pass
    with ObjectSource("s3://b/x", hasty, Result(b"12345", b"67890")) as source:
        assert [source.read(3) for _ in range(5)] == [b"123", b"45", b"678", b"90", b""]
