"""The ETag of every response is compared, so bytes of two objects never mix."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

import tarmac
from harness.faultserver import IGNORE_RANGE, Action, FaultServer
from harness.shards import plain
from storage.caches import FAST
from tarmac.errors import IndexStale, ObjectChanged, TransferError
from tarmac.storage import StorageOptions, open_read, read_range, stat
from tarmac.storage.web import check_version, if_match

ONE = plain([(f"s{number}.txt", b"1" * 70_000) for number in range(40)])
TWO = plain([(f"s{number}.txt", b"2" * 70_000) for number in range(40)])
TAGS = ['"v1"', 'W/"v1"']


def in_child(work):
    """Run `work` in a forked process, whose requests go through the relay; return its output."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, work().encode())
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        result = file.read().decode()
    os.waitpid(pid, 0)
    return result


def outcome(url: str, options: StorageOptions) -> str:
    """Classify the result of reading a range of an object whose ETag was v1."""
    try:
        result = read_range(url, 600, 700, options, stat(url, options).version)
    except ObjectChanged:
        return "changed"
    return {b"1": "old", b"2": "new"}.get(result[:1], "other") if len(set(result)) == 1 else "MIXED"


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize("honest", [True, False], ids=["If-Match", "ignores If-Match"])
@pytest.mark.parametrize("before", TAGS)
@pytest.mark.parametrize("after", ['"v2"', 'W/"v2"', None])
def test_a_range_of_another_version_is_an_error(honest, before, after, forked):
    with FaultServer(ONE, etag=before, if_match=honest) as server:
        open_read(server.url, FAST).close()
        server.script([Action(), Action(change=(TWO, after))])
        result = in_child(lambda: outcome(server.url, FAST)) if forked else outcome(server.url, FAST)
        assert result == "changed"


@pytest.mark.parametrize("before", TAGS)
@pytest.mark.parametrize("now", TAGS)
def test_weak_and_strong_tags_are_compared_by_text(before, now):
    """Some servers send the same tag weak and strong; If-Match does not accept weak ones."""
    with FaultServer(ONE, etag=before, if_match=False) as server:
        server.script([Action(), Action(headers={"ETag": now})])
        assert outcome(server.url, FAST) == "old"
        sent = server.requests[-1].if_match
        assert sent == (before if before == '"v1"' else None)


def test_responses_without_tags():
    with FaultServer(ONE, etag=None) as server:
        assert outcome(server.url, FAST) == "old"


@pytest.mark.parametrize("tag", ['"v1"', '"v2"', None])
def test_a_whole_object_in_response_to_a_range(tag):
    with FaultServer(ONE, if_match=False) as server:
        server.script([Action(), replace(IGNORE_RANGE, change=(TWO, tag))])
        with pytest.raises(TransferError, match="range"):
            outcome(server.url, FAST)


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("after", ['"v2"', None])
def test_a_dataset_never_mixes_two_objects(honest, after):
    with FaultServer(ONE, if_match=honest) as server:
        dataset = tarmac.Dataset(server.url, storage=FAST)
        assert dataset[3]["txt"] == b"1" * 70_000
        server.script([Action(change=(TWO, after))])
        with pytest.raises((ObjectChanged, IndexStale)):
            for number in range(40):
                assert set(dataset[number]["txt"]) == set(b"1")


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("after", ['"v2"', None])
@pytest.mark.parametrize("forked", [False, True])
def test_a_body_is_not_resumed_with_another_object(honest, after, forked):
    with FaultServer(ONE, if_match=honest) as server:
        open_read(server.url, FAST).close()

        def work():
            with open_read(server.url, FAST) as source:
                return str(len(b"".join(iter(lambda: source.read(1 << 20), b""))))

        server.script([Action(cut=1_000_000), Action(change=(TWO, after))])
        if forked:
            assert in_child(work).startswith("ObjectChanged: ")
        else:
            with pytest.raises(ObjectChanged):
                work()


def test_check_version():
    for version in ('"a"', 'W/"a"'):
        for result in ('"a"', 'W/"a"'):
            check_version(result, version, "u")
        for result in ('"b"', 'W/"b"', "a", "", None):
            with pytest.raises(ObjectChanged):
                check_version(result, version, "u")
    check_version(None, None, "u")
    check_version('"a"', None, "u")
    assert [if_match(tag) for tag in (None, '"a"', 'W/"a"')] == [None, '"a"', None]
