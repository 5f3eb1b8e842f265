"""How many bytes of remote shards a loader holds, and an order that needs no more than that.

An order takes samples from one window of each stream at a time. Each byte of a window is needed once, at a random
moment, so a loader that fetches it only once holds about streams · window samples, divided by the number of ranks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from tarmac.errors import UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.order.exact import ExactOrder
from tarmac.exact.order.mixture import EpochOrder
from tarmac.limits import GIB, parse_number

STREAMS, WINDOW = 64, 16_384
"""The default order."""
DEFAULT_BUDGET = 8 * GIB
"""Bytes of remote shards that are held on disk, unless `remote_budget` or a quarter of the free space is less."""
OVERLAP = 2
"""The bytes held relative to a window: the next windows are begun before the last samples of this one are used."""
_FEW_STREAMS, _SMALL_WINDOW = 8, 256
"""A smaller window is preferred to fewer streams down to `_SMALL_WINDOW`, then fewer streams to `_FEW_STREAMS`."""


def parse_budget(budget: int | str) -> int:
    """Return a number of bytes; raise UsageError if it is not a positive one."""
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise UsageError(
            f'expected a number of bytes, such as "8GiB", got {budget!r}.', field="remote_budget"
        )
    try:
        size = parse_number(budget) if isinstance(budget, str) else budget
    except ValueError as error:
        raise UsageError(f"{error}.", field="remote_budget") from None
    if size < 1:
        raise UsageError(f"expected 1 or more, got {budget}.", field="remote_budget")
    return size


def spool_limit(budget: int | None) -> int:
    """Return how many bytes a spool may take: the budget, or a part of the free space."""
    if budget is not None:
        return budget
    return min(DEFAULT_BUDGET, shutil.disk_usage(spool_directory()).free // 4)


def spool_directory() -> str:
    """Return the directory for temporary files: TMPDIR, or /tmp."""
    return os.path.abspath(tempfile.gettempdir())


def order_within(budget: int, dataset: Dataset[Any]) -> tuple[int, int]:
    """Return streams and window such that about `budget` bytes are held, over all ranks.

    They depend on the sizes of the shards, not on where these are, so a copy of the data has the same order.
    """
    samples = max(budget // (OVERLAP * mean_bytes(dataset)), 1)
    if samples >= len(dataset):
        return STREAMS, WINDOW
    streams, window = STREAMS, min(WINDOW, samples // STREAMS)
    while window < _SMALL_WINDOW and streams > _FEW_STREAMS:
        streams //= 2
        window = samples // streams
    while not window:
        streams //= 2
        window = samples // streams
    return streams, window


def mean_bytes(dataset: Dataset[Any]) -> int:
    """Return the mean size of a sample, from the sizes of the shards."""
    shards = [part.shards.manifest.shards[number] for part in dataset._parts for number in part.used]
    size, samples = sum(shard.size or 0 for shard in shards), sum(shard.samples for shard in shards)
    return max(size // max(samples, 1), 1)


def window_bytes(dataset: Dataset[Any], order: EpochOrder) -> int:
    """Return how many bytes of a dataset are held while windows of the order are read, over all ranks."""
    orders = (order,) if isinstance(order, ExactOrder) else order.orders
    shuffled = [each for each in orders if each.shuffle]
    samples = sum(min(each.samples, each.streams * each.window) for each in shuffled)
    return OVERLAP * samples * mean_bytes(dataset)
