"""Find near duplicates among vectors: beside SemHash on the same vectors, and alone on ten times as many.

The vectors lie around centres, with a variance that decreases as that of sentence embeddings does, and a tenth of
them are near duplicates of others, at cosines from 0.9 to 1. Recall is that of the pairs that brute force finds for
the first vectors.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bench import data
from bench.measure import peak_memory
from bench.registry import Done, Site, Work, case

DIMENSION, THRESHOLD = 384, 0.96
TIMES = 10
"""How many times as many vectors the larger case has."""
CHECKED = 20_000
"""Vectors whose pairs with all are computed by brute force."""
MOST_MEMORY = 10**9
_BLOCK = 1 << 16


def embeddings(site: Site, count: int) -> Path:
    """Return a directory of embeddings, which is made if it is missing."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = site.data / f"embeddings-{count}-{data.VERSION}"
    if path.exists():
        return path
    part = path.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    for folder in ("text_emb", "metadata"):
        (part / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    scale = (1 / np.sqrt(np.arange(1, DIMENSION + 1))).astype(np.float32)
    centres = rng.standard_normal((1000, DIMENSION), np.float32) * scale
    name = part / "text_emb" / "text_emb_0.npy"
    stored = np.lib.format.open_memmap(name, "w+", np.float16, (count, DIMENSION))
    for start in range(0, count, _BLOCK):
        rows = min(_BLOCK, count - start)
        block = centres[rng.integers(len(centres), size=rows)]
        block += 0.8 * scale * rng.standard_normal((rows, DIMENSION), np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
        sources, targets = np.split(rng.permutation(rows)[: rows // 10 * 2], 2)
        noise = rng.standard_normal((len(sources), DIMENSION), np.float32)
        noise -= np.sum(noise * block[sources], axis=1, keepdims=True) * block[sources]
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        cosines = rng.uniform(0.9, 1, (len(sources), 1)).astype(np.float32)
        block[targets] = cosines * block[sources] + np.sqrt(1 - cosines**2) * noise
        stored[start : start + rows] = block
    stored.flush()
    keys = pa.table({"key": [f"{number:09d}" for number in range(count)]})
    pq.write_table(keys, part / "metadata" / "metadata_0.parquet")
    part.rename(path)
    return path


def vectors(path: Path):
    """Return the vectors of such a directory."""
    import numpy as np

    return np.load(path / "text_emb" / "text_emb_0.npy", mmap_mode="r")


def true_pairs(path: Path) -> list[tuple[int, int]]:
    """Return the pairs of the first vectors with all others, which brute force finds; they are kept in a file."""
    import numpy as np

    name = path / f"pairs-{THRESHOLD}.npy"
    if not name.exists():
        stored = vectors(path)
        first = stored[:CHECKED].astype(np.float32)
        first /= np.linalg.norm(first, axis=1, keepdims=True)
        pairs = []
        for start in range(0, len(stored), 4096):
            others = stored[start : start + 4096].astype(np.float32)
            others /= np.linalg.norm(others, axis=1, keepdims=True)
            one, other = np.nonzero(first @ others.T >= THRESHOLD)
            later = other + start > one
            pairs.append(np.stack([one[later], other[later] + start], 1))
        np.save(name, np.concatenate(pairs))
    return list(map(tuple, np.load(name).tolist()))


def recall(pairs: set[tuple[int, int]], path: Path) -> float:
    """Return the share of the true pairs that were returned."""
    expected = true_pairs(path)
    return sum(pair in pairs for pair in expected) / len(expected) if expected else 1.0


@case("dedup 100 k vectors", sides=("tarmac", "semhash"), ratio=1.0)
def against_semhash(site: Site, side: str) -> Work:
    path = embeddings(site, site.small)
    true_pairs(path)
    if side == "semhash":
        return lambda: in_semhash(site, path)
    return lambda: in_tarmac(site, path)


@case("dedup 1 M vectors, alone", sides=("tarmac",))
def alone(site: Site, side: str) -> Work:
    path = embeddings(site, site.small * TIMES)
    return lambda: in_tarmac(site, path, MOST_MEMORY)


def in_tarmac(site: Site, path: Path, most_memory: int = 0) -> Done:
    import time

    import pyarrow.parquet as pq

    import tarmac

    with tempfile.TemporaryDirectory(dir=site.data) as folder:
        begin = time.perf_counter()
        report = tarmac.dedup(path, f"{folder}/keep.txt", threshold=THRESHOLD, progress=False)
        seconds, memory = time.perf_counter() - begin, peak_memory()
        pairs = pq.read_table(f"{folder}/keep.txt.dedup/pairs.parquet", columns=["first", "second"])
    results = set(zip(*(pairs.column(each).to_pylist() for each in ("first", "second")), strict=True))
    note = f"{report.written} of {report.read} stay, {memory / 1e6:.0f} MB"
    if most_memory:
        fault = f"{memory / 1e9:.2f} GB of memory" if memory > most_memory else ""
        return Done(report.read, seconds, note, fault)
    share = recall(results, path)
    _ours(site).write_text(str(share))
    fault = "" if share >= 0.99 else f"recall {share:.4f}"
    return Done(report.read, seconds, f"recall {share:.4f}, {note}", fault)


def _ours(site: Site) -> Path:
    """Return the file with the recall of tarmac, which runs first."""
    return site.data / "dedup-recall.txt"


def in_semhash(site: Site, path: Path) -> Done:
    import time

    import numpy as np
    from semhash import SemHash

    stored = np.array(vectors(path), np.float32)
    records = [str(number) for number in range(len(stored))]
    begin = time.perf_counter()
    # The encoder is only asked for texts that are added.
    index = SemHash.from_embeddings(embeddings=stored, records=records, model=None)
    result = index.self_deduplicate(threshold=THRESHOLD)
    seconds, memory = time.perf_counter() - begin, peak_memory()
    pairs = {
        (min(one, other), max(one, other))
        for record in result.filtered
        for one, other in ((int(record.record), int(each)) for each, _ in record.duplicates)
    }
    share = recall(pairs, path)
    note = f"recall {share:.4f}, {len(result.selected)} stay, {memory / 1e6:.0f} MB"
    more = _ours(site).exists() and share > float(_ours(site).read_text())
    return Done(len(stored), seconds, note, f"recall {share:.4f}, more than tarmac's" if more else "")
