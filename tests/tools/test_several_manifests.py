"""Manifests, also several and mixed with patterns, are carried through every verb and reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tarmac
from tarmac.cli import main
from tarmac.indexing.manifest import read_manifest
from tools.shards import make

KEYS = ["s0/000", "s0/001", "s0/002", "s1/000", "s1/001"]


def same(sample):
    return sample


VERBS: dict[str, Any] = {
    "copy": lambda sources: tarmac.copy(sources, "out.tar", jobs=1).written,
    "sort": lambda sources: tarmac.sort(sources, "out.tar", jobs=1).written,
    "map": lambda sources: tarmac.map(sources, "out.tar", same, jobs=1).written,
    "join": lambda sources: tarmac.join(sources, sources, "out.tar", replace=True, jobs=1).written,
    "export": lambda sources: tarmac.export(sources, "out.jsonl", jobs=1).written,
    "stats": lambda sources: len(tarmac.stats(sources, images=False).samples),
    "index": lambda sources: tarmac.index(sources, "all.json", jobs=1).manifest.samples,
    "check": lambda sources: tarmac.check(sources, jobs=1).samples,
    "audit": lambda sources: tarmac.audit(sources, batch_size=1).summary().samples,
    "Dataset": lambda sources: len([sample["__key__"] for sample in tarmac.Dataset(sources)]),
    "read": lambda sources: len(list(tarmac.read(sources))),
    "WebDataset": lambda sources: len(list(tarmac.WebDataset(sources))),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Two datasets whose indexes are in directories of their own, and one shard without an index."""
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    make(tmp_path, 3, 2)
    for number in range(2):
        tarmac.index(f"in-{number}.tar", f"{number}.json", sidecars=f"indexes-{number}", digests=True, jobs=1)
    return tmp_path


def built() -> list[str]:
    """Return the indexes beside shards and in the cache directory."""
    return sorted(path.name for path in [*Path().glob("*.arrow"), *Path("home").rglob("*.arrow")])


SOURCES: dict[str, Any] = {
    "one": lambda: ["0.json", "1.json"],
    "pattern": lambda: "{0,1}.json",
    "glob": lambda: "[01].json",
    "joined": lambda: "0.json::1.json",
    "objects": lambda: [read_manifest("0.json"), Path("1.json")],
    "merged": lambda: tarmac.index(["0.json", "1.json"], jobs=1).manifest,
}


@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize("verb", VERBS)
def test_nothing_that_a_manifest_lists_is_indexed_again(verb, sources):
    assert VERBS[verb](SOURCES[sources]()) == 5
    assert built() == []


@pytest.mark.parametrize("verb", VERBS)
def test_manifests_and_shards_together(verb, here):
    make(here, 4, name="more-{}.tar")
    tarmac.copy("more-0.tar", "other.tar", rekey="o{i}", jobs=1)
    for path in here.glob("home/index/*.arrow"):
        path.unlink()
    assert VERBS[verb](["0.json", "other.tar", read_manifest("1.json")]) == 9
    assert all("other.tar" in name for name in built())


def test_the_order_is_that_of_the_sources():
    samples = tarmac.Dataset(["1.json", "in-0.tar"])
    assert [sample["__key__"] for sample in samples] == [*KEYS[3:], *KEYS[:3]]


def test_check_compares_with_the_indexes_of_all_manifests(here, capsys):
    report = tarmac.check(["0.json", "1.json"], digests=True, jobs=1)
    assert report.ok
    assert report.samples == 5
    with pytest.raises(SystemExit) as done:
        main(["check", "0.json", "1.json", "--digests", "-j", "1"])
    assert not done.value.code, capsys.readouterr()
    data = bytearray((here / "in-1.tar").read_bytes())
    data[520] ^= 1
    (here / "in-1.tar").write_bytes(data)
    assert [Path(shard.url).name for shard in tarmac.check(["0.json", "1.json"], jobs=1).bad] == ["in-1.tar"]


def test_a_single_manifest_keeps_its_name():
    tarmac.index("0.json", "named.json", name="a dataset", jobs=1)
    assert tarmac.index("named.json", "again.json", jobs=1).manifest.name == "a dataset"
    assert tarmac.index(["named.json", "1.json"], "both.json", jobs=1).manifest.name == "both"
