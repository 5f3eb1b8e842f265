"""Many readers of one dataset, played one after the other: ranks, workers, epochs, seeds, peeks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from harness.shards import plain

LARGEST = 7
"""Samples of the largest shard."""
SHARDS = 9


def make_shards(directory: Path) -> None:
    """Write shards of every size in every place of a list: N-SIZE.tar."""
    for number in range(SHARDS):
        for size in range(LARGEST + 1):
            files = [(f"{number}-{i}.cls", b"%d" % i) for i in range(size)]
            (directory / f"{number}-{size}.tar").write_bytes(plain(files))


@dataclass(frozen=True)
class World:
    """Which shards there are, and who reads them how."""

    sizes: list[int]
    ranks: int = 1
    workers: int = 1
    epochs: int = 1
    peeks: list[int] = field(default_factory=list)
    """Of each reader, how many items it looks at before its first epoch."""
    seeds: list[int] = field(default_factory=list)
    """Of each rank, its seed."""
    told: bool = False
    """Whether set_epoch is called before each epoch."""

    @property
    def keys(self) -> list[str]:
        return sorted(f"{number}-{i}" for number, size in enumerate(self.sizes) for i in range(size))

    def urls(self, directory: Path) -> list[str]:
        return [str(directory / f"{number}-{size}.tar") for number, size in enumerate(self.sizes)]

    def seed(self, rank: int) -> int:
        return self.seeds[rank % len(self.seeds)] if self.seeds else 0


WORLDS = st.builds(
    World,
    sizes=st.lists(st.integers(0, LARGEST), min_size=1, max_size=SHARDS).filter(any),
    ranks=st.integers(1, 4),
    workers=st.integers(1, 3),
    epochs=st.integers(1, 4),
    peeks=st.lists(st.integers(0, 3), max_size=12),
    seeds=st.lists(st.integers(0, 3), max_size=4),
    told=st.booleans(),
)


@contextmanager
def reader(rank: int, ranks: int, worker: int, workers: int):
    """Be one worker of one rank."""
    numbers = {"RANK": rank, "WORLD_SIZE": ranks, "WORKER": worker, "NUM_WORKERS": workers}
    with mock.patch.dict("os.environ", {name: str(number) for name, number in numbers.items()}):
        yield


def epochs_of(world_size: World, make: Callable[[int], Iterable[Any]]) -> list[list[list[Any]]]:
    """What each reader gets in each epoch; `make(rank)` makes the dataset of a reader, which it keeps."""
    places = [(rank, worker) for rank in range(world_size.ranks) for worker in range(world_size.workers)]
    datasets: list[Any] = []
    for number, (rank, worker) in enumerate(places):
        with reader(rank, world_size.ranks, worker, world_size.workers):
            datasets.append(make(rank))
            peeked = world_size.peeks[number] if number < len(world_size.peeks) else 0
            if peeked:
                for _, _item in zip(range(peeked), datasets[-1], strict=False):
                    pass
    found = []
    for epoch in range(world_size.epochs):
        found.append([])
        for (rank, worker), dataset in zip(places, datasets, strict=True):
            with reader(rank, world_size.ranks, worker, world_size.workers):
                if world_size.told:
                    dataset.set_epoch(epoch)
                found[-1].append(list(dataset))
    return found
