"""Check that ranks which split one dataset agree on its shards and epoch, where torch.distributed runs.

The first rank to begin writes what it has into the store of torch.distributed, and the others compare. Nobody
waits for anybody, so that a rank may look at a sample while the others do something else. Which datasets of
two ranks belong together is known by the place in the program that made them.
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

__all__ = ["Site", "check_agreement"]

_FRAMES = 60
_PATIENCE = timedelta(seconds=20)
_made: Counter[str] = Counter()
_clients: dict[int, Any] = {}

_HINTS = {
    "shards": "give all ranks the same list in the same order; a pattern may match other files elsewhere.",
    "epoch": "call set_epoch with the same number on all ranks.",
    "position": "load the same state on all ranks.",
    "seed": "give all ranks the same seed; stages behind the split may have any.",
    "samples": "give all ranks the same dataset, and make the same selection of it.",
    "batches": "give all ranks the same batch_size and tail.",
    "order": "give all ranks the same streams, window and shuffle.",
}


class Site:
    """The place in the program that made a dataset, and how many it had made before."""

    def __init__(self) -> None:
        place = _place_in_program()
        self.name = f"{place}/{_made[place]}"
        _made[place] += 1
        self._turns: dict[str, tuple[int, dict[str, Any]]] = {}

    def check(self, place: WorkerInfo, facts: dict[str, Any], epoch: int | None) -> None:
        """Compare what this rank has with what others have; raise RanksDisagree if that is not the same."""
        check_agreement(self.name, place, facts)
        if epoch is not None:
            self._check_turn("", place, {"epoch": epoch})

    def check_pass(self, place: WorkerInfo, facts: dict[str, Any]) -> None:
        """Compare what this pass has with the same pass of others.

        Passes are counted as their facts change, once in the whole program, and once for the place in it
        that reads: a rank that made one more pass elsewhere reads the same epochs, but not with the others.
        """
        self._check_turn("", place, facts)
        self._check_turn(f"{_place_in_program()}/", place, facts)

    def _check_turn(self, reader: str, place: WorkerInfo, facts: dict[str, Any]) -> None:
        if loader_token() is not None:  # a worker does not know what was said before
            return
        count, before = self._turns.get(reader, (0, {}))
        if before != facts:
            count += 1
            self._turns[reader] = count, facts
        check_agreement(f"{self.name}/{reader}{count}", place, facts)


def _place_in_program() -> str:
    """Return a digest of the lines that led here, those of tarmac left out."""
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


def check_agreement(name: str, place: WorkerInfo, facts: dict[str, Any]) -> None:
    """Compare facts, which JSON can hold, with those of the rank that came here first."""
    store = _store() if place.world_size > 1 and place.worker == 0 and environment.checks_ranks() else None
    if store is None:
        return
    mine = json.dumps([place.rank, facts])
    try:
        found = store.compare_set(f"tarmac/{environment.restarts()}/{name}", "", mine)
    except Exception:  # a store that cannot, or a master that has ended: there is nobody to ask
        return
    other, theirs = json.loads(found)
    for fact, value in facts.items():
        if theirs.get(fact) != value:
            raise RanksDisagree(
                f"rank {place.rank} and rank {other} disagree about the {fact}: {value} and "
                f"{theirs.get(fact)}. Samples would be lost, or come twice.",
                hint=_HINTS.get(fact.partition(" ")[0]),
            )


def _store() -> Any:
    """Return the store of torch.distributed; workers must not use their parent's and get a new client."""
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
            client = distributed.TCPStore(
                *address, is_master=False, timeout=_PATIENCE, wait_for_workers=False
            )
        except Exception:  # nobody is there
            client = None
        _clients.clear()
        _clients[os.getpid()] = client
    return _clients[os.getpid()]
