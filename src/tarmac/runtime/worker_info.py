"""Where this process stands among all that read one dataset: rank of world, worker of workers.

A process that tarmac started knows its place from tarmac. Otherwise the environment is believed first, then
torch, and torch is asked only if the program imported it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from tarmac import environment

__all__ = [
    "assume_worker",
    "become_worker",
    "current_worker_info",
    "loader_token",
    "WorkerInfo",
    "pytorch_worker_info",
    "pytorch_worker_seed",
    "rank_and_world",
    "remember_rank",
]

# What only this process was told; all of them stay empty in most programs.
_told_by_parent: list[tuple[int, int]] = []
_assumed: list[int] = []
_become: list[tuple[int, int, int]] = []


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One reader of a dataset among `count` of them."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be from 0 to {self.world_size - 1} (world - 1), got {self.rank}")
        if not 0 <= self.worker < self.workers:
            raise ValueError(f"worker must be from 0 to {self.workers - 1} (workers - 1), got {self.worker}")

    @property
    def index(self) -> int:
        """The number of this reader, different for every worker of every rank."""
        return self.rank * self.workers + self.worker

    @property
    def count(self) -> int:
        """How many readers there are, when every rank has as many workers."""
        return self.world_size * self.workers


def current_worker_info(group: Any = None) -> WorkerInfo:
    """Find out rank and worker of this process.

    `group` is a process group of torch.distributed, for readers that are not the whole world (data
    parallel groups); as it was asked for in code, it is believed before `RANK` and `WORLD_SIZE`.
    """
    rank, world_size = _rank_and_world(group)
    worker, workers = _own_worker() or environment.worker_and_workers() or _torch_worker() or (0, 1)
    return WorkerInfo(rank, world_size, _assumed[0] if _assumed else worker, workers)


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Return (rank, world size, worker, number of workers), as the webdataset library does."""
    place = current_worker_info(group)
    return place.rank, place.world_size, place.worker, place.workers


def pytorch_worker_seed(group: Any = None) -> int:
    """Return a number that differs between workers and ranks, as the webdataset library does."""
    place = current_worker_info(group)
    return place.rank * 1000 + place.worker


def rank_and_world() -> tuple[int, int] | None:
    """Return rank and world if the environment, torch.distributed or the parent process say them."""
    return (
        environment.rank_and_world() or _torch_rank(None) or (_told_by_parent[0] if _told_by_parent else None)
    )


def remember_rank(rank: int, world_size: int) -> None:
    """Tell a worker process the rank of its parent, for start methods that begin with a fresh interpreter.

    There torch.distributed is not initialised, and without `RANK` in the environment every rank would
    read the same data. A pipeline calls it when it is unpickled.
    """
    place = WorkerInfo(rank, world_size)
    _told_by_parent[:] = [(place.rank, place.world_size)] if world_size > 1 else []


def assume_worker(worker: int | None) -> None:
    """Take the place of another worker of this rank, until None is given.

    For a loader that resumes: the worker that torch calls the first goes on with what another had begun.
    """
    _assumed[:] = [] if worker is None else [worker]


def become_worker(worker: int, workers: int, token: int) -> None:
    """Be one of the workers of a loader for the rest of this process's life.

    For processes that tarmac starts itself. `token` is a number that the workers of one run share, and that
    is another for the next run.
    """
    place = WorkerInfo(worker=worker, workers=workers)
    _become[:] = [(place.worker, place.workers, token)]


def loader_token() -> int | None:
    """Return a number that the workers of one run of a loader share; None outside of workers.

    It is new for each run, unless workers of torch are persistent or the user seeds torch before each run.
    """
    if _become:
        return _become[0][2]
    info = _worker_info()
    return None if info is None else (int(info.seed or 0) - int(info.id)) & (2**63 - 1)


def _rank_and_world(group: Any) -> tuple[int, int]:
    if group is not None:
        found = _torch_rank(group)
        if found is not None:
            return found
    return rank_and_world() or (0, 1)


def _torch_rank(group: Any) -> tuple[int, int] | None:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    rank = int(distributed.get_rank(group=group))
    if rank < 0:
        raise ValueError("this process is not in the given process group, so no data belongs to it")
    return rank, int(distributed.get_world_size(group=group))


def _own_worker() -> tuple[int, int] | None:
    return _become[0][:2] if _become else None


def _torch_worker() -> tuple[int, int] | None:
    info = _worker_info()
    return None if info is None else (int(info.id), int(info.num_workers))


def _worker_info() -> Any:
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()
