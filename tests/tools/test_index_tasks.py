"""`index` as several tasks: each indexes its share, then what no other task is indexing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tarmac
from tarmac.errors import UnitsFailed
from tarmac.jobs.leases import Leases
from tarmac.tools.index import _lease_directory
from tools.shards import make


def indexed(folder: Path) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in folder.glob("*.arrow"))


def test_the_first_task_takes_over_what_no_other_has_begun(tmp_path):
    urls = make(tmp_path, 2, 3, 4, 5, 6)
    report = tarmac.index(urls, tmp_path / "all.json", task="0/3", jobs=1)
    assert report.manifest.samples == 20
    assert report.output is not None
    assert len(indexed(tmp_path)) == 5
    again = tarmac.index(urls, tmp_path / "all.json", task="2/3", jobs=1)
    assert (len(again.built), len(again.up_to_date)) == (0, 5)
    assert not list(tmp_path.glob(".tarmac/*/leases/*"))


def test_shards_of_a_running_task_are_left_to_it(tmp_path):
    urls = make(tmp_path, 2, 3, 4, 5)
    manifest = f"{tmp_path}/all.json"
    other = Leases(_lease_directory(manifest), "1/2")
    assert other.take(urls[3])
    report = tarmac.index(urls, manifest, task="0/2", jobs=1)
    assert len(indexed(tmp_path)) == 3
    assert report.output is None  # the last task writes the manifest
    assert "1 shard of other tasks" in report.remarks[-1]
    other.close()
    report = tarmac.index(urls, manifest, task="1/2", jobs=1)
    assert report.manifest.samples == 14
    assert [shard["nsamples"] for shard in json.loads(Path(manifest).read_text())["shardlist"]] == [
        2,
        3,
        4,
        5,
    ]


def test_without_a_manifest_a_task_indexes_its_share(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    urls = [*make(tmp_path / "a", 2, 3), *make(tmp_path / "b", 4, 5)]
    tarmac.index(urls, task="0/2", jobs=1)
    assert (len(indexed(tmp_path / "a")), len(indexed(tmp_path / "b"))) == (1, 1)


def test_failed_units_of_a_task(tmp_path):
    urls = make(tmp_path, 2, 3, 4, 5)
    for url in urls[:2]:
        Path(url).write_bytes(Path(url).read_bytes()[:700])
    with pytest.raises(UnitsFailed, match="2 of 4 units"):
        tarmac.index(urls, tmp_path / "all.json", task="0/1", jobs=1, max_failed_units=2)
    assert len(indexed(tmp_path)) == 2
