"""Limits on time and bytes hold whatever a server sends, in streams and in the cache.

The clock advances at each call, so the tests do not wait.
"""

from __future__ import annotations

import itertools
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import tarmac
from harness.faultserver import Action, FaultServer
from harness.shards import members, plain
from storage.caches import FAST, entries, shard_bytes
from storage.endless import endless
from tarmac.errors import Stalled, TransferError
from tarmac.storage import Cache, StorageOptions, enforce_security, httprequest, open_read, stat

SHARD = plain()
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b"%x\r\n" % 512 + bytes(512) + b"\r\n"
ENDLESS = {
    "zeros behind the end mark": (PLAIN_HEAD + SHARD, bytes(512)),
    "chunks of zeros": (CHUNKED_HEAD + b"%x\r\n" % len(SHARD) + SHARD + b"\r\n", PIECE),
    "directories": (PLAIN_HEAD, members([(tarfile.DIRTYPE, "d", b"")])[:512]),
}
NO_BODY = {
    "trailers": (CHUNKED_HEAD + b"0\r\n", b"X-More: 1\r\n"),
    "100 for ever": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "long headers": (b"HTTP/1.1 200 OK\r\n", b"X-Long: " + b"a" * 60_000 + b"\r\n"),
}


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances by one second per call."""
    ticks = itertools.count(1000.0)
    monkeypatch.setattr(httprequest, "_now", lambda: next(ticks))
    return ticks


@pytest.fixture(params=[False, True], ids=["", "secure"])
def secure(request):
    enforce_security(request.param)
    yield request.param
    enforce_security(False)


def drain(url: str, options: StorageOptions, size: int = 1 << 16) -> int:
    with open_read(url, options) as source:
        return sum(map(len, iter(lambda: source.read(size), b"")))


def by_cache(url: str, options: StorageOptions, directory: Path) -> None:
    with Cache(directory).open_read(url, options) as source:
        source.read(1)


@pytest.mark.parametrize("kind", [*ENDLESS, *NO_BODY])
def test_endless_responses_stop_at_the_total_timeout(tmp_path, clock, secure, kind):
    if kind in ("100 for ever", "long headers") and not secure:
        pytest.skip("obstore sees these first, and has a clock of its own")
    with endless(*(ENDLESS | NO_BODY)[kind]) as server:
        options = replace(FAST, total_timeout=60.0)
        for attempt in (
            lambda: drain(server.url, options),
            lambda: by_cache(server.url, options, tmp_path),
            lambda: list(tarmac.read(server.url, storage=options)),
            lambda: list(tarmac.read(server.url, storage=options, cache=Cache(tmp_path))),
        ):
            with pytest.raises(Stalled, match="60 seconds"):
                attempt()
        assert not server.gave_up
        assert entries(Cache(tmp_path)) == set()
        assert not list(tmp_path.glob(".tarmac/parts/*"))


@pytest.mark.parametrize("kind", ENDLESS)
def test_endless_responses_stop_at_the_size_limit(tmp_path, secure, kind):
    with endless(*ENDLESS[kind]) as server:
        options = replace(FAST, max_unsized_bytes=300_000)
        with pytest.raises(TransferError, match="300000 bytes"):
            drain(server.url, options)
        with pytest.raises(TransferError, match=r"StorageOptions\.max_unsized_bytes"):
            by_cache(server.url, options, tmp_path)
        with pytest.raises(TransferError, match="300000 bytes"):
            list(tarmac.read(server.url, storage=options))
        assert not server.gave_up
        assert entries(Cache(tmp_path)) == set()
        assert os.listdir(tmp_path / ".tarmac/parts") == []


@pytest.mark.parametrize("framing", ["close", "chunked"])
def test_slow_responses_stop_at_the_total_timeout(clock, secure, framing):
    """Each chunk arrives in time; only the total takes too long."""
    with FaultServer(shard_bytes("drip", 100_000)) as server:
        server.script([], then=Action(framing=framing))
        with pytest.raises(Stalled, match=r"\b40 .*StorageOptions\.total_timeout"):
            drain(server.url, replace(FAST, total_timeout=40.0), size=100)
        assert drain(server.url, replace(FAST, total_timeout=4000.0), size=1000) == 100_000


def test_bodies_up_to_the_size_limit_are_read(secure, tmp_path):
    body = shard_bytes("exact", 100_000)
    with FaultServer(body) as server:
        server.script([], then=Action(framing="close"))
        assert drain(server.url, replace(FAST, max_unsized_bytes=100_000)) == 100_000
        with pytest.raises(TransferError):
            drain(server.url, replace(FAST, max_unsized_bytes=99_999))
        server.script([])
        assert drain(server.url, replace(FAST, max_unsized_bytes=1)) == 100_000  # with a Content-Length
    with pytest.raises(ValueError, match="max_unsized_bytes"):
        StorageOptions(max_unsized_bytes=0)


def test_uploads_stop_at_the_total_timeout(clock, tmp_path):
    from tarmac.storage import open_write

    with FaultServer(b"") as server:
        server.script([], then=Action(status=404))
        sink = open_write(server.url, replace(FAST, total_timeout=3.0))
        sink.write(bytes(30 << 20))
        with pytest.raises(Stalled, match="3 seconds"):
            sink.commit()


def test_a_broken_body_is_resumed(monkeypatch):
    """Secure mode has its own client, which resumes like obstore."""
    monkeypatch.setenv("TARMAC_SECURE", "1")
    body = shard_bytes("resume", 300_000)
    with FaultServer(body) as server:
        server.script([Action(cut=1000), Action(cut=100_000, reset=True), Action(status=503)])
        with open_read(server.url, FAST) as source:
            assert b"".join(iter(lambda: source.read(1 << 16), b"")) == body
        assert server.requests[1].range == "bytes=1000-"
        assert stat(server.url, FAST).size == 300_000
        server.script([Action(cut=1000), Action(change=(body[::-1], '"v2"'))])
        with pytest.raises(TransferError), open_read(server.url, FAST) as source:
            assert b"".join(iter(lambda: source.read(1 << 16), b"")) == body
        server.script([Action(cut=1000)], then=Action(whole=True))
        with pytest.raises(TransferError), open_read(server.url, FAST) as source:
            b"".join(iter(lambda: source.read(1 << 16), b""))
