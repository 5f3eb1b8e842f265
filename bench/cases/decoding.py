"""Decoding in a pipeline, in one process: pictures into batches, and small facts."""

from __future__ import annotations

import os
from typing import Any

from bench import data
from bench.registry import Done, Site, Work, case

BATCH = 64
SIZE = (224, 224)


def resized(sample: tuple[Any, Any]) -> tuple[Any, Any]:
    import cv2

    return cv2.resize(sample[0], SIZE), sample[1]


def dataset(side: str, path: object) -> Any:
    if side == "webdataset":
        from webdataset import WebDataset
    else:
        from tarmac import WebDataset

    return WebDataset(str(path), shardshuffle=False)


def batches(pipeline: Any, samples: int) -> Work:
    def work() -> Done:
        count = sum(len(labels) for _, labels in pipeline)
        return Done(count, fault="" if count == samples else f"{count} samples instead of {samples}")

    return work


@case("decode 500x375 JPEG, resize, batch", ratio=2)
def pictures(site: Site, side: str) -> Work:
    """Both in one process; tarmac decodes in as many threads as there are cores."""
    threads = {} if side == "webdataset" else {"threads": os.cpu_count()}
    decoded = dataset(side, data.photo_shard(site)).decode("rgb8", **threads).to_tuple("jpg", "cls")
    return batches(decoded.map(resized).batched(BATCH), site.big)


@case("the same without threads")
def pictures_alone(site: Site, side: str) -> Work:
    decoded = dataset(side, data.photo_shard(site)).decode("rgb8").to_tuple("jpg", "cls")
    return batches(decoded.map(resized).batched(BATCH), site.big)


@case("decode JSON + class + npy", ratio=4)
def facts(site: Site, side: str) -> Work:
    pipeline = dataset(side, data.fact_shard(site)).decode()

    def work() -> Done:
        return Done(sum(1 for _ in pipeline))

    return work
