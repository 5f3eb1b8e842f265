"""A forked child uses object stores through a helper process, which exits with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psutil
import pytest

import tarmac
from harness import rounds
from harness.faultserver import Action, FaultServer
from harness.folder import Handler, serving
from harness.waiting import FOREVER, until
from storage.caches import shard_bytes
from tarmac.errors import AccessDenied, NotFound, ShortRead, Stalled, TransferError
from tarmac.storage import Cache, StorageOptions, WriteOptions, open_read, open_write, read_range, relay, stat
from tarmac.storage.urls import expand

BODY = shard_bytes(9, 3_000_000)


def fetch(url: str, options: StorageOptions) -> bytes:
    with open_read(url, options) as source:
        return b"".join(iter(lambda: source.read(1 << 20), b""))


def in_child(work: Callable[[], object], seconds: float = 300) -> object:
    """Run `work` in a forked child; return its result or raise its exception."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            try:
                answer = True, work()
            except BaseException as error:
                answer = False, (error, traceback.format_exc())
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(writing)
    alarm = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    alarm.start()
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    alarm.cancel()
    os.waitpid(pid, 0)
    alarm.join()
    assert data, "the child hung or died"
    ok, value = pickle.loads(data)
    if ok:
        return value
    value[0].add_note(value[1])
    raise value[0]


def helpers() -> list[psutil.Process]:
    result = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if "tarmac.storage.relay" in (process.info["cmdline"] or []) and process.info["status"] != "zombie":
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TARMAC_TEST_RUN") == str(os.getpid()):
                    result.append(process)
    return result


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    """Distinguish our helpers from those of other test runs on this machine."""
    monkeypatch.setenv("TARMAC_TEST_RUN", str(os.getpid()))


def no_helpers() -> bool:
    return until(lambda: not helpers(), pause=0.02)


@pytest.fixture
def server():
    with FaultServer(BODY) as running:
        yield running


@pytest.fixture
def used(server, hasty) -> StorageOptions:
    """Options, after this process has used obstore."""
    assert fetch(server.url, hasty) == BODY
    yield hasty
    assert no_helpers()


def test_a_child_reads_through_a_helper(server, used):
    def work():
        result = fetch(server.url, used)
        with open_read(server.url, used) as source:
            facts = type(source).__name__, source.length, source.version
        return result == BODY, facts, read_range(server.url, 10, 1000, used), stat(server.url, used).size

    whole, facts, part, size = in_child(work)
    assert whole
    assert facts == ("RelaySource", len(BODY), '"v1"')
    assert part == BODY[10:1000]
    assert size == len(BODY)
    assert relay._relay is None  # the parent has no helper


def test_errors_keep_their_type_and_location(server, used):
    server.script([], then=Action(status=404))
    with pytest.raises(NotFound, match="404") as missing:
        in_child(lambda: fetch(server.url, used))
    assert missing.value.url == server.url
    server.script([], then=Action(status=403))
    with pytest.raises(AccessDenied):
        in_child(lambda: stat(server.url, used))
    server.script([], then=Action(cut=100_000, framing="chunked"))
    with pytest.raises(ShortRead):
        in_child(lambda: fetch(server.url, used))
    server.script([], then=Action(stall=FOREVER, stall_at=100))
    with pytest.raises(Stalled):
        in_child(lambda: fetch(server.url, replace(used, idle_timeout=0.5, retries=0)))


def test_several_streams_at_once(server, used):
    def work():
        with open_read(server.url, used) as a, open_read(server.url, used) as b:
            parts = [a.read(1000), b.read(500)]
            threads = [threading.Thread(target=lambda s=s: parts.append(s.read(10))) for s in (a, b)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return parts[:2], sorted(parts[2:])

    first, then = in_child(work)
    assert first == [BODY[:1000], BODY[:500]]
    assert then == sorted([BODY[1000:1010], BODY[500:510]])


def test_s3_in_a_child(s3, hasty):
    options = replace(hasty, config=s3.config())
    url, large = "s3://data/relay/x.bin", random.Random(1).randbytes(10 << 20)
    with pytest.raises(NotFound):
        stat(url, options)

    def work():
        for name, data in ((url, BODY), ("s3://data/relay/large.bin", large)):
            sink = open_write(name, options)
            sink.write(data)
            sink.commit()
        with tarmac.TarWriter("s3://data/relay/y.tar", storage=options) as shard:
            shard.write({"__key__": "a", "txt": "b"})
        refused = ""
        try:
            open_write(url, options, WriteOptions(overwrite=False))
        except tarmac.errors.CommitFailed as error:
            refused = str(error)
        listed = expand("s3://data/relay/*", storage=options)
        return fetch(url, options) == BODY, read_range(url, 5, 9, options), listed, refused

    whole, part, listed, refused = in_child(work)
    assert whole
    assert part == BODY[5:9]
    assert listed == [f"s3://data/relay/{name}" for name in ("large.bin", "x.bin", "y.tar")]
    assert "exists" in refused
    assert fetch("s3://data/relay/large.bin", options) == large
    assert fetch(url, options) == BODY
    assert no_helpers()


def test_uploads_over_http_need_no_helper(used):
    from storage.test_web import upload_server

    with upload_server() as (url, kept, _):

        def work():
            sink = open_write(f"{url}/x", used, WriteOptions(overwrite=True))
            sink.write(b"from the child")
            sink.commit()
            return relay._relay is None

        assert in_child(work) is True
        assert kept == {"/x": b"from the child"}


def test_the_cache_in_a_child(server, used, tmp_path):
    def work():
        cache = Cache(tmp_path, max_bytes=10_000_000)
        result = []
        for _ in range(2):
            with cache.open_read(server.url, used) as source:
                result.append(b"".join(iter(lambda s=source: s.read(1 << 20), b"")) == BODY)
        small = Cache(tmp_path / "small", max_bytes=1000)
        with small.open_read(server.url, used) as source:
            result.append(source.length == len(BODY))
        return result

    server.clear()
    assert in_child(work) == [True, True, True]
    assert len(server.requests) == 2


def pool_work(url: str, options: StorageOptions) -> bool:
    return fetch(url, options) == BODY and read_range(url, 3, 7, options) == BODY[3:7]


@pytest.mark.heavy
def test_many_children_of_multiprocessing(server, used):
    context = multiprocessing.get_context("fork")
    with context.Pool(6) as pool:
        results = [pool.apply_async(pool_work, (server.url, used)) for _ in range(rounds(24))]
        assert all(result.get(60) for result in results)
        pool.close()
        pool.join()


def test_a_grandchild_has_its_own_helper(server, used):
    def work():
        mine = open_read(server.url, used)
        first = mine.read(100)

        def deeper():
            try:
                mine.read(100)
            except TransferError as error:
                refused = str(error)
            mine.close()
            return refused, fetch(server.url, used) == BODY

        refused, whole = in_child(deeper)
        rest = b"".join(iter(lambda: mine.read(1 << 20), b""))
        mine.close()
        return first + rest == BODY, refused, whole

    same, refused, whole = in_child(work)
    assert same
    assert whole
    assert "another process" in refused


def test_a_fork_during_a_request(server, used):
    """A lock that another thread holds during the fork does not block the child."""

    def work():
        server_is_slow = open_read(server.url, used)
        thread = threading.Thread(target=lambda: [server_is_slow.read(1000) for _ in range(300)])
        thread.start()
        results = [in_child(lambda: stat(server.url, used).size) for _ in range(3)]
        thread.join()
        server_is_slow.close()
        return results

    assert in_child(work) == [len(BODY)] * 3


@pytest.mark.parametrize("busy", [False, True])
def test_the_helper_of_a_killed_child_exits(server, used, busy, tmp_path):
    for number in range(rounds(4)):
        ready = tmp_path / f"ready{number}"
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                source = open_read(server.url, used)
                source.read(1000)
                ready.touch()
                if busy:
                    server.script([])  # without effect: only the copy of the parent is used
                    stat(server.url.replace("object", "stall"), used)
                time.sleep(FOREVER)
            os._exit(0)
        if busy:
            server.script([Action()], then=Action(silent=True, stall=FOREVER))
        assert until(ready.exists)
        if busy:
            assert until(lambda: any("stall" in request.path for request in server.requests))
        assert len(helpers()) == 1
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert no_helpers()
        server.script([])
        server.clear()


def test_a_dead_helper_is_an_error_and_is_replaced(server, used):
    def work():
        source = open_read(server.url, used)
        source.read(10)
        assert relay._relay is not None
        os.kill(relay._relay._pid, signal.SIGKILL)
        try:
            while source.read(1 << 20):
                pass
        except TransferError as error:
            what = str(error)
        source.close()
        return what, fetch(server.url, used) == BODY

    what, whole = in_child(work)
    assert "helper process" in what
    assert whole


def test_the_helper_ignores_ctrl_c(server, used):
    def work():
        open_read(server.url, used).close()
        assert relay._relay is not None
        os.kill(relay._relay._pid, signal.SIGINT)
        return fetch(server.url, used) == BODY

    assert in_child(work) is True


def test_children_of_processes_without_obstore_need_no_helper(monkeypatch):
    from tarmac.storage import objects

    monkeypatch.setattr(objects, "_owner", None)
    assert not objects._forked()
    assert objects._owner == os.getpid()
    assert in_child(objects._forked) is True


def test_errors_of_the_helper_itself():
    server = relay._Server()
    ok, error = relay._answer(server, "read", (5, 10))
    assert not ok
    assert isinstance(error, TransferError)
    assert "KeyError" in str(error)


def test_threads_of_a_child_send_requests_at_the_same_time(used):
    together = threading.Barrier(4)  # a request is answered when four have arrived

    class Meeting(Handler):
        def do_GET(self):
            together.wait(FOREVER)
            self.reply(200, {"ETag": '"v1"'}, len(BODY))
            self.wfile.write(BODY)

    def all_of_them(url):
        with ThreadPoolExecutor(4) as pool:
            return [len(body) for body in pool.map(lambda n: fetch(f"{url}/{n}", used), range(4))]

    with serving(Meeting) as url:
        assert in_child(lambda: all_of_them(url)) == [len(BODY)] * 4
