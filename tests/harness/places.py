"""What the tests of this room share: pretending to be a certain worker, and playing all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tarmac.runtime.worker_info import WorkerInfo, current_worker_info
from tarmac.stream.epochs import Epoch, StreamSource
from tarmac.stream.shards.lists import SimpleShardList
from tarmac.stream.shards.split import split_all
from tarmac.stream.shuffle import ShardShuffle


@contextmanager
def at(place: WorkerInfo) -> Iterator[None]:
    """Be one worker of one rank."""
    variables = {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "WORKER": str(place.worker),
        "NUM_WORKERS": str(place.workers),
    }
    with mock.patch.dict("os.environ", variables):
        yield


def places(world_size: int, workers: int) -> list[WorkerInfo]:
    """All workers of all ranks."""
    return [
        WorkerInfo(rank, world_size, worker, workers)
        for rank in range(world_size)
        for worker in range(workers)
    ]


def samples_of(shard: dict, per_shard: int) -> list[tuple[str, int]]:
    """The samples that a shard, or a part of one, stands for."""
    index, count = shard.get("part", (0, 1))
    return [(shard["url"], n) for n in range(per_shard) if n % count == index]


class Numbered(StreamSource):
    """What a DataLoader can iterate: each worker says who it is and which pass it thinks this is."""

    def __init__(self, repeats: int = 1) -> None:
        super().__init__()
        self.repeats = repeats

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for _ in range(self.repeats):
            yield current_worker_info().worker, self._next_epoch().number


class Resuming(Numbered):
    """As `Numbered`, but each worker goes on with pass 7, as if from a saved state."""

    resumed = False

    def __iter__(self) -> Iterator[tuple[int, int]]:
        if not self.resumed:
            self._epochs.resume(Epoch(7, None), current_worker_info().worker)
        yield from super().__iter__()


class Reading(StreamSource):
    """A dataset as a pipeline would make it of these stages, with three samples in each shard."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        self.shards = SimpleShardList([f"http://x/{number}.tar" for number in range(shards)])
        self.shuffle = ShardShuffle(True, seed=1)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for shard in split_all(self.shuffle(self.shards)):
            yield from samples_of(shard, 3)
