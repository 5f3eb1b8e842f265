"""Check that the ranks that split a dataset agree on its shards and epoch, where torch.distributed runs.

The first rank to start writes its facts to the store of torch.distributed, and the others compare. No rank waits,
so one rank may read a sample while the others do something else. Datasets of two ranks belong together if the
same lines of the program created them.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import xxhash

from tarmac import environment
from tarmac.errors import RanksDisagree
from tarmac.runtime.worker_info import WorkerInfo, loader_token

_FRAMES = 60
_TIMEOUT = timedelta(seconds=20)
_created: Counter[str] = Counter()
_clients: dict[int, Any] = {}

_HINTS = {
    "shards": "give all ranks the same list in the same order; a pattern may match other files on other machines.",
    "epoch": "call set_epoch with the same number on all ranks.",
    "position": "load the same state on all ranks.",
    "seed": "give all ranks the same seed; stages after the split may have any.",
    "samples": "give all ranks the same dataset with the same selection.",
    "batches": "give all ranks the same batch_size and tail.",
    "order": "give all ranks the same streams, window and shuffle.",
}


class Site:
    """The lines of the program that created a dataset, and how many they had created before."""

    def __init__(self) -> None:
        caller = _calling_lines()
        self.name = f"{caller}/{_created[caller]}"
        _created[caller] += 1
        self._turns: dict[str, tuple[int, dict[str, Any]]] = {}

    def check(self, info: WorkerInfo, facts: dict[str, Any], epoch: int | None) -> None:
        """Compare the facts and epoch of this rank with those of others; raise RanksDisagree if they differ."""
        check_agreement(self.name, info, facts)
        if epoch is not None:
            self._check_turn("", info, {"epoch": epoch})

    def check_epoch(self, info: WorkerInfo, facts: dict[str, Any]) -> None:
        """Compare the facts of this iteration with those of the same iteration on other ranks.

        Iterations are counted as their facts change, for the whole program and for the lines that iterate: a
        rank that iterated once more elsewhere reads the same epochs, but not together with the others.
        """
        self._check_turn("", info, facts)
        self._check_turn(f"{_calling_lines()}/", info, facts)

    def _check_turn(self, reader: str, info: WorkerInfo, facts: dict[str, Any]) -> None:
        if loader_token() is not None:  # a worker does not know the earlier iterations
            return
        count, previous = self._turns.get(reader, (0, {}))
        if previous != facts:
            count += 1
            self._turns[reader] = count, facts
        check_agreement(f"{self.name}/{reader}{count}", info, facts)


def _calling_lines() -> str:
    """Return a digest of the stack of calls, without those of tarmac."""
    digest = xxhash.xxh3_64()
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        code = frame.f_code
        if not frame.f_globals.get("__name__", "").startswith("tarmac."):
            digest.update(f"{os.path.basename(code.co_filename)}:{frame.f_lineno}:{code.co_name} ".encode())
        if frame.f_back is None:
            break
        frame = frame.f_back
    return digest.hexdigest()


def check_agreement(name: str, info: WorkerInfo, facts: dict[str, Any]) -> None:
    """Compare facts, which are JSON, with those of the rank that came first."""
    store = _store() if info.world_size > 1 and info.worker == 0 and environment.checks_ranks() else None
    if store is None:
        return
    mine = json.dumps([info.rank, facts])
    try:
        stored = store.compare_set(f"tarmac/{environment.restarts()}/{name}", "", mine)
    except Exception:  # the store lacks this, or the master has exited
        return
    other, theirs = json.loads(stored)
    for fact, value in facts.items():
        if theirs.get(fact) != value:
            raise RanksDisagree(
                f"rank {info.rank} and rank {other} disagree about the {fact}: {value} and "
                f"{theirs.get(fact)}. Samples would be lost or repeated.",
                hint=_HINTS.get(fact.partition(" ")[0]),
            )


def _store() -> Any:
    """Return the store of torch.distributed; a worker gets its own client."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available():
        return None
    if loader_token() is None:
        if not distributed.is_initialized():
            return None
        try:
            return distributed.distributed_c10d._get_default_store()
        except (AttributeError, RuntimeError, ValueError):
            return None
    address = environment.rendezvous()
    if address is None:
        return None
    if os.getpid() not in _clients:
        try:
            client = distributed.TCPStore(*address, is_master=False, timeout=_TIMEOUT, wait_for_workers=False)
        except Exception:  # the master has exited
            client = None
        _clients.clear()
        _clients[os.getpid()] = client
    return _clients[os.getpid()]
