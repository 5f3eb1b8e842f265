"""The fuzz targets on the corpus, on every kind of shard, and on mutations of both."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fuzz.targets import TARGETS
from harness import rounds
from harness.damage import mutations
from harness.shards import KINDS

CORPUS = sorted((Path(__file__).parent.parent / "corpus").glob("*.tar*"))


@pytest.mark.parametrize("name", TARGETS)
def test_target_on_mutations(name):
    target, rng = TARGETS[name], random.Random(name)
    seeds = [path.read_bytes() for path in CORPUS] + [make() for make in KINDS.values()]
    seeds += [b"30 mtime=1.5\n", b"a-{00..09}-{x,y}.tar", b"dir/key|seg.png"]
    for data in seeds:
        target(data)
        if data:
            for case in mutations(data, rng, rounds(15)):
                target(case.data)
