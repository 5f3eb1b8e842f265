"""Parts for tests of `combine`: any rows, in any parts, written by `tokenize` itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tarmac
from tarmac.tools.mappers import Column
from tarmac.tools.mappers.records import FIELD, from_arrow, iter_rows

Row = tuple[str, list[int]]


class Given(tarmac.Mapper):
    """Tokens that samples have as JSON, with a column of numbers and one of vectors."""

    version = "1"
    outputs = {
        "tokens": Column("uint16", (None,)),
        "modality": Column("uint8", (None,)),
        "square": Column("float32", (2,)),
        "count": Column("uint32"),
    }
    info = {"vocab_size": 60_000, "pad_token": 7}

    def prepare(self, sample: Any) -> list[int]:
        return list(json.loads(bytes(sample["json"])))

    def __call__(self, batch: list[list[int]]) -> dict[str, Any]:
        return {
            "tokens": batch,
            "modality": [[token % 2 for token in row] for row in batch],
            "square": [[len(row), len(row) ** 2] for row in batch],
            "count": [len(row) for row in batch],
        }


def write_parts(folder: Path, parts: Sequence[Sequence[Row]], **options: Any) -> Path:
    """Tokenize rows, a shard for each part, into the directory `tokens`; a key may occur again."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(parts):
        write_shard(folder / f"in-{number:03d}.tar", rows)
    settings: dict[str, Any] = {"mapper": Given, "jobs": 1, "repeated": "keep", "progress": False}
    tarmac.tokenize(f"{folder}/in-*.tar", folder / "tokens", **(settings | options))
    return folder / "tokens"


def write_shard(path: Path, rows: Sequence[Row]) -> None:
    """Write a shard in which a key may occur again, which TarWriter refuses."""
    import io
    import tarfile

    with tarfile.open(path, "w") as archive:
        for key, tokens in rows:
            content = json.dumps(tokens).encode()
            member = tarfile.TarInfo(f"{key}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def unique(parts: Sequence[Sequence[Row]]) -> list[Row]:
    """Return all rows, each key once, in plain Python."""
    rows: dict[str, list[int]] = {}
    for part in parts:
        for key, tokens in part:
            rows.setdefault(key, tokens)
    return list(rows.items())


def stored(folder: Path | str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the rows of shards of records, in order."""
    return [
        (key, {name: np.asarray(value).tolist() for name, value in row.items()})
        for path in sorted(Path(folder).glob("*.tar"))
        for sample in tarmac.read(str(path))
        for key, row in iter_rows(from_arrow(sample[FIELD]))
    ]


def expected(rows: Sequence[Row]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what `Given` makes of rows."""
    return [
        (
            key,
            {
                "tokens": list(tokens),
                "modality": [token % 2 for token in tokens],
                "square": [float(len(tokens)), float(len(tokens) ** 2)],
                "count": len(tokens),
            },
        )
        for key, tokens in rows
    ]


def some_parts(parts: int = 3, rows: int = 50, seed: int = 0) -> list[list[Row]]:
    """Return rows of different lengths, whose tokens are 0 as well."""
    rng = np.random.default_rng(seed)
    return [
        [
            (f"{part * rows + row:06d}", [*rng.integers(0, 60000, rng.integers(0, 30)).tolist(), 0])
            for row in range(rows)
        ]
        for part in range(parts)
    ]
