"""Act as one worker of one rank, or as all of them in turn; datasets that show what each worker does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tarmac.runtime.worker_info import WorkerInfo, current_worker_info
from tarmac.steps.stage import Epoch
from tarmac.stream.epochs import StreamSource


@contextmanager
def as_worker(info: WorkerInfo) -> Iterator[None]:
    """Run the block as one worker of one rank."""
    variables = {
        "RANK": str(info.rank),
        "WORLD_SIZE": str(info.world_size),
        "WORKER": str(info.worker),
        "NUM_WORKERS": str(info.workers),
    }
    with mock.patch.dict("os.environ", variables):
        yield


def all_workers(world_size: int, workers: int) -> list[WorkerInfo]:
    """Return all workers of all ranks."""
    return [
        WorkerInfo(rank, world_size, worker, workers)
        for rank in range(world_size)
        for worker in range(workers)
    ]


def samples_of(shard: dict, per_shard: int) -> list[tuple[str, int]]:
    """Return the samples of a shard, or of a part of one."""
    index, count = shard.get("part", (0, 1))
    return [(shard["url"], n) for n in range(per_shard) if n % count == index]


class Numbered(StreamSource):
    """Yield the worker and the epoch that it counts, `repeats` times."""

    def __init__(self, repeats: int = 1) -> None:
        super().__init__()
        self.repeats = repeats

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for _ in range(self.repeats):
            yield current_worker_info().worker, self._next_epoch().number


class Resuming(Numbered):
    """As `Numbered`, but each worker continues with epoch 7, as from a saved state."""

    resumed = False

    def __iter__(self) -> Iterator[tuple[int, int]]:
        if not self.resumed:
            self._epochs.resume(Epoch(7, None), current_worker_info().worker)
        yield from super().__iter__()
