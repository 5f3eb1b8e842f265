"""Look at all rows before any is written: how many there are, which repeat, and where output shards begin."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tarmac.errors import JobError, WriteError
from tarmac.tokens.duplicates import Duplicates, KeyOrder, find_duplicates, find_in_part
from tarmac.tokens.info import TOKENS
from tarmac.tokens.key_order import sort_parts
from tarmac.tokens.rows import Batch, Bin, Mask, Parts, Position, column_values, key_values, taken
from tarmac.tokens.sequences import PackSettings, pack_rows
from tarmac.tools.mappers.records import Ragged, Schema

Pieces = Literal["shards", "parts", "whole"]
"""What output files correspond to: a number of rows, input shards, or all rows."""


@dataclass
class Summary:
    """What is known about the rows that are written."""

    rows: int = 0
    key_bytes: int = 0
    longest_key: int = 0
    values: dict[str, int] = field(default_factory=dict)
    """The number of values of each ragged column."""
    longest: dict[str, int] = field(default_factory=dict)
    """The largest number of values of a row."""
    shortest: dict[str, int] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)
    """The number of rows without values."""

    def add(self, batch: Batch, schema: Schema) -> None:
        """Add rows."""
        if not len(batch):
            return
        keys = key_values(batch.column("key")).lengths
        self.rows += len(batch)
        self.key_bytes += int(keys.sum())
        self.longest_key = max(self.longest_key, int(keys.max()))
        for name, column in schema.columns.items():
            values = column_values(batch, schema, name) if column.ragged else None
            if isinstance(values, Ragged):
                lengths = values.lengths
                self.values[name] = self.values.get(name, 0) + int(lengths.sum())
                self.longest[name] = max(self.longest.get(name, 0), int(lengths.max()))
                low = int(lengths.min())
                self.shortest[name] = min(self.shortest.get(name, low), low)
                self.empty[name] = self.empty.get(name, 0) + int(np.count_nonzero(lengths == 0))


@dataclass(frozen=True)
class Piece:
    """A range of the rows of all parts."""

    start: Position
    stop: int
    part: str = ""
    """The name of the input shard, if the piece is one."""


@dataclass(frozen=True)
class Survey:
    """The rows to write."""

    parts: Parts
    summary: Summary
    pieces: list[Piece]
    duplicates: Duplicates
    read: int
    """Rows in all parts."""
    left_out: int
    """Rows whose key occurred before."""
    empty: int = 0
    """Rows without tokens, which are in no sequence when rows are packed."""

    @property
    def mask(self) -> Mask:
        return self.duplicates.mask


def survey(
    parts: Parts,
    pieces: Pieces,
    directory: str,
    *,
    max_rows: int,
    max_bytes: int,
    by_key: bool = False,
    pack: PackSettings | None = None,
) -> Survey:
    """Read all parts once, and again if keys may repeat. The directory is for working files."""
    if pack is not None:
        documents = survey(parts, "whole", directory, max_rows=max_rows, max_bytes=max_bytes, by_key=by_key)
        kept = documents.parts.rows(mask=documents.mask)
        packed = pack_rows(kept, parts.schema, pack, directory, parts.storage)
        again = _look(packed, pieces, max_rows, max_bytes)
        if again.summary.values.get(TOKENS, 0) != documents.summary.values.get(TOKENS, 0):
            raise WriteError("tokens were lost when they were packed.", url=directory)
        return replace(
            documents,
            parts=packed,
            summary=again.summary,
            pieces=again.pieces,
            duplicates=Duplicates(directory),
            empty=documents.summary.empty.get(TOKENS, 0),
        )
    repeated = Duplicates(directory)
    first = _look(parts, pieces, max_rows, max_bytes)
    for part, rows in zip(parts.parts, first.rows, strict=True):
        if part.rows != rows:
            what = f"the part has {rows} rows, its job wrote {part.rows}."
            raise JobError(what, url=part.urls[0] if part.urls else part.name)
    read = first.summary.rows
    if by_key and not first.order.increasing:
        ordered, left_out = sort_parts(parts, directory)
        again = _look(ordered, pieces, max_rows, max_bytes)
        return Survey(ordered, again.summary, again.pieces, repeated, read, left_out)
    if pieces == "parts":
        for number in sorted(first.order.within):
            piece = next(each for each in first.pieces if each.start.part == number)
            find_in_part(parts, piece.start, piece.stop, directory, repeated)
    elif not first.order.unique:
        find_duplicates(parts, first.summary.key_bytes, read, directory, repeated)
    if repeated.count:
        first = _look(parts, pieces, max_rows, max_bytes, repeated.mask)
    return Survey(parts, first.summary, first.pieces, repeated, read, repeated.count)


@dataclass
class _Look:
    """What one pass over the rows tells."""

    rows: list[int]
    """Of each part."""
    order: KeyOrder = field(default_factory=KeyOrder)
    summary: Summary = field(default_factory=Summary)
    pieces: list[Piece] = field(default_factory=list)


def _look(parts: Parts, pieces: Pieces, max_rows: int, max_bytes: int, mask: Mask | None = None) -> _Look:
    look = _Look([0] * len(parts.parts))
    starts: list[Position] = []
    room = Bin(parts.schema, max_rows, max_bytes)
    for at, batch in parts.located():
        look.rows[at.part] += len(batch)
        look.order.add(at.part, batch)
        kept = mask(at.row, len(batch)) if mask is not None else None
        rows = None if kept is None else np.flatnonzero(kept)
        written = batch if rows is None else taken(batch, rows)
        look.summary.add(written, parts.schema)
        if pieces == "parts" and (not starts or starts[-1].part != at.part):
            starts.append(at)
        elif pieces == "shards":
            for edge in room.cut(written):
                skipped = edge if rows is None else int(rows[edge])
                starts.append(replace(at, skip=at.skip + skipped, row=at.row + skipped))
    if not starts:
        starts = [Position()]
    if pieces == "shards":
        starts[0] = Position()  # with repeated rows at the beginning
    stops = [*(start.row for start in starts[1:]), sum(look.rows)]
    names = [parts.parts[start.part].name if pieces == "parts" else "" for start in starts]
    look.pieces = [Piece(*each) for each in zip(starts, stops, names, strict=True)]
    return look
