"""Identify this process among the readers of a dataset: its rank and its worker.

A process that tarmac started knows both from tarmac. Otherwise the environment has precedence over torch, which is
asked only if the program imported it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from tarmac import environment

# State of this process; empty in most programs.
_rank_of_parent: list[tuple[int, int]] = []
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
            raise ValueError(
                f"rank must be from 0 to {self.world_size - 1} (world_size - 1), got {self.rank}"
            )
        if not 0 <= self.worker < self.workers:
            raise ValueError(f"worker must be from 0 to {self.workers - 1} (workers - 1), got {self.worker}")

    @property
    def index(self) -> int:
        """The number of this reader, unique over all workers of all ranks."""
        return self.rank * self.workers + self.worker

    @property
    def count(self) -> int:
        """The number of readers, if every rank has the same number of workers."""
        return self.world_size * self.workers


def current_worker_info(group: Any = None) -> WorkerInfo:
    """Return rank and worker of this process.

    `group` is a process group of torch.distributed, for readers that are not the whole world (data parallel
    groups); it has precedence over `RANK` and `WORLD_SIZE`.
    """
    of_group = None if group is None else _torch_rank(group)
    rank, world_size = of_group or rank_and_world() or (0, 1)
    own = _become[0][:2] if _become else None
    worker, workers = own or environment.worker_and_workers() or _torch_worker() or (0, 1)
    return WorkerInfo(rank, world_size, _assumed[0] if _assumed else worker, workers)


def rank_and_world() -> tuple[int, int] | None:
    """Return rank and world size from the environment, torch.distributed or the parent process, or None."""
    return (
        environment.rank_and_world() or _torch_rank(None) or (_rank_of_parent[0] if _rank_of_parent else None)
    )


def remember_rank(rank: int, world_size: int) -> None:
    """Set the rank of the parent in a worker process that started as a fresh interpreter.

    torch.distributed is not initialised there, and without `RANK` in the environment every rank would read
    the same data. A pipeline calls this when it is unpickled.
    """
    info = WorkerInfo(rank, world_size)
    _rank_of_parent[:] = [(info.rank, info.world_size)] if world_size > 1 else []


def assume_worker(worker: int | None) -> None:
    """Act as another worker of this rank, until None is given.

    A loader that resumes needs it: the worker that torch calls the first continues the work of another.
    """
    _assumed[:] = [] if worker is None else [worker]


def become_worker(worker: int, workers: int, token: int) -> None:
    """Make this process, which tarmac started, a worker of a loader.

    `token` is a number that the workers of one run share and that differs between runs.
    """
    info = WorkerInfo(worker=worker, workers=workers)
    _become[:] = [(info.worker, info.workers, token)]


def loader_token() -> int | None:
    """Return a number that the workers of one run of a loader share; None outside workers.

    It differs between runs, unless workers of torch are persistent or the user seeds torch before each run.
    """
    if _become:
        return _become[0][2]
    info = _worker_info()
    return None if info is None else (int(info.seed or 0) - int(info.id)) & (2**63 - 1)


def _torch_rank(group: Any) -> tuple[int, int] | None:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    rank = int(distributed.get_rank(group=group))
    if rank < 0:
        raise ValueError("this process is not in the given process group")
    return rank, int(distributed.get_world_size(group=group))


def _torch_worker() -> tuple[int, int] | None:
    info = _worker_info()
    return None if info is None else (int(info.id), int(info.num_workers))


def _worker_info() -> Any:
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()
