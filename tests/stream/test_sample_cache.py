"""Sample caches: complete epochs only, copies, parts per worker, safety."""

from __future__ import annotations

import pickle

import pytest

from tarmac.errors import UnsafeCodec
from tarmac.storage import enforce_security
from tarmac.stream.sample_cache import Cached, DBCache, LMDBCached

SAMPLES = [{"__key__": f"{i:03d}", "x": [i]} for i in range(25)]


def make(kind, tmp_path):
    if kind == "memory":
        return Cached()
    return (
        DBCache(tmp_path / "c.db", chunksize=4)
        if kind == "db"
        else LMDBCached(tmp_path / "lmdb", 1 << 26, chunksize=4)
    )


def must_not_be_read():
    raise AssertionError("the source was read again")
    yield


@pytest.mark.parametrize("kind", ["memory", "db", "lmdb"])
def test_the_second_epoch_reads_the_cache(kind, tmp_path):
    cache = make(kind, tmp_path)
    assert list(cache(iter(SAMPLES))) == SAMPLES
    assert list(cache(must_not_be_read())) == SAMPLES
    assert list(cache(must_not_be_read())) == SAMPLES


@pytest.mark.parametrize("kind", ["memory", "db", "lmdb"])
def test_an_interrupted_epoch_is_not_cached(kind, tmp_path):
    cache = make(kind, tmp_path)
    items = iter(cache(iter(SAMPLES)))
    for _ in range(13):
        next(items)
    items.close()
    assert list(cache(iter(SAMPLES[:20]))) == SAMPLES[:20]
    assert list(cache(must_not_be_read())) == SAMPLES[:20]


@pytest.mark.parametrize("kind", ["memory", "db", "lmdb"])
def test_later_stages_do_not_change_cached_samples(kind, tmp_path):
    cache = make(kind, tmp_path)
    for _ in range(3):
        for sample in cache(iter([dict(sample) for sample in SAMPLES])):
            assert "y" not in sample
            sample["y"] = 1


@pytest.mark.parametrize("kind", ["db", "lmdb"])
def test_each_worker_has_its_part(kind, tmp_path, monkeypatch):
    cache = make(kind, tmp_path)
    monkeypatch.setenv("NUM_WORKERS", "2")
    for worker in (0, 1):
        monkeypatch.setenv("WORKER", str(worker))
        list(cache(iter(SAMPLES[worker::2])))
    for worker in (0, 1):
        monkeypatch.setenv("WORKER", str(worker))
        assert list(cache(must_not_be_read())) == SAMPLES[worker::2]
    monkeypatch.setenv("NUM_WORKERS", "1")
    monkeypatch.setenv("WORKER", "0")
    assert list(cache(iter(SAMPLES))) == SAMPLES


@pytest.mark.parametrize("kind", ["memory", "db", "lmdb"])
def test_caches_are_picklable(kind, tmp_path):
    cache = pickle.loads(pickle.dumps(make(kind, tmp_path)))
    assert list(cache(iter(SAMPLES))) == SAMPLES


@pytest.mark.parametrize("kind", ["db", "lmdb"])
def test_secure_mode_loads_no_pickles(kind, tmp_path):
    cache = make(kind, tmp_path)
    list(cache(iter(SAMPLES)))
    enforce_security()
    try:
        with pytest.raises(UnsafeCodec):
            list(cache(iter(SAMPLES)))
    finally:
        enforce_security(False)
