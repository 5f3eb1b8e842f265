"""Only shards are cached: other responses are discarded."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
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
from tarmac.compat.webdataset.cache import FileCache
from tarmac.compat.webdataset.tariterators import group_by_keys, tar_file_expander
from tarmac.compat.wids.wids import ShardListDataset
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
# These begin like shards, so only reading them to the end detects the damage.
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
    for error in warm(cache, url, storage=FAST, progress=False).failed.values():
        raise error
    return keys(tarmac.read(url, cache=cache, storage=FAST))


def by_number(url, directory):
    result = ShardListDataset([{"url": url, "nsamples": 6}], cache_dir=directory, transformations=None)
    return [result[number]["__key__"] for number in range(6)]


WAYS = [by_webdataset, by_read, by_one_cache, by_steps, by_unchecked_steps, after_warming, by_number]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lie", [*NOT_SHARDS, *DAMAGED])
def test_responses_that_are_not_shards_are_not_cached(tmp_path, way, lie):
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
def test_skipped_errors_are_not_cached_for_later_epochs(lies, form, passes):
    """One of two shards is wrong in the first epochs; once the server is correct, no sample is missing."""
    with tempfile.TemporaryDirectory() as root, FaultServer(FORMS[form](SHARD)) as server:
        good = server.url.replace("object", "good")
        server.script([Action(body=OTHER), *(Action(body=(NOT_SHARDS | DAMAGED)[lie]) for lie in lies)])
        dataset = tarmac.WebDataset(
            [good, server.url], shardshuffle=False, cache_dir=root, handler=ignore_and_continue
        )
        result = [keys(dataset) for _ in range(len(lies) + passes)]
        assert all(samples[0] == "good" for samples in result)
        assert result[len(lies) :] == [["good", *KEYS]] * passes
        assert len(server.requests) == 1 + len(lies) + 1


@pytest.mark.parametrize("form", FORMS)
def test_shards_of_every_format_are_cached(tmp_path, form):
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


def test_an_entry_damaged_while_in_use(tmp_path):
    """The digest is verified once per process; damage that a reader detects later removes the entry, too."""
    cache = Cache(tmp_path)
    with FaultServer(SHARD) as server:
        assert keys(tarmac.read(server.url, cache=cache)) == KEYS
        entry = cache.path_of(server.url)
        with entry.open("r+b") as file:
            file.seek(1536 + 3)
            file.write(b"\xff")
        with pytest.raises(ArchiveError, match=re.escape(server.url)) as caught:
            list(tarmac.read(server.url, cache=cache))
        assert str(entry) in str(caught.value)
        assert keys(tarmac.read(server.url, cache=cache)) == KEYS
        entry.write_bytes(SHARD[:2000])
        assert keys(tarmac.read(server.url, cache=cache)) == KEYS
        assert len(server.requests) == 3


def test_invalid_entries_of_earlier_versions_are_downloaded_again(tmp_path):
    """A web page with a note in the cache, as earlier versions wrote it."""
    with FaultServer(SHARD) as server:
        server.script([Action(body=NOT_SHARDS["long page"])])
        with Cache(tmp_path, check=None).open_read(server.url, FAST) as source:
            assert source.read(9) == b"<!DOCTYPE"
        assert verify(Cache(tmp_path), keep=True, progress=False).damaged
        assert by_read(server.url, tmp_path) == KEYS
        assert not verify(Cache(tmp_path), progress=False).damaged


def test_any_file_is_cached_without_a_check(tmp_path):
    with FaultServer(HTML) as server:
        small = FileCache(tmp_path, validator=lambda path: Path(path).stat().st_size < 10)
        with pytest.raises(NotATar, match="validator"):
            small.get_file(server.url)
        assert entries(Cache(tmp_path)) == set()
        for _ in range(2):
            path = FileCache(tmp_path, validator=None).get_file(server.url)
            assert Path(path).read_bytes() == HTML
        assert len(server.requests) == 2


def test_indexed_samples_never_come_from_an_older_object(tmp_path):
    """The index belongs to the new object, the entry to the old one: same size, other bytes."""
    new = plain([(f"s{number}.txt", b"%d" % (9 - number) * 700) for number in range(6)])
    cache = Cache(tmp_path)
    with FaultServer(SHARD) as server:
        assert keys(tarmac.read(server.url, cache=cache)) == KEYS
        server.script([Action(change=(new, '"v2"'))])
        dataset = tarmac.Dataset(server.url, cache=cache, storage=FAST)
        assert [sample["txt"][:1] for sample in dataset] == [b"9", b"8", b"7", b"6", b"5", b"4"]


def test_a_damaged_indexed_sample_is_downloaded_again(tmp_path):
    cache = Cache(tmp_path)
    with FaultServer(SHARD) as server:
        dataset = tarmac.Dataset(server.url, cache=cache, storage=FAST, verify=True)
        assert dataset[0]["txt"] == b"0" * 700
        with cache.path_of(server.url).open("r+b") as file:
            file.seek(600)
            file.write(b"rot")
        with pytest.raises(DigestMismatch, match=re.escape(str(cache.path_of(server.url)))):
            dataset[0]
        assert dataset[0]["txt"] == b"0" * 700
        assert keys(dataset) == KEYS


def test_the_hint_for_a_read_only_cache_names_the_file(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    with FaultServer(SHARD) as server:
        server.script([Action(body=DAMAGED["cut"])])
        monkeypatch.setattr(os, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no")))
        with pytest.raises(ArchiveError, match=re.escape(server.url)) as caught:
            by_read(server.url, tmp_path)
        monkeypatch.undo()
        entry = cache.path_of(server.url)
        assert str(entry) in str(caught.value)
        entry.unlink()
        assert by_read(server.url, tmp_path) == KEYS


def test_the_command_reports_shards_that_were_not_cached(tmp_path, capsys):
    from tarmac.cli import main

    with FaultServer(SHARD) as server:
        server.script([Action(body=HTML)])
        command = ["cache", "warm", server.url, "--cache", str(tmp_path), "--json"]
        with pytest.raises(SystemExit, match=r"[1-9]"):
            main(command)
        result = json.loads(capsys.readouterr().out)
        assert (result["failed"], result["fetched"]) == (1, 0)
        assert "web page" in result["errors"][0]
        with pytest.raises(SystemExit, match="0"):
            main(command)
        assert json.loads(capsys.readouterr().out)["fetched"] == 1
