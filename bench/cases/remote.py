"""Streams of many remote shards, 20 ms away: what the openings of shards cost.

The pictures are those of the other cases, in 8, 64 or 512 shards. The peers of tarmac are tarmac itself on one shard,
webdataset, which starts curl for each shard, and the datasets library of Hugging Face.
"""

from __future__ import annotations

import os
from dataclasses import replace

from bench import data
from bench.registry import Done, Site, Work, case

ONE = "one shard"
HUB = "datasets"


def streaming(site: Site, side: str, shards: int) -> Work:
    """Read the pictures from `shards` shards, one after the other."""
    site = replace(site, big=4 * site.big)
    names = data.linked_photos(site, 1 if side == ONE else shards)
    expected = site.big // len(names) * len(names)
    urls = [f"{site.slow}/{name}" for name in names]
    if side == HUB:
        return with_datasets(urls, expected)
    if side == "webdataset":
        from webdataset import WebDataset
    else:
        from tarmac.webdataset import WebDataset

    def work() -> Done:
        count = sum(1 for _ in WebDataset(urls, shardshuffle=False))
        return Done(count, fault="" if count == expected else f"{count} samples instead of {expected}")

    return work


def with_datasets(urls: list[str], expected: int) -> Work:
    """Stream with the datasets library of Hugging Face, without decoding pictures."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import Image, load_dataset

    def work() -> Done:
        stream = load_dataset("webdataset", data_files={"train": urls}, split="train", streaming=True)
        count = sum(1 for _ in stream.cast_column("jpg", Image(decode=False)))
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

    @case(f"{name}, beside Hugging Face datasets", sides=("tarmac", HUB), needs=needs)
    def beside_datasets(site: Site, side: str) -> Work:
        return streaming(site, side, shards)


rows(8, None, None)
rows(64, 0.8, 2)
rows(512, None, None)
