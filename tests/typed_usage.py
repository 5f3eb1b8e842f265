"""Code that type checkers must accept, with the types that they must infer; see test_typing.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
from torch.utils.data import DataLoader

import tarmac
from tarmac import BatchSampler, Dataset, Loader, Mix

Sample = dict[str, Any]


def label(sample: Sample) -> int:
    return int(sample["cls"])


def noisy(sample: Sample, rng: np.random.Generator) -> float:
    return float(sample["cls"] + rng.random())


def total(items: list[int]) -> int:
    return sum(items)


def datasets(source: str) -> None:
    ds = Dataset(source, fields=["cls"], limits=tarmac.Limits(), tar=tarmac.TarOptions())
    assert_type(ds, Dataset[Sample])
    assert_type(ds[0], Sample)
    assert_type(ds[:10], Dataset[Sample])
    assert_type(ds["key"], Sample)
    assert_type(ds[[0, 1]], list[Sample])
    assert_type(ds[np.arange(2)], list[Sample])
    assert_type("key" in ds, bool)
    assert_type(ds.get("key"), Sample)
    assert_type(ds.get("key", None), Sample | None)
    assert_type(ds.map(label).get("key", "none"), int | str)
    assert_type(ds.filter(lambda sample: sample["cls"] > b"1"), Dataset[Sample])
    assert_type(ds.map(label).filter(bool, threads=2), Dataset[int])
    assert_type(ds.batch([0, 1]), list[Sample])
    assert_type(iter(ds), Iterator[Sample])
    assert_type(ds.decode("rgb8"), Dataset[Sample])
    assert_type(ds.where("width > 3"), Dataset[Sample])
    assert_type(ds.select_keys(["a"]), Dataset[Sample])
    assert_type(ds.map(label), Dataset[int])
    assert_type(ds.map(label)[0], int)
    assert_type(ds.map(label)[1:], Dataset[int])
    assert_type(ds.map(noisy, random=True), Dataset[float])
    assert_type(ds.to_tuple("cls", "txt"), Dataset[tuple[Any, ...]])
    assert_type(ds.map(label) + ds.map(str), Dataset[int | str])
    assert_type(ds.keys(), Iterator[str])
    assert_type(ds.keys([1, 2]), list[str])
    assert_type(ds.key(3), str)
    train, val = ds.map(label).split(train=0.9, val=0.1)
    assert_type(train, Dataset[int])
    assert_type(ds.split(train=0.9, val=0.1).train, Dataset[Sample])
    assert_type(ds.repeat(2), Mix[Sample])
    assert_type(ds.take_per_epoch(10), Mix[Sample])
    assert_type(Mix([train, val]), Mix[int])
    assert_type(Mix([(train, 0.5), (val, 0.5)]).map(str), Mix[str])


def loaders(ds: Dataset[Sample], anything: Dataset) -> None:
    assert_type(Loader(ds, 4), Loader[Any])
    assert_type(Loader(ds.map(label), 4, collate=total), Loader[int])
    for batch in Loader(ds.map(label), 4, collate=total):
        assert_type(batch, int)
    with Loader(anything, 4, max_bad_samples=1, prefetch=2, rank=0, world_size=3) as loader:
        assert_type(loader.state_dict(), dict[str, Any])
    Loader(ds, 4, num_workers=2)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def torch_loaders(ds: Dataset[Sample]) -> None:
    sampler = BatchSampler(ds, batch_size=4)
    assert_type(DataLoader(ds), DataLoader[Sample])
    assert_type(DataLoader(ds.map(label), batch_sampler=sampler), DataLoader[int])
    assert_type(DataLoader(ds.repeat(2), batch_sampler=sampler), DataLoader[Sample])


def streams(source: str) -> None:
    stream = tarmac.WebDataset(source)
    assert_type(stream.shuffle(10).decode().with_epoch(5), tarmac.WebDataset)
    DataLoader(stream, batch_size=None)
    DataLoader(stream.batched(4), batch_size=None, num_workers=2)
    tarmac.WebLoader(stream.batched(4), batch_size=None).unbatched().shuffle(10)
