"""Verbs that index remote shards read them through the cache, if there is one."""

from __future__ import annotations

import os

import pytest

import tarmac
from harness.faultserver import FaultServer
from harness.shards import plain

FILES = [(f"s{n}.{field}", f"{field} {n} ".encode() * 999) for n in range(9) for field in ("cls", "txt")]
BODY = plain(FILES)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with FaultServer(BODY) as server:
        yield server


def downloads(server) -> int:
    """Return how often the whole shard was sent; the server has the same bytes under all other names."""
    sent = [request for request in server.requests if request.path == "/object.tar"]
    return sum(request.sent == len(BODY) for request in sent)


def test_index_fills_the_cache_and_reads_it(server):
    report = tarmac.index(server.url, "a.json", sidecars="a", cache="kept", jobs=1)
    assert (report.read, downloads(server)) == (9, 1)
    again = tarmac.index(
        server.url, "b.json", sidecars="b", meta=["txt.size"], digests=True, cache="kept", jobs=1
    )
    assert again.read == 9
    assert [len(sample) for sample in tarmac.Dataset("b.json", cache=tarmac.Cache("kept"), verify=True)] == [
        4
    ] * 9
    assert downloads(server) == 1


@pytest.mark.parametrize("verb", ["copy", "sort"])
def test_what_is_indexed_is_not_downloaded_twice(server, verb):
    report = getattr(tarmac, verb)(server.url, "out.tar", cache="kept", jobs=1)
    assert (report.written, downloads(server)) == (9, 1)


def test_a_damaged_copy_is_removed(tmp_path):
    with FaultServer(BODY[:2000]) as server:
        with pytest.raises(tarmac.errors.ArchiveError) as caught:
            tarmac.index(server.url, "a.json", sidecars="a", cache=str(tmp_path / "kept"), jobs=1)
        assert str(tmp_path / "kept") in str(caught.value)
    assert [name for name in os.listdir(tmp_path / "kept") if name.endswith("object.tar")] == []


def test_check_reads_the_store_itself(server):
    with pytest.raises(TypeError, match=r"'cache'$"):
        tarmac.check(server.url, cache="kept")


def test_an_argument_of_other_verbs_is_not_a_misspelling():
    for name in ("max_errors", "on_error"):
        with pytest.raises(TypeError, match=rf"'{name}'$"):
            tarmac.copy("a.tar", "b.tar", **{name: 1})
    with pytest.raises(TypeError, match="'max_bytes'"):
        tarmac.copy("a.tar", "b.tar", max_byte=1)
