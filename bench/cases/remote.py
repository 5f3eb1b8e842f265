"""Streams of many remote shards, 20 ms away: what the openings of shards cost.

The pictures are those of the other cases, in 1, 8, 64 or 512 shards. The peer of tarmac is tarmac itself on one shard,
and webdataset, which starts curl for each shard.
"""

from __future__ import annotations

from bench import data
from bench.registry import Done, Site, Work, case

ONE = "one shard"


def streaming(site: Site, side: str, shards: int) -> Work:
    """Read the pictures from `shards` shards, one after the other."""
    names = data.linked_photos(site, 1 if side == ONE else shards)
    expected = site.big // len(names) * len(names)
    urls = [f"{site.slow}/{name}" for name in names]
    if side == "webdataset":
        from webdataset import WebDataset
    else:
        from tarmac.webdataset import WebDataset

    def work() -> Done:
        count = sum(1 for _ in WebDataset(urls, shardshuffle=False))
        return Done(count, fault="" if count == expected else f"{count} samples instead of {expected}")

    return work


def rows(shards: int, ratio: float | None, peer_ratio: float | None) -> None:
    """Register the cases of this number of shards."""
    name, needs = f"stream {shards} shards, 20 ms away", ("nginx", "curl")

    @case(name, sides=("tarmac", ONE), ratio=ratio, needs=needs)
    def beside_one(site: Site, side: str) -> Work:
        return streaming(site, side, shards)

    @case(f"{name}, beside curl", ratio=peer_ratio, needs=needs)
    def beside_curl(site: Site, side: str) -> Work:
        return streaming(site, side, shards)


rows(8, None, None)
rows(64, 0.8, 2)
rows(512, None, None)
