"""Put the tensors of a batch into shared memory, where torch's workers leave what they send.

Left to torch, a worker that finds no room in /dev/shm prints an error and sends nothing, and its loader waits
without end. Done here, before the batch is sent, it can wait for room, and fail.
"""

from __future__ import annotations

import os
import time
from typing import Any

from tarmac.errors import LoaderError

__all__ = ["to_shared_memory"]

_PLACE = "/dev/shm"  # noqa: S108 - where torch puts them
_PATIENCE = 60.0
_MOMENT = 0.02


def to_shared_memory(batch: Any) -> None:
    """Move the tensors of a batch into shared memory; raise LoaderError if no room comes for a minute."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for each in batch:
            to_shared_memory(each)
    elif hasattr(batch, "share_memory_"):
        _move(batch)


def _move(tensor: Any) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            tensor.share_memory_()
        except RuntimeError as error:
            place = os.statvfs(_PLACE)
            total, free = place.f_blocks * place.f_frsize, place.f_bavail * place.f_frsize
            if tensor.nbytes > total or time.monotonic() > deadline:
                raise LoaderError(
                    f"a tensor of {tensor.nbytes} bytes does not fit into {_PLACE}, which has {total} bytes, "
                    f"{free} of them free.",
                    hint="a larger one (docker run --shm-size=8g), smaller batches, or fewer workers; "
                    "tarmac.Loader does not need it.",
                ) from error
            time.sleep(_MOMENT)  # until the loop has let go of a batch
        else:
            return
