"""Pairs of samples that are near each other, with how near; they are kept beside the result for other thresholds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import BadManifest, LimitExceeded
from tarmac.runtime.types import Integers
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.export.destination import published_path

FORMAT = "tarmac-pairs-1"
MOST = 50_000_000
"""Pairs that are kept at most, by default."""
_FACTS = b"tarmac"


@dataclass(frozen=True)
class Pairs:
    """The numbers of two samples each, the smaller first, and their similarity. The order is that of the numbers."""

    first: Integers
    second: Integers
    score: NDArray[np.float32]
    exact: NDArray[np.bool_]
    """Whether the two are equal. Of more than two equal samples, each is paired with the first only; and pairs with
    others name only the first of them."""

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, first: Any, second: Any, score: Any, *, exact: Any = False) -> Pairs:
        """Return pairs of anything that becomes arrays."""
        numbers = np.asarray(first, np.int64)
        equal = np.broadcast_to(np.asarray(exact, bool), numbers.shape)
        return cls(numbers, np.asarray(second, np.int64), np.asarray(score, np.float32), equal)

    def __getitem__(self, which: Any) -> Pairs:
        return Pairs(*(getattr(self, each.name)[which] for each in fields(self)))

    def at_least(self, threshold: float) -> Pairs:
        """Return the pairs with at least this similarity."""
        return self[self.score >= np.float32(threshold)]


def merged(several: Iterable[Pairs]) -> Pairs:
    """Return all pairs in order, each once."""
    lists = [Pairs.of([], [], []), *several]
    together = Pairs(*(np.concatenate([getattr(each, f.name) for each in lists]) for f in fields(Pairs)))
    ordered = together[np.lexsort((together.second, together.first))]
    again = (np.diff(ordered.first) == 0) & (np.diff(ordered.second) == 0)
    return ordered[np.concatenate([np.ones(min(len(ordered), 1), bool), ~again])]


def check_count(count: int, most: int, what: str = "are near each other") -> None:
    """Raise LimitExceeded if there are too many pairs to group them in memory."""
    if count > most:
        what = f"more than {most} pairs of samples {what}."
        hint = "a higher `threshold`, or a larger `max_pairs`: a pair takes about 60 bytes of memory."
        raise LimitExceeded(what, hint=hint)


def write_pairs(path: str, pairs: Pairs, facts: Mapping[str, Any]) -> None:
    """Write pairs to a Parquet file, which appears when it is complete; `facts` say what they were computed from."""
    import pyarrow as pa

    table = pa.table({each.name: getattr(pairs, each.name) for each in fields(Pairs)})
    write_table(path, table, {"format": FORMAT} | dict(facts))


def read_pairs(path: str) -> Pairs:
    """Read what `write_pairs` wrote."""
    table = _read(path)
    return Pairs(*(table.column(each.name).to_numpy() for each in fields(Pairs)))


def write_table(path: str, table: Any, facts: Mapping[str, Any]) -> None:
    """Write an Arrow table with facts in its schema to a Parquet file, which appears when it is complete."""
    import pyarrow.parquet as pq

    described = table.replace_schema_metadata({_FACTS: json.dumps(facts, sort_keys=True).encode()})
    with published_path(path, DEFAULT_STORAGE) as part:
        pq.write_table(described, part, compression="zstd")


def read_table(path: str) -> tuple[Any, dict[str, Any]]:
    """Read a table and its facts; raise BadManifest if it was not written by `write_table`."""
    table = _read(path)
    return table, _facts(table.schema, path)


def read_rows(path: str, filters: Any) -> tuple[Any, dict[str, Any]]:
    """Read the rows of a table that fulfil conditions, and its facts."""
    return _read(path, filters), read_facts(path) or {}


def read_facts(path: str) -> dict[str, Any] | None:
    """Return the facts of a table, without reading it; None if the file does not exist."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not os.path.exists(path):
        return None
    try:
        schema = pq.read_schema(os.path.abspath(path))  # a colon would make it a URL
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None
    return _facts(schema, path)


def _facts(schema: Any, path: str) -> dict[str, Any]:
    try:
        return dict(json.loads(schema.metadata[_FACTS]))
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, "its schema has no facts") from None


def _read(path: str, filters: Any = None) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(os.path.abspath(path), filters=filters)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _damaged(path: str, error: object) -> BadManifest:
    what = f"this is not a record of tarmac dedup: {str(error)[:200]}."
    return BadManifest(what, url=path, hint="remove it, and run tarmac dedup again.")
