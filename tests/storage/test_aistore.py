"""`ais://`: a proxy that redirects to the node with the object."""

from __future__ import annotations

import os
import random

import pytest

import tarmac
from harness.servers import aistore
from tarmac.errors import NotFound, UrlError
from tarmac.storage import WriteOptions, open_read, open_write, read_range, stat
from tarmac.storage.aistore import AIStore
from tarmac.storage.types import DEFAULT_STORAGE

BODY = random.Random(7).randbytes(9_000_000)


@pytest.fixture
def root(tmp_path, monkeypatch):
    with aistore(tmp_path) as url:
        monkeypatch.setenv("AIS_ENDPOINT", url)
        yield tmp_path


def test_read(root, hasty):
    (root / "bucket").mkdir()
    (root / "bucket" / "x y.tar").write_bytes(BODY)
    url = "ais://bucket/x y.tar"
    with open_read(url, hasty) as source:
        assert b"".join(iter(lambda: source.read(1 << 20), b"")) == BODY
    assert read_range(url, 5, 5000, hasty) == BODY[5:5000]
    assert stat(url, hasty).size == len(BODY)
    with pytest.raises(NotFound):
        open_read("ais://bucket/none", hasty)


def test_write(root, hasty):
    sink = open_write("ais://bucket/train/x.tar", hasty)
    sink.write(BODY)
    assert not (root / "bucket").exists()
    sink.commit()
    assert (root / "bucket/train/x.tar").read_bytes() == BODY
    assert os.listdir(root / "bucket/train") == ["x.tar"]
    with pytest.raises(tarmac.errors.CommitFailed, match="exists"):
        open_write("ais://bucket/train/x.tar", hasty, WriteOptions(overwrite=False))


def test_shards(root, hasty):
    with tarmac.ShardWriter("ais://bucket/t-%02d.tar", max_samples=3, storage=hasty) as shards:
        for number in range(7):
            shards.write({"__key__": str(number), "txt": str(number)})
    texts = [sample["txt"] for sample in tarmac.read("ais://bucket/t-{00..02}.tar", storage=hasty)]
    assert texts == [b"%d" % number for number in range(7)]


def resolve(url):
    return AIStore().resolve(url, DEFAULT_STORAGE)[0]


def test_addresses(monkeypatch):
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with pytest.raises(UrlError, match="AIS_ENDPOINT"):
        resolve("ais://b/x")
    monkeypatch.setenv("AIS_ENDPOINT", "host:8080/")
    assert resolve("ais://b/d/x#1?.tar") == "http://host:8080/v1/objects/b/d/x%231%3F.tar?provider=ais"
    for wrong in ("ais://b", "ais://b/", "ais:///x"):
        with pytest.raises(UrlError, match="ais:"):
            resolve(wrong)


@pytest.mark.parametrize(
    ("scheme", "provider"), [("ais", "ais"), ("S3", "aws"), ("gs", "gcp"), ("az", "azure"), ("aws", "aws")]
)
def test_other_stores_behind_aistore(monkeypatch, scheme, provider):
    monkeypatch.setenv("AIS_ENDPOINT", "http://host")
    assert resolve(f"{scheme}://b/x") == f"http://host/v1/objects/b/x?provider={provider}"
    with pytest.raises(UrlError, match="http"):
        resolve("http://b/x")
    with pytest.raises(UrlError, match="USE_AIS_FOR"):
        resolve("pipe:cat x")
