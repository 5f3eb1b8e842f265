"""Stages for debugging: print samples, and log keys."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any

from tarmac.runtime.worker_info import current_worker_info
from tarmac.steps.stage import pipelinefilter


@pipelinefilter
def info(
    data: Iterable[Any],
    fmt: str | None = None,
    n: int = 3,
    every: int = -1,
    width: int = 50,
    stream: IO[str] | None = None,
    name: str = "",
) -> Iterator[Any]:
    """Print the first `n` samples, and then every `every`-th one, to `stream` (by default standard error)."""
    for number, sample in enumerate(data):
        if number < n or (every > 0 and (number + 1) % every == 0):
            out = sys.stderr if stream is None else stream
            out.write(f"{fmt.format(**sample)}\n" if fmt is not None else _describe(sample, name, width))
        yield sample


def _describe(sample: Any, name: str, width: int) -> str:
    items = sample.items() if hasattr(sample, "items") else enumerate(sample)
    return f"--- {name}\n" + "".join(f"{key} {repr(value)[:width]}\n" for key, value in items)


@pipelinefilter
def log_keys(data: Iterable[Any], logfile: str | None = None) -> Iterator[Any]:
    """Append the number, worker, rank and key of each sample to a file that all workers share."""
    if not logfile:
        yield from data
        return
    worker = current_worker_info()
    # A short write in append mode is atomic: lines of several workers do not mix.
    with open(logfile, "ab", buffering=0) as log:
        for number, sample in enumerate(data):
            key = str(sample.get("__key__") if isinstance(sample, dict) else None)
            key = key if key.isprintable() else json.dumps(key)
            log.write(f"{number}\t{worker.worker}\t{worker.rank}\t{key}\n".encode())
            yield sample
