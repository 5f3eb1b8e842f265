"""Writing samples to one local shard; notes say how large it became."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from bench import data
from bench.registry import Done, Site, Work, case


def writing(site: Site, side: str, samples: Iterable[dict[str, Any]]) -> Work:
    if side == "tarmac":
        from tarmac import TarWriter
    else:
        from webdataset import TarWriter
    ready = list(samples)
    target = site.data / f"written-{os.getpid()}.tar"
    site.data.mkdir(parents=True, exist_ok=True)

    def work() -> Done:
        try:
            with TarWriter(str(target)) as writer:
                for sample in ready:
                    writer.write(sample)
            return Done(len(ready), note=f"{target.stat().st_size / 1e6:.1f} MB")
        finally:
            target.unlink(missing_ok=True)

    return work


@case("write 800 B text + class", ratio=5)
def small(site: Site, side: str) -> Work:
    return writing(site, side, data.small_samples(site))


@case("write 80 KB JPEG + JSON")
def big(site: Site, side: str) -> Work:
    return writing(site, side, data.big_samples(site))
