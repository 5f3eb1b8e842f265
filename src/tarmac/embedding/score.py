"""Compute columns of the index from vectors: `where("aesthetic > 5")` then needs neither vectors nor the model.

They are written beside the vectors, too, for conditions of searches and preferences of `dedup`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tarmac.embedding.embeddings import BLOCK, Embeddings
from tarmac.embedding.layout import OWN
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
    """Write the columns to the index of each shard, and beside the vectors. Samples without one have no value."""
    set_up(score, device, FIELD)
    parts: dict[str, list[int]] = {}
    for number, facts in enumerate(vectors.facts.parts):
        parts.setdefault(facts.source, []).append(number)
    count, names = 0, dict[str, None]()
    try:
        for shard in inputs.shards:
            url = shard.url if isinstance(shard, Shard) else shard
            own = parts.get(location(public_name(url)), [])
            if not own:
                continue
            sidecar, urls = index_to_extend(shard, access)
            scores = {part: _scores(score, vectors.array(part)) for part in own}
            columns = _columns(scores, vectors, sidecar)
            add_columns(sidecar, urls, columns, access, FIELD)
            for part, values in scores.items():
                vectors.parts[part].add_scores({name: as_array(column) for name, column in values.items()})
                count += len(vectors.array(part))
            names |= dict.fromkeys(columns)
    finally:
        close = getattr(score, "close", None)
        if callable(close):
            close()
    report.notes["samples_scored"] = count
    report.remarks.append(f"columns of the index: {', '.join(names)}")


def _scores(score: Score, vectors: Any) -> dict[str, list[Any]]:
    """Return the columns of the vectors of a part, of which a block is in memory at a time."""
    columns: dict[str, list[Any]] = {}
    for start in range(0, len(vectors), BLOCK):
        for name, values in _called(score, vectors[start : start + BLOCK].astype(np.float32)).items():
            column = columns.setdefault(name, [None] * len(vectors))
            column[start : start + len(values)] = values
    return columns


def _columns(
    scores: Mapping[int, Mapping[str, Sequence[Any]]], vectors: Embeddings, sidecar: Sidecar
) -> dict[str, Any]:
    """Return the columns of a shard, from those of its parts."""
    rows: dict[str, list[int]] = {}
    for row, key in enumerate(sidecar.keys()):
        rows.setdefault(key, []).append(row)
    columns: dict[str, list[Any]] = {}
    for part, own in scores.items():
        keys = vectors.parts[part].read_keys()
        for name, values in own.items():
            column = columns.setdefault(name, [None] * len(sidecar))
            for key, value in zip(keys, values, strict=True):
                for row in rows.get(key, ()):
                    column[row] = value
    return {name: as_array(column) for name, column in columns.items()}


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
        if name in OWN:
            raise UsageError(f"{name!r} is a column of the metadata already.", field=FIELD)
        if hasattr(column, "detach"):
            column = column.detach().cpu().numpy()
        values = np.asarray(column).tolist()
        if not isinstance(values, list) or len(values) != len(block):
            what = f'expected a value of "{name}" for each of {len(block)} vectors, got an array of another shape.'
            raise UsageError(what, field=FIELD)
        columns[str(name)] = [None if value != value else value for value in values]  # NaN
    return columns
