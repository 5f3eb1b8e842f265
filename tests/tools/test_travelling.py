"""A planned job needs nothing from the home, cache or temporary directory of the process that planned it."""

from __future__ import annotations

import contextlib
import gzip
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import tarmac
from harness.servers import required, seaweed_s3
from tarmac.errors import UsageError
from tarmac.indexing.build import IndexOptions, manifest_of
from tarmac.storage import StorageOptions, WriteOptions, list_objects, write_all
from tools.shards import files, make

CHILD = "import pickle, sys; work, unit = pickle.load(sys.stdin.buffer); pickle.dump(work(unit), sys.stdout.buffer)"


class Elsewhere:
    """Runs each unit in a fresh process with another home, while the directories of this one are out of reach."""

    def __init__(self, *hidden: Path, cwd: Path):
        self.hidden, self.cwd = hidden, cwd

    def run(self, work, units):
        for unit in units:
            with contextlib.ExitStack() as stack:
                for path in filter(Path.exists, self.hidden):
                    stack.callback(path.with_name(f"{path.name}-hidden").rename, path)
                    path.rename(path.with_name(f"{path.name}-hidden"))
                with tempfile.TemporaryDirectory(dir=self.cwd) as empty:
                    names = dict.fromkeys(("HOME", "TARMAC_HOME", "TMPDIR", "XDG_CACHE_HOME"), empty)
                    done = subprocess.run(
                        [sys.executable, "-c", CHILD],
                        input=pickle.dumps((work, unit)),
                        stdout=subprocess.PIPE,
                        cwd=self.cwd,
                        env=os.environ | names | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                        check=True,
                    )
            yield unit, pickle.loads(done.stdout)


@pytest.fixture
def planner(tmp_path, monkeypatch):
    """Give this process a home and a temporary directory of its own."""
    home, tmp = tmp_path / "home", tmp_path / "tmp"
    for path in (home, tmp, tmp_path / "elsewhere"):
        path.mkdir()
    monkeypatch.setenv("TARMAC_HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(tmp))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    make(tmp_path, 6, 6)
    make(tmp_path, 6, 6, name="other-{}.tar")
    (tmp_path / "raw").mkdir()
    for number in range(7):
        (tmp_path / "raw" / f"{number}.txt").write_bytes(b"%d" % number)
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(b"key,txt\na,one\nb,two\nc,three\n"))
    (tmp_path / "functions.py").write_text("def same(sample):\n    return sample\n")
    for name in ("in-0.tar", "in-1.tar"):  # compressed shards are unpacked to be sorted
        (tmp_path / f"packed-{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    return Elsewhere(home, tmp, cwd=tmp_path / "elsewhere")


VERBS = {
    "copy": lambda d, o, **k: tarmac.copy(f"{d}/in-*.tar", f"{o}/x-{{i}}.tar", max_samples=5, shuffle=True, **k),
    "map": lambda d, o, **k: tarmac.map(f"{d}/in-*.tar", f"{o}/", f"{d}/functions.py:same", **k),
    "sort": lambda d, o, **k: tarmac.sort(f"{d}/in-*.tar", f"{o}/x-{{i}}.tar", by="cls", max_samples=5, **k),
    "sort unpacked": lambda d, o, **k: tarmac.sort(
        f"{d}/packed-*.gz", f"{o}/x-{{i}}.tar", by="cls", max_samples=5, **k
    ),
    "join": lambda d, o, **k: tarmac.join(f"{d}/in-*.tar", f"{d}/other-*.tar", f"{o}/", prefix="b", **k),
    "join a table": lambda d, o, **k: tarmac.join(
        f"{d}/in-*.tar", f"{d}/rows.csv", f"{o}/", columns=["more"], **k
    ),
    "pack": lambda d, o, **k: tarmac.pack(f"{d}/raw", f"{o}/x-{{i}}.tar", max_samples=3, **k),
    "pack a table": lambda d, o, **k: tarmac.pack(f"{d}/table.csv.gz", f"{o}/x-{{i}}.tar", max_samples=2, **k),
    "export": lambda d, o, **k: tarmac.export(f"{d}/in-*.tar", f"{o}/x-{{i}}.jsonl", max_samples=5, **k),
    "export files": lambda d, o, **k: tarmac.export(f"{d}/in-*.tar", f"{o}/", "dir", overwrite=True, **k),
}  # fmt: skip


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder but those of jobs, by their names in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".tarmac" not in path.parts
    }


@pytest.mark.processes
@pytest.mark.parametrize("verb", VERBS)
def test_units_run_elsewhere_with_the_same_bytes(planner, tmp_path, verb):
    (tmp_path / "rows.csv").write_text("key,more\n" + "".join(f"s0/{n:03d},{n}\n" for n in range(6)))
    run = VERBS[verb]
    report = run(tmp_path, tmp_path / "there", engine=planner)
    assert report.done == report.units > 0
    run(tmp_path, tmp_path / "here", jobs=1)
    assert tree(tmp_path / "there") == tree(tmp_path / "here") != {}
    left = [path.name for path in (tmp_path).rglob("work-*")]
    assert left == []  # working files are removed


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["copy", "sort", "pack"])
def test_a_job_goes_on_with_another_engine(planner, tmp_path, verb):
    run = VERBS[verb]
    report = run(tmp_path, tmp_path / "out", engine=planner)
    sorted((tmp_path / "out").glob("*.tar"))[0].unlink()
    report = run(tmp_path, tmp_path / "out", jobs=1)
    assert (report.done, report.kept) == (1, report.units - 1)


def test_indexes_are_beside_the_output_only_if_workers_need_them(planner, tmp_path):
    VERBS["copy"](tmp_path, tmp_path / "here", jobs=1)
    assert not (tmp_path / "here/.tarmac/index").exists()
    assert VERBS["copy"](tmp_path, tmp_path / "dry", engine=planner, dry_run=True).kept == 0
    assert not (tmp_path / "dry").exists()


def test_planners_that_start_together_build_each_index_once_or_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    urls = make(tmp_path, *[3] * 12)
    options = IndexOptions(directory=str(tmp_path / "shared"))
    manifests = {}

    def plan(number):
        manifests[number] = manifest_of(urls, options, beside=False)

    threads = [threading.Thread(target=plan, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(manifests) == 4
    assert all(manifest == manifests[0] for manifest in manifests.values())
    assert len(files(tmp_path / "shared")) == 12  # complete, and no parts are left
    assert {shard.index for shard in manifests[0].shards} == set(map(str, (tmp_path / "shared").iterdir()))
    assert not (tmp_path / "home").exists()


@pytest.fixture(scope="module")
def store():
    with required(seaweed_s3()) as server:
        server.make_bucket("travel")
        yield StorageOptions(config=server.config())


@pytest.mark.processes
def test_indexes_are_beside_an_output_in_a_store(planner, store, tmp_path):
    for path in tmp_path.glob("in-*.tar"):
        write_all(f"s3://travel/{path.name}", path.read_bytes(), store, WriteOptions(overwrite=True))
    sources = ["s3://travel/in-0.tar", "s3://travel/in-1.tar"]
    report = tarmac.copy(sources, "s3://travel/out/x-{i}.tar", max_samples=5, engine=planner, storage=store)
    assert report.done == 3
    kept = [url for url, _ in list_objects("s3://travel/out/.tarmac/index/", store)]
    assert len(kept) == 2
    with pytest.raises(UsageError, match="sort keeps working files that all workers read"):
        tarmac.sort(sources, "s3://travel/sorted/x-{i}.tar", engine=planner, storage=store)
    shared = tmp_path / "shared"
    shared.mkdir()
    report = tarmac.sort(
        sources, "s3://travel/sorted/x-{i}.tar", engine=planner, storage=store, tmp=str(shared), max_samples=5
    )
    assert report.done == 3
    with pytest.raises(UsageError, match=r"table\.csv\.gz"):
        tarmac.pack(f"{tmp_path}/table.csv.gz", "s3://travel/packed/x.tar", engine=planner, storage=store)
