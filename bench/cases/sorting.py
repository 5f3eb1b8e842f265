"""Sort a million small samples in bounded memory."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from bench import data
from bench.measure import peak_memory
from bench.registry import Done, Site, Work, case

TIMES = 10
"""How many times as many samples as in the other cases: a million, where those have a hundred thousand."""
SHARDS = 4
TEXT_BYTES = 100
MOST_MEMORY = 512 << 20
PROMISED = 1_000_000
"""Samples that this memory must be enough for."""


def shards(site: Site) -> list[str]:
    """Short texts with a class, in no order."""
    from tarmac import TarWriter

    count = site.small * TIMES
    paths = [
        site.data / f"sorting-{count}-v{data.VERSION}-{number}of{SHARDS}.tar" for number in range(SHARDS)
    ]
    if not all(path.exists() for path in paths):
        site.data.mkdir(parents=True, exist_ok=True)
        rng = random.Random(data.SEED)
        for number, path in enumerate(paths):
            with TarWriter(path, encoder=False) as writer:
                for sample in range(number * count // SHARDS, (number + 1) * count // SHARDS):
                    text = rng.randbytes(TEXT_BYTES // 2).hex().encode()
                    writer.write(
                        {"__key__": f"{sample:08d}", "cls": b"%d" % rng.randrange(1000), "txt": text}
                    )
    return [str(path) for path in paths]


@case("sort 100 B text + class by text", sides=("tarmac",))
def sorting(site: Site, side: str) -> Work:
    """With indexing, in one process; more than 512 MB of memory is a fault."""
    return sorting_with(site, 1)


@case("the same with two processes", sides=("tarmac", "one process"), ratio=1.7)
def sorting_in_two(site: Site, side: str) -> Work:
    """On two cores that nothing else uses, 2 would be perfect."""
    return sorting_with(site, 2 if side == "tarmac" else 1)


def sorting_with(site: Site, jobs: int) -> Work:
    import tarmac

    urls, count = shards(site), site.small * TIMES
    target = site.data / f"sorted-{os.getpid()}"
    os.environ["TARMAC_HOME"] = str(target / "home")  # indexing is part of it, every time

    def work() -> Done:
        try:
            report = tarmac.sort(
                urls,
                f"{target}/x-{{i:06d}}.tar",
                by="txt",
                max_samples=max(count // 8, 1),
                tmp=site.data,
                jobs=jobs,
                progress=False,
            )
            lost = "" if report.written == count else f"{report.written} of {count} samples came out"
            return Done(count, fault=lost or _too_much(count) or _disorder(target))
        finally:
            shutil.rmtree(target, ignore_errors=True)

    return work


def _too_much(count: int) -> str:
    """Whether too much memory was used, by as many samples as that is promised for."""
    peak = peak_memory()
    over = peak > MOST_MEMORY and count >= PROMISED
    return f"{peak >> 20} MB of memory, {MOST_MEMORY >> 20} are allowed" if over else ""


def _disorder(target: Path) -> str:
    """Whether the first samples of the shards are not in order."""
    from tarmac import read

    texts = [next(iter(read(str(path))))["txt"] for path in sorted(target.glob("*.tar"))]
    return "" if texts == sorted(texts) else "not in order"
