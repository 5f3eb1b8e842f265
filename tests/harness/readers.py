"""Run all readers of one dataset, one after the other: ranks, workers, epochs, seeds, peeks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from harness.shards import plain
from harness.workers import as_worker
from tarmac.runtime.worker_info import WorkerInfo

LARGEST = 7
"""The number of samples in the largest shard."""
SHARDS = 9


def make_shards(directory: Path) -> None:
    """Write shards of every size for every position in a list: N-SIZE.tar."""
    for number in range(SHARDS):
        for size in range(LARGEST + 1):
            files = [(f"{number}-{i}.cls", b"%d" % i) for i in range(size)]
            (directory / f"{number}-{size}.tar").write_bytes(plain(files))


@dataclass(frozen=True)
class World:
    """The shards and the readers of a dataset."""

    sizes: list[int]
    ranks: int = 1
    workers: int = 1
    epochs: int = 1
    peeks: list[int] = field(default_factory=list)
    """For each reader, the number of items that it reads before its first epoch."""
    seeds: list[int] = field(default_factory=list)
    """The seed of each rank."""
    set_epoch: bool = False
    """Whether `set_epoch` is called before each epoch."""

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
    set_epoch=st.booleans(),
)


@contextmanager
def reader(rank: int, ranks: int, worker: int, workers: int):
    """Run the block as one worker of one rank."""
    with as_worker(WorkerInfo(rank, ranks, worker, workers)):
        yield


def epochs_of(world: World, make: Callable[[int], Iterable[Any]]) -> list[list[list[Any]]]:
    """Return the items of each reader in each epoch; `make(rank)` builds the dataset of a reader."""
    readers = [(rank, worker) for rank in range(world.ranks) for worker in range(world.workers)]
    datasets: list[Any] = []
    for number, (rank, worker) in enumerate(readers):
        with reader(rank, world.ranks, worker, world.workers):
            datasets.append(make(rank))
            peeked = world.peeks[number] if number < len(world.peeks) else 0
            if peeked:
                for _, _item in zip(range(peeked), datasets[-1], strict=False):
                    pass
    epochs = []
    for epoch in range(world.epochs):
        epochs.append([])
        for (rank, worker), dataset in zip(readers, datasets, strict=True):
            with reader(rank, world.ranks, worker, world.workers):
                if world.set_epoch:
                    dataset.set_epoch(epoch)
                epochs[-1].append(list(dataset))
    return epochs
