"""The stage that reads shards: plain URLs, parts of shards, handlers."""

from __future__ import annotations

import pickle

import pytest

import tarmac
from harness.shards import plain
from tarmac.errors import NoSamples
from tarmac.steps.handlers import ignore_and_continue, ignore_and_stop
from tarmac.stream.read_shards import TarSamples, check_empty, tarfile_samples


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([(f"{i:02d}.txt", b"%d" % i) for i in range(10)]))
    return str(path)


def keys(samples):
    return [int(sample["__key__"]) for sample in samples]


def test_urls_and_dictionaries(shard):
    assert keys(tarfile_samples([shard, {"url": shard}])) == [*range(10), *range(10)]
    assert keys(TarSamples()(iter([{"url": shard}]))) == list(range(10))
    pickle.loads(pickle.dumps(TarSamples()))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_parts_cover_a_shard_once(shard, count):
    parts = [keys(tarfile_samples([{"url": shard, "part": (index, count)}])) for index in range(count)]
    assert sorted(key for part in parts for key in part) == list(range(10))


def test_a_missing_shard_and_handlers(shard, tmp_path):
    urls = [str(tmp_path / "absent.tar"), shard]
    with pytest.raises(tarmac.errors.NotFound):
        list(tarfile_samples(urls))
    stage = TarSamples(ignore_and_continue)
    assert len(list(stage(iter(urls)))) == 10
    assert stage.drops.count == 1
    assert list(TarSamples(ignore_and_stop)(iter(urls))) == []


def test_a_handler_may_stop_at_a_non_contiguous_sample(tmp_path):
    path = tmp_path / "t.tar"
    path.write_bytes(plain([(name, b"") for name in ("0.x", "1.x", "2.x", "1.y", "3.x")]))
    assert keys(TarSamples(ignore_and_stop)(iter([str(path), str(path)]))) == [0]


def test_check_empty():
    assert list(check_empty(iter([1]))) == [1]
    with pytest.raises(NoSamples, match="workers"):
        list(check_empty(iter([])))
