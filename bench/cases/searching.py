"""Search: build and query an index of a million vectors in bounded memory, and build one beside autofaiss.

Vectors are noisy clusters of 512 numbers. Recall and latency are those of queries that the index has not seen, recall
with its 95 % interval, latency one query at a time with the vectors in the page cache. Memory is the peak of the
process that builds and searches.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.measure import peak_memory
from bench.registry import Done, Site, Work, case

if TYPE_CHECKING:
    from tarmac.searching.measure import Recall

DIMENSION, PART = 512, 50_000
GROUPS, NOISE = 2000, 0.8
QUERIES, TIMED, K = 1000, 200, 10
MANY, FEW = 10, 2
"""Vectors for each small sample of the other cases: a million, and 200,000."""
MEMORY, MEMORY_BESIDE = 120_000_000, 60_000_000
RECALL, MOST_MEMORY, MOST_MS, MOST_SECONDS = 0.95, 10**9, 10.0, 480.0
AUTOFAISS = Path(__file__).parents[2] / ".tools" / "autofaiss" / "bin" / "python"
MINUTES = 20
SCRIPT = """
import json, os, sys, time
import numpy as np
from autofaiss import build_index
folder, output, queries, memory, timed = sys.argv[1:]
begin = time.perf_counter()
index, facts = build_index(
    folder, index_path=f"{output}/x.index", index_infos_path=f"{output}/x.json", metric_type="ip",
    max_index_memory_usage=memory, current_memory_available="8GB", verbose=40,
)
seconds = time.perf_counter() - begin
queries = np.load(queries)
np.save(f"{output}/numbers.npy", index.search(queries, 10)[1])
spent = []
for query in queries[: int(timed)]:
    begin = time.perf_counter()
    index.search(query[None], 10)
    spent.append(1e3 * (time.perf_counter() - begin))
bytes_, kind = os.path.getsize(f"{output}/x.index"), facts["index_key"]
print(json.dumps({"seconds": seconds, "p50": float(np.median(spent[10:])), "bytes": bytes_, "kind": kind}))
"""


def noisy_clusters(count: int, seed: int) -> np.ndarray:
    """Return vectors of length 1 around centres, which do not depend on the seed."""
    centres = np.random.default_rng(0).standard_normal((GROUPS, DIMENSION), np.float32)
    rng = np.random.default_rng(seed)
    vectors = (
        NOISE * rng.standard_normal((count, DIMENSION), np.float32) + centres[rng.integers(0, GROUPS, count)]
    )
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def embeddings(site: Site, count: int) -> Path:
    """Return a directory of vectors in the layout of clip-retrieval, which is made if it is missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = site.data / f"vectors-{count}-{DIMENSION}"
    if not path.exists():
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        for folder in ("img_emb", "metadata"):
            (part / folder).mkdir(parents=True)
        for number, start in enumerate(range(0, count, PART)):
            vectors = noisy_clusters(min(PART, count - start), number + 1).astype(np.float16)
            np.save(part / "img_emb" / f"img_emb_{number:04d}.npy", vectors)
            keys = [f"{start + row:09d}" for row in range(len(vectors))]
            pq.write_table(
                pa.table({"image_path": keys}), part / "metadata" / f"metadata_{number:04d}.parquet"
            )
        part.rename(path)
    return path


def queries(site: Site, count: int) -> tuple[Path, Path]:
    """Return files of queries and of the numbers of their true neighbours."""
    path = embeddings(site, count)
    asked, truth = path / "queries.npy", path / "truth.npy"
    if not truth.exists():
        from tarmac.searching.library import nearest

        vectors = noisy_clusters(QUERIES, 10**6)
        np.save(asked, vectors)
        np.save(truth, nearest(vectors, blocks(path), min(K, count), "ip")[1])
    return asked, truth


def blocks(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    first = 0
    for file in sorted((path / "img_emb").glob("*.npy")):
        vectors = np.load(file).astype(np.float32)
        yield np.arange(first, first + len(vectors)), vectors
        first += len(vectors)


def recall(numbers: np.ndarray, truth: np.ndarray) -> Recall:
    """Return the share of the true neighbours of each query that was returned, on average, with its interval."""
    from tarmac.searching.measure import interval

    pairs = zip(numbers.tolist(), truth.tolist(), strict=True)
    return interval(np.array([len({*row} & {*true}) / len(true) for row, true in pairs]), truth.shape[1])


def described(reached: Recall, p50: float, size: int) -> str:
    return f"{reached}, p50 {p50:.2f} ms, index {size / 1e6:.0f} MB"


def built(path: Path, asked: Path, truth: Path, memory: int, folder: str) -> tuple[float, Recall, float, int]:
    """Build an index; return the seconds, the recall, the latency in milliseconds, and the size of the index."""
    import tarmac

    begin = time.perf_counter()
    report = tarmac.Knn.build(path, f"{folder}/index", max_memory=memory, progress=False)
    seconds = time.perf_counter() - begin
    index, vectors = tarmac.Knn(f"{folder}/index"), np.load(asked)
    reached = recall(index.search(vectors, K).numbers[:, : len(index)], np.load(truth))
    p50 = np.median([timed(index, query) for query in vectors[:TIMED]][10:])
    return seconds, reached, float(p50), report.facts.memory_bytes


def timed(index, query: np.ndarray) -> float:
    begin = time.perf_counter()
    index.search(query, K)
    return 1e3 * (time.perf_counter() - begin)


def joined(faults: dict[str, bool]) -> str:
    return ", ".join(name for name, missed in faults.items() if missed)


@case("knn: build an index of 1 M x 512", sides=("tarmac",), limit=MOST_SECONDS, most=1)
def million(site: Site, side: str) -> Work:
    count = site.small * MANY
    path, (asked, truth) = embeddings(site, count), queries(site, count)

    def work() -> Done:
        with tempfile.TemporaryDirectory(dir=site.data) as folder:
            seconds, reached, p50, size = built(path, asked, truth, MEMORY, folder)
        memory = peak_memory()
        faults = {
            f"recall {reached.mean:.4f}": reached.mean < RECALL,
            f"{p50:.1f} ms": p50 > MOST_MS and site.small == Site.small,
            f"{size} bytes of index": size > MEMORY,
            f"{memory / 1e9:.2f} GB of memory": memory > MOST_MEMORY,
        }
        note = f"{described(reached, p50, size)}, peak {memory / 1e6:.0f} MB"
        return Done(1, seconds, note, joined(faults))

    return work


@case(
    "knn: build an index of 200 k x 512 in 60 MB",
    sides=("tarmac", "autofaiss"),
    ratio=5.0,
    limit=MOST_SECONDS,
    most=1,
    needs=(str(AUTOFAISS),),
)
def beside_autofaiss(site: Site, side: str) -> Work:
    count = site.small * FEW
    path, (asked, truth) = embeddings(site, count), queries(site, count)
    kept = site.data / "knn-recall.json"

    def ours() -> Done:
        with tempfile.TemporaryDirectory(dir=site.data) as folder:
            seconds, reached, p50, size = built(path, asked, truth, MEMORY_BESIDE, folder)
        kept.write_text(json.dumps(reached.mean))
        note = f"{described(reached, p50, size)}, peak {peak_memory() / 1e6:.0f} MB"
        return Done(1, seconds, note, joined({f"{size} bytes of index": size > MEMORY_BESIDE}))

    def theirs() -> Done:
        with tempfile.TemporaryDirectory(dir=site.data) as folder:
            arguments = [path / "img_emb", folder, asked, f"{MEMORY_BESIDE // 10**6}MB", TIMED]
            command = [str(AUTOFAISS), "-c", SCRIPT, *map(str, arguments)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES)
            except subprocess.TimeoutExpired:
                return Done(1, 60.0 * MINUTES, f"not finished in {MINUTES} minutes")
            if done.returncode:
                last = (done.stderr.strip().splitlines() or [""])[-1]
                return Done(1, 60.0 * MINUTES, fault=f"autofaiss ended with {done.returncode}: {last}")
            reached = recall(np.load(f"{folder}/numbers.npy"), np.load(truth))
        values = json.loads(done.stdout.splitlines()[-1])
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        note = f"{described(reached, values['p50'], values['bytes'])}, peak {peak / 1e6:.0f} MB, {values['kind']}"
        more = kept.exists() and reached.mean > json.loads(kept.read_text())
        return Done(
            1, values["seconds"], note, joined({f"recall {reached.mean:.4f}, more than tarmac's": more})
        )

    return ours if side == "tarmac" else theirs
