"""Shards to sort, and the samples of sorted shards."""

from __future__ import annotations

import tarmac
from tools.shards import write


def samples(folder, pattern="o-*.tar"):
    return [sample for path in sorted(folder.glob(pattern)) for sample in tarmac.read(str(path))]


def keys(folder, pattern="o-*.tar"):
    return [sample["__key__"] for sample in samples(folder, pattern)]


def numbered(tmp_path, values, shards=3):
    """Write samples with these classes to several shards; the keys are their positions."""
    urls = []
    for shard in range(shards):
        start, stop = (number * len(values) // shards for number in (shard, shard + 1))
        rows = [(f"{i:05d}", {"cls": b"%d" % values[i]}) for i in range(start, stop)]
        urls.append(write(tmp_path / f"in{shard}.tar", rows))
    return urls
