"""Sort rows by key when they do not fit into memory: sorted runs in files, merged a few at a time.

Of rows with equal keys the first is kept. Runs are shards of records, so that the result is read like parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tarmac.limits import MIB
from tarmac.tokens.drafts import batches_of, write_draft
from tarmac.tokens.rows import Batch, Part, Parts, joined, rebatched

RUN_BYTES = 16 * MIB
"""Bytes of rows that are sorted in memory."""
MAX_RUNS = 64
"""Runs that are merged at a time."""


def sort_parts(parts: Parts, directory: str, run_bytes: int = RUN_BYTES) -> tuple[Parts, int]:
    """Return the rows in the order of their keys, each key once, as one part, and the number of rows left out."""
    schema, left_out, runs = parts.schema, 0, list[Part]()
    for number, batch in enumerate(rebatched(batches_of(parts), schema, 1 << 62, run_bytes)):
        kept = _sorted_once(batch, None)
        left_out += len(batch) - len(kept)
        runs.append(write_draft([kept], schema, os.path.join(directory, f"run-0-{number:06d}.tar")))
    level = 0
    while len(runs) > 1:
        level += 1
        merged = []
        for number in range(0, len(runs), MAX_RUNS):
            some = [replace(parts, parts=[run], mapped=False) for run in runs[number : number + MAX_RUNS]]
            before = sum(run.rows for run in runs[number : number + MAX_RUNS])
            name = os.path.join(directory, f"run-{level}-{number:06d}.tar")
            merged.append(write_draft(_merged(some), schema, name))
            left_out += before - merged[-1].rows
        for run in runs:
            for url in run.urls:
                os.unlink(url)
        runs = merged
    return replace(parts, parts=runs), left_out


def _sorted_once(batch: Batch, last: Any) -> Batch:
    """Return rows in the order of their keys, the first of each; `last` is the key before them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(batch):
        return batch
    order = pc.sort_indices(batch.column("key"))  # which is stable
    keys = batch.column("key").take(order)
    new = np.ones(len(keys), bool)
    new[1:] = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    new[0] = last is None or keys[0].as_py() != last
    # Rows are taken once: taking lists needs several times their size.
    return batch.take(order if new.all() else order.filter(pa.array(new)))


def _merged(runs: Sequence[Parts]) -> Iterator[Batch]:
    """Yield the rows of sorted runs in order; of equal keys that of the first run."""
    import pyarrow as pa
    import pyarrow.compute as pc

    streams = [batches_of(run) for run in runs]
    held: list[Batch | None] = [next(stream, None) for stream in streams]
    last = None
    while any(batch is not None for batch in held):
        # All rows up to the smallest of the last keys are here.
        bound = min(batch.column("key")[-1].as_py() for batch in held if batch is not None)
        ready = []
        for number, batch in enumerate(held):
            if batch is None:
                continue
            keys = batch.column("key")
            count = pc.sum(pc.less_equal(keys, pa.scalar(bound, pa.binary()))).as_py()
            if count:
                ready.append(batch.slice(0, count))
            held[number] = batch.slice(count) if count < len(batch) else next(streams[number], None)
        whole = _sorted_once(joined(ready), last)
        last = bound
        if len(whole):
            yield whole
