"""Only shards stay in a cache: whatever else came in place of one is gone at the next read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness import rounds
from harness.faultserver import Action, FaultServer
from harness.shards import plain
from storage.caches import FAST, entries
from tarmac.compat.filecache import FileCache
from tarmac.compat.opening import group_by_keys, tar_file_expander
from tarmac.compat.shardlist import ShardListDataset
from tarmac.errors import ArchiveError, DigestMismatch, IndexingError, NotATar
from tarmac.steps.handlers import ignore_and_continue
from tarmac.storage import Cache
from tarmac.tools.cache import verify, warm

SHARD = plain([(f"s{number}.txt", b"%d" % number * 700) for number in range(6)])
KEYS = [f"s{number}" for number in range(6)]
OTHER = plain([("good.txt", b"x")])


def zipped() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.txt", "x" * 1000)
    return stream.getvalue()


HTML = b"<!DOCTYPE html><html><body>Service unavailable</body></html>\n"
NOT_SHARDS = {
    "page": HTML,
    "long page": HTML * 40,
    "json": b'{"error": {"code": 503, "message": "busy"}}',
    "nothing": b"",
    "compressed page": gzip.compress(HTML * 40),
    "compressed nothing": gzip.compress(b""),
    "zip": zipped(),
    "noise": bytes(range(256)) * 8,
    "half a header": SHARD[:300],
    "bad checksum": SHARD[:148] + b"777777" + SHARD[154:],
}
# These begin as shards do, so only reading them to their end can tell.
DAMAGED = {
    "cut": SHARD[:-1500],
    "cut between members": SHARD[:1536],
    "cut gzip": gzip.compress(SHARD)[:-20],
    "damaged later": SHARD[:1536] + b"\x55" * 512 + SHARD[2048:],
}
FORMS = {
    "plain": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "padded": lambda data: data + bytes(9000),
}


def keys(samples) -> list[str]:
    return [sample["__key__"] for sample in samples]


def by_webdataset(url, directory):
    return keys(tarmac.WebDataset(url, shardshuffle=False, cache_dir=directory))


def by_read(url, directory):
    return keys(tarmac.read(url, cache=Cache(directory), storage=FAST))


def by_one_cache(url, directory, kept={}):  # noqa: B006 - the cache of one process for all its passes
    cache = kept.setdefault(directory, Cache(directory))
    return keys(tarmac.read(url, cache=cache, storage=FAST))


def by_steps(url, directory):
    return keys(group_by_keys(tar_file_expander(FileCache(directory)([{"url": url}]))))


def by_unchecked_steps(url, directory):
    return keys(group_by_keys(tar_file_expander(FileCache(directory, validator=None)([{"url": url}]))))


def after_warming(url, directory):
    cache = Cache(directory)
    for error in warm(cache, url, storage=FAST, show=False).failed.values():
        raise error
    return keys(tarmac.read(url, cache=cache, storage=FAST))


def by_number(url, directory):
    found = ShardListDataset([{"url": url, "nsamples": 6}], cache_dir=directory, transformations=None)
    return [found[number]["__key__"] for number in range(6)]


WAYS = [by_webdataset, by_read, by_one_cache, by_steps, by_unchecked_steps, after_warming, by_number]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lie", [*NOT_SHARDS, *DAMAGED])
def test_what_came_in_place_of_a_shard_is_gone_at_the_next_read(tmp_path, way, lie):
    with FaultServer(SHARD) as server:
        server.script([Action(body=(NOT_SHARDS | DAMAGED)[lie])])
        with pytest.raises((ArchiveError, IndexingError)) as caught:
            way(server.url, tmp_path)
        assert "cache" in str(caught.value)
        assert entries(Cache(tmp_path)) == set()
        for _ in range(2):
            assert way(server.url, tmp_path) == KEYS
        assert len(server.requests) == 2


@given(
    st.lists(st.sampled_from([*NOT_SHARDS, *DAMAGED]), min_size=1, max_size=3),
    st.sampled_from(list(FORMS)),
    st.integers(1, 3),
)
@settings(deadline=None, derandomize=True, max_examples=rounds(60))
def test_with_a_handler_that_goes_on_later_passes_have_everything(lies, form, passes):
    """One shard of two is a lie in the first passes; once the server tells the truth nothing is missing."""
    with tempfile.TemporaryDirectory() as root, FaultServer(FORMS[form](SHARD)) as server:
        good = server.url.replace("object", "good")
        server.script([Action(body=OTHER), *(Action(body=(NOT_SHARDS | DAMAGED)[lie]) for lie in lies)])
        dataset = tarmac.WebDataset(
            [good, server.url], shardshuffle=False, cache_dir=root, handler=ignore_and_continue
        )
        found = [keys(dataset) for _ in range(len(lies) + passes)]
        assert all(samples[0] == "good" for samples in found)
        assert found[len(lies) :] == [["good", *KEYS]] * passes
        assert len(server.requests) == 1 + len(lies) + 1


@pytest.mark.parametrize("form", FORMS)
def test_shards_of_every_form_are_kept(tmp_path, form):
    body = FORMS[form](SHARD)
    with FaultServer(body) as server:
        for _ in range(3):
            assert by_read(server.url, tmp_path) == KEYS
        assert len(server.requests) == 1
        assert Cache(tmp_path).path_of(server.url).read_bytes() == body


def test_an_archive_without_members_is_a_shard(tmp_path):
    with FaultServer(bytes(1024)) as server:
        assert by_read(server.url, tmp_path) == by_read(server.url, tmp_path) == []
        assert len(server.requests) == 1


def test_an_entry_that_rots_while_a_process_uses_it(tmp_path):
    """The digest is compared once per process; what a reader finds later is removed all the same."""
    cache = Cache(tmp_path)
    with FaultServer(SHARD) as server:
        assert keys(tarmac.read(server.url, cache=cache)) == KEYS
        entry = cache.path_of(server.url)
        with entry.open("r+b") as file:
            file.seek(1536 + 3)
            file.write(b"\xff")
        with pytest.raises(ArchiveError, match="removed from the cache") as caught:
            list(tarmac.read(server.url, cache=cache))
        assert str(entry) in str(caught.value)
        assert keys(tarmac.read(server.url, cache=cache)) == KEYS
        entry.write_bytes(SHARD[:2000])
        assert keys(tarmac.read(server.url, cache=cache)) == KEYS
        assert len(server.requests) == 3


def test_what_an_earlier_version_kept_is_fetched_again(tmp_path):
    """A page that is in the cache with its note, as they were written before shards were looked at."""
    with FaultServer(SHARD) as server:
        server.script([Action(body=NOT_SHARDS["long page"])])
        with Cache(tmp_path, check=None).open_read(server.url, FAST) as source:
            assert source.read(9) == b"<!DOCTYPE"
        assert verify(Cache(tmp_path), keep=True, show=False).damaged
        assert by_read(server.url, tmp_path) == KEYS
        assert not verify(Cache(tmp_path), show=False).damaged


def test_files_of_any_kind_where_the_caller_says_so(tmp_path):
    with FaultServer(HTML) as server:
        small = FileCache(tmp_path, validator=lambda path: Path(path).stat().st_size < 10)
        with pytest.raises(NotATar, match="validator"):
            small.get_file(server.url)
        assert entries(Cache(tmp_path)) == set()
        for _ in range(2):
            path = FileCache(tmp_path, validator=None).get_file(server.url)
            assert Path(path).read_bytes() == HTML
        assert len(server.requests) == 2


def test_samples_by_number_never_come_from_an_older_object(tmp_path):
    """The index is of the new object, the entry of the old one: same size, other bytes."""
    new = plain([(f"s{number}.txt", b"%d" % (9 - number) * 700) for number in range(6)])
    cache = Cache(tmp_path)
    with FaultServer(SHARD) as server:
        assert keys(tarmac.read(server.url, cache=cache)) == KEYS
        server.script([Action(change=(new, '"v2"'))])
        dataset = tarmac.Dataset(server.url, cache=cache, storage=FAST)
        assert [sample["txt"][:1] for sample in dataset] == [b"9", b"8", b"7", b"6", b"5", b"4"]


def test_a_sample_by_number_that_rotted_is_fetched_again(tmp_path):
    cache = Cache(tmp_path)
    with FaultServer(SHARD) as server:
        dataset = tarmac.Dataset(server.url, cache=cache, storage=FAST, verify=True)
        assert dataset[0]["txt"] == b"0" * 700
        with cache.path_of(server.url).open("r+b") as file:
            file.seek(600)
            file.write(b"rot")
        with pytest.raises(DigestMismatch, match="removed from the cache"):
            dataset[0]
        assert dataset[0]["txt"] == b"0" * 700
        assert keys(dataset) == KEYS


def test_a_cache_that_cannot_be_changed_names_the_file_to_remove(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    with FaultServer(SHARD) as server:
        server.script([Action(body=DAMAGED["cut"])])
        monkeypatch.setattr(os, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no")))
        with pytest.raises(ArchiveError, match=r"Try: remove .*object") as caught:
            by_read(server.url, tmp_path)
        monkeypatch.undo()
        entry = cache.path_of(server.url)
        assert str(entry) in str(caught.value)
        entry.unlink()
        assert by_read(server.url, tmp_path) == KEYS


def test_the_command_says_what_was_not_kept(tmp_path, capsys):
    from tarmac.cli import main

    with FaultServer(SHARD) as server:
        server.script([Action(body=HTML)])
        command = ["cache", "warm", server.url, "--cache", str(tmp_path), "--json"]
        with pytest.raises(SystemExit, match=r"[1-9]"):
            main(command)
        found = json.loads(capsys.readouterr().out)
        assert (found["failed"], found["fetched"]) == (1, 0)
        assert "web page" in found["errors"][0]
        with pytest.raises(SystemExit, match="0"):
            main(command)
        assert json.loads(capsys.readouterr().out)["fetched"] == 1
