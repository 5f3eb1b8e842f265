"""Keys that come twice are found, exactly, a range of hashes at a time."""

from __future__ import annotations

import random

import pytest
import xxhash

from tarmac.tools.check.duplicates import KeyFiles


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_all_that_come_twice_and_no_others(tmp_path, at_once):
    rng = random.Random(0)
    shards = [[f"{shard}/{number}" for number in range(50)] for shard in range(4)] + [[]]
    expected = {}
    for number in range(10):
        key = f"shared{number}\udcff"
        homes = sorted(rng.sample(range(4), 2))
        expected[key] = homes
        for home in homes:
            shards[home].insert(rng.randrange(20), key)
    shards[2].append("2/7")  # twice in one shard
    expected["2/7"] = [2, 2]
    files = KeyFiles(str(tmp_path), at_once)
    for number, keys in enumerate(shards):
        files.save(number, keys)
    assert dict(files.duplicates()) == expected


def test_the_same_hash_is_not_the_same_key(tmp_path, monkeypatch):
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda data: len(data))
    files = KeyFiles(str(tmp_path))
    files.save(0, ["a", "b", "cc"])
    files.save(1, ["c", "b", "dd"])
    assert list(files.duplicates()) == [("b", [0, 1])]


def test_nothing(tmp_path):
    assert list(KeyFiles(str(tmp_path)).duplicates()) == []
