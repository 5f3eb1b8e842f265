"""Embedding is killed, and moved to other engines: the files are those of an undisturbed run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tarmac
from embedding.models import HERE, Counted
from embedding.shards import captions, written
from harness import rounds
from harness.anywhere import anywhere
from harness.clusters import import_path
from harness.crash import Forked, survive

BATCH = 4
CHUNK = 32 * BATCH
"""Samples that are sorted by length and saved together."""


def whole(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files that appeared under their names."""
    return {name: data for name, data in files.items() if not Path(name).name.startswith(".")}


def test_killed_processes(tmp_path, monkeypatch):
    """No sample has two vectors, and a kill costs one chunk at most."""
    shards = captions(tmp_path, 400, 400, 30)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))

    def work(output="out"):
        tarmac.embed(
            shards, tmp_path / output, model=Counted, text="txt", batch_size=BATCH, jobs=1,
            checkpoint_samples=CHUNK, checkpoint_interval=None,
        )  # fmt: skip

    work("quiet")
    quiet = written(tmp_path / "quiet")
    (tmp_path / "calls").unlink()
    output, kills = tmp_path / "out", 0

    def strike(seed):
        nonlocal kills
        result = Forked(work).crash(seed, 0.4)
        kills += result.killed
        return result

    def check():
        present = whole(written(output)) if output.exists() else {}
        assert {name: quiet[name] for name in present} == present
        if "embeddings.json" in present:
            complete()

    def complete():
        """Compare what several processes did together, and start over."""
        nonlocal kills
        work()
        assert written(output) == quiet
        vectors = tarmac.Embeddings(output)
        assert len(set(vectors.keys())) == len(vectors) == 830
        calls = (tmp_path / "calls").read_text().splitlines()
        assert len(set(calls)) == 830
        assert len(calls) <= 830 + kills * CHUNK
        assert not list(output.rglob("*.tar"))
        shutil.rmtree(output)
        (tmp_path / "calls").unlink()
        kills = 0

    survive(rounds(20), strike, check)
    complete()


MODEL = """
import numpy as np
import functions

class Keys:
    version = "1"
    dimension = 16

    def encode_texts(self, texts):
        for text in texts:
            functions.work({"__key__": text.replace(" ", "_"), "txt": ""})
        return np.stack([np.random.default_rng(len(t) * 999 + sum(t.encode())).normal(size=16) for t in texts])
"""


@pytest.mark.processes
def test_the_same_bytes_on_every_engine(tmp_path, monkeypatch):
    shards = captions(tmp_path, *[30] * 8)
    monkeypatch.chdir(tmp_path)
    with anywhere(tmp_path) as clusters:
        (tmp_path / "model.py").write_text(MODEL)
        command = ["embed", *shards, "--model", "model.py:Keys", "--text", "txt"]
        command += ["--batch-size", "2", "--checkpoint-samples", "10"]
        for engine in ("local-1", "dask", "slurm"):
            assert clusters.run(engine, [*command, "-o", engine]), clusters.logs
        clusters.calls()
        for engine, bomb in (("slurm", 60), ("dask", 40), ("tasks", 50)):
            clusters.run(engine, [*command, "-o", "out"], bomb)
        assert clusters.run("local-2", [*command, "-o", "out"]), clusters.logs
        calls = clusters.calls()
        for engine in ("dask", "slurm"):
            build = [
                "knn",
                "build",
                "local-1",
                "-o",
                f"index-{engine}",
                "--max-memory",
                "11KB",
            ]
            assert clusters.run(engine, build), clusters.logs
            index = tarmac.Knn(tmp_path / f"index-{engine}")
            assert (len(index), index.facts.choice.kind) == (240, "ivf")
            assert index.facts.recall.low >= 0.95
    expected = written(tmp_path / "local-1")
    assert len(expected) == 2 * 8 + 1
    for folder in ("dask", "slurm", "out"):
        assert written(tmp_path / folder) == expected, folder
    assert len(set(calls)) == 8 * 30


@pytest.mark.heavy
def test_memory_does_not_grow_with_the_data(tmp_path):
    """Ten times the samples in a shard take no more memory: vectors and metadata are written in pieces."""
    script = """
import sys
import tarmac
from harness.memory import peak, reset_peak
reset_peak()
tarmac.embed(sys.argv[1], sys.argv[2], model=sys.argv[3], text="txt", meta=["txt"], jobs=1)
print(peak())
"""
    tests = str(Path(__file__).parents[1])
    peaks = []
    for count in (12_000, 120_000):
        (plain,) = captions(tmp_path, count)
        shard = f"{tmp_path}/{count}.tar.gz"  # not mapped, because pages of maps count as memory
        tarmac.copy(plain, shard)
        command = [sys.executable, "-c", script, shard, str(tmp_path / str(count)), f"{HERE}:Wide"]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={"PYTHONPATH": import_path(tests)}
        )
        peaks.append(int(done.stdout))
    size = np.load(tmp_path / "120000/text_emb/text_emb_0.npy", mmap_mode="r").nbytes
    assert size > 400e6
    assert peaks[1] < peaks[0] * 1.2, peaks  # groups of rows, and what the allocator keeps
