"""Chunks: a complete chain of one lineage, or nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.servers import required, seaweed_s3
from tarmac.jobs.chunks import Chunks, chunk_directory
from tarmac.storage import StorageOptions, delete, list_objects, read_all, write_all


@pytest.fixture(scope="module")
def store():
    with required(seaweed_s3()) as server:
        server.make_bucket("chunks")
        yield StorageOptions(config=server.config())


@pytest.fixture(params=["disk", "store"])
def location(request, tmp_path, store):
    if request.param == "disk":
        return str(tmp_path / "deep" / ".tarmac" / "map.job"), StorageOptions()
    return f"s3://chunks/{tmp_path.name}/.tarmac/map.job", store


def opened(location, fingerprint="job"):
    ledger, storage = location
    return Chunks(chunk_directory(ledger, "out/x.tar"), fingerprint, storage)


def saved(location, *numbers, fingerprint="job"):
    """Save a chunk for each number, behind those that exist."""
    chunks = opened(location, fingerprint)
    chunks.load()
    for number in numbers:
        chunks.save({"read": number}, [b"%d" % number, b"-"])
    return chunks


def loaded(location, fingerprint="job"):
    chunks = opened(location, fingerprint).load()
    return [(chunk.state["read"], read_all(chunk.url, location[1])) for chunk in chunks]


def names(location):
    directory = opened(location).directory
    return sorted(url for url, _ in list_objects(f"{directory}/", location[1]))


def test_chunks_continue_those_of_an_earlier_attempt(location):
    assert loaded(location) == []
    saved(location, 3, 5)
    saved(location, 9)
    saved(location)
    assert loaded(location) == [(3, b"3-"), (5, b"5-"), (9, b"9-")]
    saved(location).clear()
    assert loaded(location) == []
    assert names(location) == []


def test_chunks_of_another_job_are_ignored(location):
    saved(location, 1, 2, 3, fingerprint="other")
    saved(location, 7)
    assert loaded(location) == [(7, b"7-")]
    assert [state for state, _ in loaded(location, "other")] == [1, 2, 3]
    chunks = opened(location)
    assert not chunks.exist
    chunks.load()
    assert chunks.exist


def test_two_workers_on_one_unit_do_no_harm(location):
    saved(location, 1)
    first, second = opened(location), opened(location)
    first.load()
    second.load()
    first.save({"read": 20}, [b"20"])
    second.save({"read": 30}, [b"30"])
    second.save({"read": 31}, [b"31"])
    first.save({"read": 21}, [b"21"])
    first.save({"read": 22}, [b"22"])
    assert loaded(location) == [(1, b"1-"), (20, b"20"), (21, b"21"), (22, b"22")]
    first.clear()
    second.save({"read": 32}, [b"32"])  # of a chain whose beginning is gone
    assert loaded(location) == []


def test_only_the_first_chunks_are_continued(location):
    saved(location, 1, 2, 3)
    chunks = opened(location)
    chunks.keep(chunks.load()[:1])
    chunks.save({"read": 8}, [b"8"])
    chunks.save({"read": 9}, [b"9"])
    chunks.save({"read": 10}, [b"10"])
    assert [state for state, _ in loaded(location)] == [1, 8, 9, 10]
    chunks.keep([])
    chunks.save({"read": 4}, [])
    assert [state for state, _ in loaded(location)] == [1, 8, 9, 10]


@pytest.mark.parametrize("damage", ["no data", "short data", "no state", "torn state", "other state"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_chunk_ends_the_chain(location, damage, number):
    """A chain without its beginning is none; without its end, the beginning counts."""
    saved(location, 1, 2, 3)
    data, state = (
        next(url for url in names(location) if f"/{number:06d}-" in url and url.endswith(end))
        for end in (".tar", ".json")
    )
    storage = location[1]
    if damage.startswith("no "):
        delete(data if damage == "no data" else state, storage)
    elif damage == "short data":
        delete(data, storage)
        write_all(data, b"x", storage)
    else:
        content = read_all(state, storage)
        delete(state, storage)
        write_all(state, content[:-9] if damage == "torn state" else b"[]", storage)
    assert [state for state, _ in loaded(location)] == [1, 2, 3][:number]
    saved(location, 50)
    assert [state for state, _ in loaded(location)] == [*[1, 2, 3][:number], 50]


def test_a_chain_cannot_loop(tmp_path):
    location = str(tmp_path / "map.job"), StorageOptions()
    saved(location, 1, 2)
    for path in names(location):
        if path.endswith(".json"):
            state = json.loads(Path(path).read_text())
            state["previous"] = os.path.basename(path).removesuffix(".json")
            Path(path).write_text(json.dumps(state))
    assert loaded(location) == []


def test_nothing_is_left_on_disk(tmp_path):
    chunks = saved((str(tmp_path / "map.job"), StorageOptions()), 1)
    chunks.clear()
    assert list(tmp_path.iterdir()) == []
