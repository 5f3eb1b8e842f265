"""Cut tables of links into blocks of rows, and read the rows of a block, without holding a table in memory."""

from __future__ import annotations

import contextlib
import itertools
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import xxhash

from tarmac.errors import DecodeFailed, NotFound, UrlError, UsageError
from tarmac.storage import StorageOptions, is_local, without_query
from tarmac.storage.local import local_path
from tarmac.tools.columns import encode_json
from tarmac.tools.localcopy import ensure_local
from tarmac.tools.tables import TABLES, Parquet, Position, Row, Table, table_format

_LINES = "lines"
_PLAIN = frozenset(
    ["bool", "float", "double", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
)
"""Types that saved columns keep; all others become text."""


class Segment(NamedTuple):
    """Neighbouring rows of a table."""

    table: int
    start: Position
    length: int
    first: int
    """The number of its first row among all rows of all tables."""


@dataclass(frozen=True)
class Block:
    """The rows of one shard."""

    segments: tuple[Segment, ...]
    wanted: Sequence[int] = ()
    """The numbers of its rows, if it does not have all between the first and the last."""

    @property
    def stop(self) -> int:
        """Return the number of the row behind its last segment."""
        return self.segments[-1].first + self.segments[-1].length

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return len(self.wanted) or sum(segment.length for segment in self.segments)


@dataclass(frozen=True)
class Links:
    """Which columns of the tables matter."""

    url: str = "url"
    caption: str | None = None
    key: str | None = None
    save: tuple[str, ...] = ()
    boxes: str | None = None
    verify: str | None = None

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for the ledger."""
        return {name: value for name, value in self.__dict__.items() if value}

    def of(self, table: Table) -> Links:
        """Return the columns as a table spells them; raise if it lacks one. Upper and lower case do not matter."""
        named = {name: value for name, value in self.__dict__.items() if value and name != "save"}
        if self.url == "url" and table.names == ["txt"]:  # lines of URLs
            named["url"] = "txt"
        spelt = {name: _spelt(value, name, table) for name, value in named.items()}
        return Links(save=tuple(_spelt(name, "save", table) for name in self.save), **spelt)

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        named = (self.url, self.caption, self.key, self.boxes, self.verify)
        return list(dict.fromkeys([*filter(None, named), *self.save]))


def _spelt(name: str, argument: str, table: Table) -> str:
    same = [each for each in table.names if each.lower() == name.lower()]
    if name in table.names or len(same) == 1:
        return name if name in table.names else same[0]
    hint = f"one of {', '.join(table.names)[:300]}."
    raise UsageError(f"the table has no column {name!r}.", field=argument, url=table.url, hint=hint)


def open_tables(
    urls: Sequence[str], format: str | None, directory: str, storage: StorageOptions
) -> list[Table]:
    """Open tables; copy those that are remote or compressed to a directory."""
    if format is not None and format not in TABLES:
        raise UsageError(f"expected one of {', '.join(TABLES)}, got {format!r}.", field="format")
    tables = []
    for url in urls:
        plain = without_query(url).lower()
        listed = _LINES if plain.endswith((".txt", ".txt.gz", ".txt.zst")) else None
        kind = format or table_format(url) or listed
        if kind is None:
            if is_local(url) and not os.path.exists(local_path(url)):
                raise NotFound("no such file or directory.", url=url)
            what = f"the name shows no format: expected one of {', '.join(TABLES)}."
            raise UrlError(what, url=url, hint="`table_format` with one of them.")
        tables.append(TABLES[kind](url, ensure_local(url, directory, storage)))
    return tables


@dataclass
class Rows:
    """The rows of tables, one table after the other."""

    tables: list[Table]
    links: Links
    step: int
    """Rows per block."""
    saved: Mapping[str, str] = field(default_factory=dict)
    """The Arrow types of the saved columns in files of statuses, if that is not text."""
    _columns: dict[int, Links] = field(default_factory=dict)

    def with_types(self) -> Rows:
        """Return these rows with the types of saved columns: those of the tables, if all have the same."""
        saved = {}
        types = [table.types for table in self.tables] if self.links.save else []
        for position, name in enumerate(self.links.save):
            kinds = {each.get(self.columns(table).save[position]) for table, each in enumerate(types)}
            if len(kinds) == 1 and (kind := kinds.pop()) in _PLAIN:
                saved[name] = str(kind)
        return replace(self, saved=saved)

    def blocks(self) -> Iterator[Block]:
        """Yield all blocks; one may begin in one table and end in the next."""
        segments: list[Segment] = []
        rows = filled = 0
        for number, table in enumerate(self.tables):
            begin = (self.step - filled) % self.step
            with _advice(table):
                _ = self.columns(number)  # raises before anything is fetched
                starts, count = table.starts(begin, self.step)
                if begin:  # the rest of the last block
                    head, _ = table.starts(0, max(count, 1))
                    starts = [*head, *starts]
            edges = [0, *range(begin, count, self.step)] if begin else list(range(0, count, self.step))
            edges = [*dict.fromkeys(edges), count] if count else []
            for start, (low, high) in zip(starts, itertools.pairwise(edges), strict=False):
                segments.append(Segment(number, start, high - low, rows))
                rows, filled = rows + high - low, filled + high - low
                if filled == self.step:
                    yield Block(tuple(segments))
                    filled, segments = 0, []
        if segments:
            yield Block(tuple(segments))

    def columns(self, table: int) -> Links:
        """Return the columns of a table."""
        if table not in self._columns:
            self._columns[table] = self.links.of(self.tables[table])
        return self._columns[table]

    def read(self, block: Block) -> Iterator[tuple[int, Links, Row]]:
        """Yield the rows of a block, with their numbers and columns."""
        wanted = set(block.wanted)
        for segment in block.segments:
            links = self.columns(segment.table)
            table = self.tables[segment.table]
            rows = table.span(segment.start, segment.length, links.columns)
            with _advice(table):
                for number, row in enumerate(rows, segment.first):
                    if not wanted or number in wanted:
                        yield number, links, row

    def digest(self, block: Block) -> str:
        """Return a digest of what a block needs of its rows."""
        content = xxhash.xxh3_64()
        for number, links, row in self.read(block):
            values = [row.get(name) for name in links.columns]
            content.update(f"{number} {values!r}\n".encode("utf-8", "surrogatepass"))
        return content.hexdigest()


@contextlib.contextmanager
def _advice(table: Table) -> Iterator[None]:
    """Say what to try if a table of text is damaged."""
    try:
        yield
    except DecodeFailed as error:
        if not isinstance(table, Parquet):
            error.hint = (
                "tarmac select TABLE -o DIR, which repairs such rows or leaves them out, and then DIR."
            )
        raise


def late_blocks(blocks: Iterable[Block], rows: Iterable[int], step: int) -> Iterator[Block]:
    """Yield blocks of some rows, in ascending order, that belong to these blocks."""
    waiting = iter(rows)
    number = next(waiting, None)
    wanted = array("q")
    segments: list[Segment] = []
    for block in blocks:
        while number is not None and number < block.stop:
            while number is not None and number < block.stop and len(wanted) < step:
                wanted.append(number)
                number = next(waiting, None)
            segments += block.segments
            if len(wanted) == step:
                yield Block(tuple(segments), wanted)
                wanted, segments = array("q"), []
    if wanted:
        yield Block(tuple(segments), wanted)


def text_of(value: Any) -> str | None:
    """Return a cell as text; None if it is empty."""
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value
    return encode_json(value).decode()


def boxes_of(value: Any) -> list[Any]:
    """Return the boxes of a cell: a list, or text that is one in JSON."""
    import json

    if isinstance(value, str | bytes):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError:
            raise DecodeFailed("the boxes are not a list.") from None
    if value is None:
        return []
    if not isinstance(value, list):
        raise DecodeFailed("the boxes are not a list.")
    return value
