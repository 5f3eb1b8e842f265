"""Keys, names and rows on disk."""

from __future__ import annotations

import multiprocessing
import pickle
import random

import pytest

from harness.waiting import TIMEOUT
from tarmac.errors import SampleError, WriteError
from tarmac.tools.keystore import KeyNumbers, RowStore, SharedKeys, UniqueNames

KEYS = ["b", "a", "é", "\udc80", "\ud800", "c" * 3000]


def numbered(path, keys, on_duplicate="error"):
    return KeyNumbers(str(path), keys, on_duplicate=on_duplicate, url="x.csv")


def test_key_numbers(tmp_path):
    with numbered(tmp_path / "k", KEYS) as table:
        assert list(table.numbers([*KEYS, "z", "a", "./a"])) == [0, 1, 2, 3, 4, 5, -1, 1, 1]
        assert list(table.numbers([])) == []
        assert list(table.numbers(["z", "b"] * 1000)) == [-1, 0] * 1000
        assert ("é" in table, "z" in table, 5 in table, len(table)) == (True, False, False, 6)
        assert sorted(key for key in table if key != "\udced\udca0\udc80") == sorted(KEYS[:4] + KEYS[5:])
        with pytest.raises(TypeError):
            pickle.dumps(table)


def test_duplicate_keys_raise_or_the_first_counts(tmp_path):
    with pytest.raises(SampleError) as caught, numbered(tmp_path / "k", ["a", "b", "a", "c"]):
        pass
    assert (caught.value.key, caught.value.url) == ("a", "x.csv")
    with numbered(tmp_path / "l", ["a", "b", "a"], "first") as table:
        assert list(table.numbers("ab")) == [0, 1]
        assert len(table) == 2


def test_rows(tmp_path):
    with RowStore(str(tmp_path / "r")) as store:
        assert store.fill([("b", {"x": b"12", "y": b""}), ("a", {}), ("é", {"z": b"3"})]) == 3
    with RowStore(str(tmp_path / "r")) as store:
        assert list(store.keys()) == ["b", "a", "é"]
        assert store.fields([2, 0, 0]) == [{"z": b"3"}, {"x": b"12", "y": b""}, {"x": b"12", "y": b""}]
        assert store.sizes([0, 1, 2]) == [2, 0, 1]


def test_shared_keys_finds_every_duplicate(tmp_path):
    rng = random.Random(0)
    shards = [[f"{shard}/{number}" for number in range(50)] for shard in range(4)] + [[]]
    expected = {}
    for number in range(10):
        key = f"shared{number}\udcff"
        expected[key] = sorted(rng.sample(range(4), 2))
        for shard in expected[key]:
            shards[shard].insert(rng.randrange(20), key)
    shards[2].append("2/7")
    expected["2/7"] = [2, 2]
    store = SharedKeys(str(tmp_path / "keys"))
    assert list(store.duplicates()) == []
    for number, keys in enumerate(shards):
        pickle.loads(pickle.dumps(store)).add(number, keys)
    store.add(0, shards[0])  # a unit that ran twice
    assert dict(store.duplicates()) == expected


def test_a_name_is_taken_once(tmp_path):
    for path in ("", str(tmp_path / "names")):
        with UniqueNames(path) as names:
            assert names.take(["a/b.txt", "a/b.cls"]) is None
            assert names.take(["c", "a/b.cls"]) == "a/b.cls"
            assert names.take(["x\udc80", "é"]) is None
            assert names.take(["twice", "twice"]) == "twice"
            assert names.take([]) is None
    with UniqueNames(str(tmp_path / "names")) as names:
        assert names.take(["a/b.txt"]) == "a/b.txt"
    with UniqueNames() as names:
        assert names.take(["a/b.txt"]) is None


def _take_all(path, barrier, results):
    with UniqueNames(path) as names:
        barrier.wait(300)
        results.put(sum(names.take([f"{number}"]) is None for number in range(200)))


def test_processes_share_names(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    arguments = (str(tmp_path / "names"), barrier, results)
    processes = [context.Process(target=_take_all, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    taken = [results.get(timeout=TIMEOUT) for _ in processes]
    for process in processes:
        process.join(TIMEOUT)
    assert sum(taken) == 200


def test_a_database_that_cannot_be_opened(tmp_path):
    (tmp_path / "other").write_bytes(b"no database" * 100)
    for path in (tmp_path / "absent/names", tmp_path, tmp_path / "other"):
        with pytest.raises(WriteError, match="TMPDIR") as caught:
            UniqueNames(str(path))
        assert caught.value.url == str(path)
