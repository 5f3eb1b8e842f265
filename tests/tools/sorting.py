"""What the tests of sorting share: shards to sort, and what came out."""

from __future__ import annotations

import tarmac
from tarmac.jobs.engines.local import LocalEngine
from tarmac.tools.rewrite import Run


def run(jobs=1, **more):
    return Run(LocalEngine(jobs), show=False, **more)


def write(path, samples):
    with tarmac.TarWriter(str(path), encoder=False) as writer:
        for key, fields in samples:
            writer.write({"__key__": key, **fields})
    return str(path)


def found(folder, pattern="o-*.tar"):
    paths = sorted(folder.glob(pattern))
    return [sample for path in paths for sample in tarmac.read(str(path))]


def keys(folder, pattern="o-*.tar"):
    return [sample["__key__"] for sample in found(folder, pattern)]


def numbered(tmp_path, values, shards=3):
    """Samples with such classes, spread over shards; keys say where each stood."""
    urls = []
    for shard in range(shards):
        part = values[shard * len(values) // shards : (shard + 1) * len(values) // shards]
        first = shard * len(values) // shards
        samples = [(f"{first + i:05d}", {"cls": b"%d" % value}) for i, value in enumerate(part)]
        urls.append(write(tmp_path / f"in{shard}.tar", samples))
    return urls
