"""Compute columns of the index from vectors: `where("aesthetic > 5")` then needs neither vectors nor the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tarmac.embedding.embeddings import BLOCK, Embeddings
from tarmac.errors import TarmacError, UsageError
from tarmac.indexing.manifest import Inputs, Shard
from tarmac.indexing.promote import as_array
from tarmac.indexing.sidecar import Sidecar
from tarmac.jobs.entries import public_name
from tarmac.jobs.report import Report
from tarmac.storage import location
from tarmac.tools.added_columns import add_columns, index_to_extend
from tarmac.tools.map.functions import failed
from tarmac.tools.mappers.loading import load_object, set_up
from tarmac.tools.options import Access

Score = Callable[[Any], Mapping[str, Sequence[Any]]]
"""Maps vectors, an array of float32 with a row for each, to columns. It may have `setup(device)` and `close()`."""
FIELD = "score"


def load_score(source: Any) -> Score:
    """Return the function of a name, or that was given."""
    score = load_object(source, FIELD)
    if not callable(score):
        raise UsageError(f"expected a function of vectors, got {type(score).__name__}.", field=FIELD)
    return score  # type: ignore[no-any-return]


def add_scores(
    score: Score, vectors: Embeddings, inputs: Inputs, access: Access, device: str, report: Report
) -> None:
    """Write the columns to the index of each shard. Samples without a vector have no value."""
    set_up(score, device, FIELD)
    parts: dict[str, list[int]] = {}
    for number, part in enumerate(vectors.facts.parts):
        parts.setdefault(part.source, []).append(number)
    count, names = 0, dict[str, None]()
    try:
        for shard in inputs.shards:
            url = shard.url if isinstance(shard, Shard) else shard
            own = parts.get(location(public_name(url)), [])
            if not own:
                continue
            sidecar, urls = index_to_extend(shard, access)
            columns, scored = _columns(score, vectors, own, sidecar)
            add_columns(sidecar, urls, columns, access, FIELD)
            count, names = count + scored, names | dict.fromkeys(columns)
    finally:
        close = getattr(score, "close", None)
        if callable(close):
            close()
    report.notes["samples_scored"] = count
    report.remarks.append(f"columns of the index: {', '.join(names)}")


def _columns(
    score: Score, vectors: Embeddings, parts: Sequence[int], sidecar: Sidecar
) -> tuple[dict[str, Any], int]:
    """Return the columns of a shard, and the number of samples that have values."""
    rows: dict[str, list[int]] = {}
    for row, key in enumerate(sidecar.keys()):
        rows.setdefault(key, []).append(row)
    values: dict[str, list[Any]] = {}
    count = 0
    for part in parts:
        keys, array = vectors.parts[part].read_keys(), vectors.array(part)
        for start in range(0, len(array), BLOCK):
            block = array[start : start + BLOCK].astype(np.float32)
            computed = _called(score, block)
            for name, column in computed.items():
                column_values = values.setdefault(name, [None] * len(sidecar))
                for key, value in zip(keys[start : start + BLOCK], column, strict=True):
                    for row in rows.get(key, ()):
                        column_values[row] = value
            count += len(block)
    return {name: as_array(column) for name, column in values.items()}, count


def _called(score: Score, block: Any) -> dict[str, list[Any]]:
    """Return the columns of some vectors, with None for values that are not numbers."""
    try:
        result = score(block)
    except TarmacError:
        raise
    except Exception as error:
        raise UsageError(failed(error).what, field=FIELD) from error
    if not isinstance(result, Mapping):
        what = f"expected a mapping from columns to values, got {type(result).__name__}."
        raise UsageError(what, field=FIELD)
    columns = {}
    for name, column in result.items():
        if hasattr(column, "detach"):
            column = column.detach().cpu().numpy()
        values = np.asarray(column).tolist()
        if not isinstance(values, list) or len(values) != len(block):
            what = f'expected a value of "{name}" for each of {len(block)} vectors, got an array of another shape.'
            raise UsageError(what, field=FIELD)
        columns[str(name)] = [None if value != value else value for value in values]  # NaN
    return columns
