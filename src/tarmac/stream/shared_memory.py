"""Move the tensors of a batch into shared memory, where torch's workers leave what they send.

If torch does it and /dev/shm is full, the worker prints an error and sends nothing, and its loader waits forever.
Here the worker waits for space, and raises if there is none.
"""

from __future__ import annotations

import os
import time
from typing import Any

from tarmac.errors import LoaderError

_DIRECTORY = "/dev/shm"  # noqa: S108 - where torch puts tensors
_TIMEOUT = 60.0
_RETRY_SECONDS = 0.02


def to_shared_memory(batch: Any) -> None:
    """Move the tensors of a batch into shared memory; raise LoaderError if there is no space for a minute."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for each in batch:
            to_shared_memory(each)
    elif hasattr(batch, "share_memory_"):
        _move(batch)


def _move(tensor: Any) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            tensor.share_memory_()
        except RuntimeError as error:
            status = os.statvfs(_DIRECTORY)
            total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
            if tensor.nbytes > total or time.monotonic() > deadline:
                raise LoaderError(
                    f"a tensor of {tensor.nbytes} bytes does not fit into {_DIRECTORY}, which has {total} bytes, "
                    f"{free} of them free.",
                    hint="enlarge it (docker run --shm-size=8g), or use smaller batches or fewer workers; "
                    "tarmac.Loader does not need it.",
                ) from error
            time.sleep(_RETRY_SECONDS)  # until the consumer releases a batch
        else:
            return
