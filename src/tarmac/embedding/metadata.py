"""The metadata of samples with vectors: collected for each sample as JSON, and written as a table for each part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tarmac.codecs.basic import json_loads, text_loads
from tarmac.embedding.layout import CAPTION, KEYS, OWN, SHARD
from tarmac.errors import DecodeFailed
from tarmac.indexing.attributes import attributes_of, is_json, read_field
from tarmac.indexing.promote import as_array, promote
from tarmac.samples.grouping import Sample

SIZE = ("width", "height")


def describe(sample: Sample, image: str | None, caption: str | None, meta: Sequence[str]) -> bytes:
    """Return what is known about a sample, as JSON: its caption, the size of its image, and the fields of `meta`."""
    row: dict[str, Any] = {}
    own = OWN if image is None else OWN.union(SIZE)
    if caption is not None:
        row[CAPTION] = caption
    if image is not None:
        known = SIZE[0] in attributes_of(image)
        value = read_field(image, bytes(sample[image])) if known else None
        row |= {name: value and value(name) for name in SIZE}
    for field in meta:
        if field not in sample:
            continue
        for name, value in _values(field, bytes(sample[field])):
            if name not in own:
                row.setdefault(name.encode("utf-8", "backslashreplace").decode(), value)
    return json.dumps(row, ensure_ascii=True).encode()


def _values(field: str, data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts at the top of a JSON field, or a field as text."""
    try:
        if not is_json(field):
            yield field, text_loads(data)
            return
        values = json_loads(data)
    except (ValueError, RecursionError) as error:
        raise DecodeFailed(
            f'the field "{field}" is not {"JSON" if is_json(field) else "UTF-8 text"}: {error}.'
        ) from None
    if not isinstance(values, dict):
        raise DecodeFailed(f'the field "{field}" is not a JSON object.')
    yield from ((name, value) for name, value in values.items() if not isinstance(value, dict | list))


def to_table(rows: Iterable[bytes]) -> Any:
    """Return rows that `describe` made as an Arrow table, with the narrowest types that hold their values."""
    import pyarrow as pa

    parsed = [json_loads(row) for row in rows]
    names = dict.fromkeys(name for row in parsed for name in row)
    return pa.table({name: as_array([row.get(name) for row in parsed]) for name in names})


def complete(keys: Sequence[str], shard: str, table: Any, types: dict[str, Any]) -> Any:
    """Return the table of a part's metadata: keys, the shard, and the columns of all its rows with their types."""
    import pyarrow as pa

    count = len(keys)
    columns = {name: pa.array(keys, pa.string()) for name in reversed(KEYS)}
    columns[SHARD] = pa.array([shard], pa.string()).take(pa.array([0] * count, pa.int32()))
    for name, kind in types.items():
        present = name in table.column_names and not pa.types.is_null(kind)
        columns[name] = promote(table.column(name), kind).cast(kind) if present else pa.nulls(count, kind)
    return pa.table(columns)
