"""Token datasets for tests, written through the writer of records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tarmac.tokens.info import TokenInfo
from tarmac.tools.mappers.contract import Column
from tarmac.tools.mappers.records import Records, Schema, pack
from tarmac.tools.mappers.shards import RecordShardWriter, write_record_manifest

RECORD = 7
"""Rows in a record."""


def write_tokens(
    folder: Path,
    shards: Sequence[Sequence[Sequence[int]]],
    *,
    modality: bool = False,
    dtype: str = "uint16",
    **info: Any,
) -> str:
    """Write rows of tokens, a list for each shard. Row n of all shards has the key `{n:06d}`."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = {"tokens": Column(dtype, (None,))}
    columns |= {"modality": Column("uint8", (None,))} if modality else {}
    schema = Schema(columns, TokenInfo(**({"vocab_size": 50_000} | info)).to_json())
    number, written = 0, []
    for shard, rows in enumerate(shards):
        with RecordShardWriter(f"{folder}/tokens-{shard:06d}.tar", schema) as writer:
            for start in range(0, len(rows), RECORD):
                some = rows[start : start + RECORD]
                keys = [f"{number + n:06d}" for n in range(len(some))]
                values: dict[str, list[Any]] = {"tokens": [np.array(row, np.int64) for row in some]}
                values["modality"] = [np.array(row, np.int64) % 2 for row in some]
                packed = {name: pack(values[name], columns[name], name, len(some)) for name in columns}
                writer.write(Records(schema, keys, packed))
                number += len(some)
        written.append(writer.shard)
    write_record_manifest(written, schema, f"{folder}/tokens.json")
    return str(folder)
