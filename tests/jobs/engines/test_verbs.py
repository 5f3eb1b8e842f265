"""Every verb with an engine runs on a cluster: its outputs are those of one process."""

from __future__ import annotations

import pytest

import tarmac
from harness import required
from harness.clusters import dask_cluster
from tools.shards import files, make

pytestmark = pytest.mark.processes

VERBS = {
    "pack": lambda to, **run: tarmac.pack("raw", f"{to}/x-{{i}}.tar", max_samples=2, **run),
    "copy": lambda to, **run: tarmac.copy(
        "in-*.tar", f"{to}/x-{{i}}.tar", max_samples=4, shuffle=True, **run
    ),
    "sort": lambda to, **run: tarmac.sort("in-*.tar", f"{to}/x-{{i}}.tar", by="cls", max_samples=4, **run),
    "map": lambda to, **run: tarmac.map("in-*.tar", f"{to}/", command="echo new > sample.new", **run),
    "join": lambda to, **run: tarmac.join("in-*.tar", "in-1.tar", f"{to}/", prefix="b.", **run),
    "export": lambda to, **run: tarmac.export("in-*.tar", f"{to}/x-{{i}}.jsonl", max_samples=4, **run),
}


@pytest.fixture(scope="module")
def engine():
    with required(dask_cluster()) as cluster:
        yield cluster.engine


@pytest.fixture
def folder(tmp_path, monkeypatch):
    make(tmp_path, 5, 6, 7)
    (tmp_path / "raw").mkdir()
    for number in range(7):
        (tmp_path / "raw" / f"{number}.txt").write_text(str(number))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_that_write(folder, engine, verb):
    here, there = VERBS[verb]("here", jobs=1), VERBS[verb]("there", engine=engine)
    assert (there.units, there.read, there.written) == (here.units, here.read, here.written)
    assert there.units > 2
    assert files(folder / "there") == files(folder / "here")
    assert VERBS[verb]("there", engine=engine).done == 0
    assert not list(folder.glob("there/.tarmac/work-*"))


def test_index_and_check(folder, engine):
    assert tarmac.index("in-*.tar", "m.json", engine=engine).read == 18
    assert len(tarmac.Dataset("m.json")) == 18
    content = bytearray((folder / "in-1.tar").read_bytes())
    content[10] ^= 1  # in a header
    (folder / "in-1.tar").write_bytes(content)
    report = tarmac.check("in-*.tar", engine=engine)
    assert [(shard.url, shard.ok) for shard in report.shards] == [
        ("in-0.tar", True),
        ("in-1.tar", False),
        ("in-2.tar", True),
    ]
