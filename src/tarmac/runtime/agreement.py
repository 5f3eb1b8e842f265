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
_address_of_parent: list[tuple[str, int]] = []

_HINTS = {
    "shards": "give all ranks the same list in the same order; a pattern may match different files on each machine.",
    "epoch": "call set_epoch, or set the `epoch` of a stage, with the same number on all ranks.",
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

    def check(self, info: WorkerInfo, facts: dict[str, Any]) -> None:
        """Compare the facts of this rank with those of others; raise RanksDisagree if they differ."""
        check_agreement(self.name, info, facts)

    def check_epoch(self, info: WorkerInfo, facts: dict[str, Any]) -> None:
        """Compare the facts of this iteration with those of the same iteration on other ranks.

        Iterations are counted as their facts change, for the whole program and for the lines that iterate: a
        rank that iterated once more elsewhere reads the same epochs, but not together with the others. For the
        lines that iterate, complete iterations count even if their facts are the same.
        """
        self._check_turn("", info, facts)
        self._check_turn(f"{_calling_lines()}/", info, facts)

    def complete(self) -> None:
        """End a turn of the lines that iterate: the iteration is complete."""
        reader = f"{_calling_lines()}/"
        if reader in self._turns:
            self._turns[reader] = self._turns[reader][0], {}

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


def rendezvous() -> tuple[str, int] | None:
    """Return the address of the store of torch.distributed, for workers, which need clients of their own."""
    store = _default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "host") and hasattr(store, "port"):
        return store.host, store.port
    return _address_of_parent[0] if _address_of_parent else environment.rendezvous()


def remember_rendezvous(address: tuple[str, int] | None) -> None:
    """Set the address of the parent's store in a worker process that started as a fresh interpreter."""
    _address_of_parent[:] = [address] if address else []


def _distributed() -> Any:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return distributed if distributed is not None and distributed.is_available() else None


def _default_store() -> Any:
    distributed = _distributed()
    if distributed is None or not distributed.is_initialized():
        return None
    try:
        return distributed.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError):
        return None


def _store() -> Any:
    """Return the store of torch.distributed; a worker gets its own client."""
    distributed = _distributed()
    if distributed is None:
        return None
    if loader_token() is None:
        return _default_store()
    address = rendezvous()
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
