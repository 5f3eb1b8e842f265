"""Run a selection on an engine: count what each condition removes, and stream the rows that are left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tarmac.display import plural
from tarmac.errors import ObjectChanged, UsageError
from tarmac.selecting.dialect import Dialect
from tarmac.selecting.dirt import Dirt
from tarmac.selecting.filters import matched
from tarmac.selecting.options import Options
from tarmac.selecting.query import HASH, JOINED, ONE_EACH, OTHER, ROWS, Query, needed_columns
from tarmac.selecting.schemas import find_column
from tarmac.selecting.tables import Tables, open_tables
from tarmac.selecting.ties import Ties
from tarmac.storage import StorageOptions

if TYPE_CHECKING:
    import pyarrow as pa


class Engine(Protocol):
    """What runs queries."""

    dialect: Dialect
    keeps_order: bool

    def close(self) -> None: ...
    def keep_order(self, keep: bool, /) -> None: ...
    def add_tables(self, view: str, tables: Tables, *, positions: bool) -> None: ...
    def add_view(self, view: str, query: str) -> None: ...
    def check_condition(self, condition: str, view: str, columns: Sequence[str]) -> None: ...
    def fetch(self, query: str) -> list[tuple[Any, ...]]: ...
    def batches(self, query: str) -> Iterator[pa.RecordBatch]: ...


def make_engine(name: str, directory: str, memory: int, jobs: int) -> Engine:
    """Return the engine of this name: duckdb, spark, or the address of a Spark cluster."""
    if name == "duckdb":
        from tarmac.selecting.duckdb_engine import DuckDBEngine

        return DuckDBEngine(directory, memory, jobs)
    from tarmac.selecting.spark_engine import SparkQueries

    return SparkQueries(directory, name, jobs)


@dataclass
class Removed:
    """How many rows a condition removed; a row counts for the first condition that removes it."""

    name: str
    removed: int = 0
    unknown: int = 0
    """Those of them whose value is missing or impossible."""
    columns: tuple[str, ...] = ()
    shown: Any = None

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, for the manifest."""
        facts = {"filter": self.name, "value": self.shown, "columns": list(self.columns)}
        facts = {name: value for name, value in facts.items() if value not in (None, [])}
        return facts | {"removed": self.removed} | ({"unknown": self.unknown} if self.unknown else {})


@dataclass
class Selection:
    """A selection on an engine that has its tables."""

    engine: Engine
    query: Query
    tables: Tables
    dirt: Dirt
    steps: list[Removed] = field(default_factory=list)
    rows_in: int = 0
    selected: int = 0
    """Rows that no condition removes; duplicates and what is not sampled are among them."""

    def count(self) -> None:
        """Count the rows that each condition removes."""
        conditions = self.query.predicates()
        self.steps = [Removed(each.name, 0, 0, each.columns, each.shown) for each in conditions]
        self.selected = 0
        for step, rows, swapped in self.engine.fetch(self.query.counts()):
            self.dirt.swapped_sizes += int(swapped or 0)
            if step < 0:
                self.selected = rows
            else:
                self.steps[step // 2].removed += rows
                self.steps[step // 2].unknown += rows if step % 2 else 0
        self.rows_in = sum(table.rows for table in self.tables.tables)
        self._check_received(self.rows_in, self.selected + sum(step.removed for step in self.steps))

    def check_rows(self) -> None:
        """Raise if no rows are left."""
        if self.selected:
            return
        reasons = [f"`{step.name}` removed {step.removed}" for step in self.steps if step.removed]
        if self.dirt.unreadable_rows:
            reasons.insert(0, f"{self.dirt.unreadable_rows} cannot be read")
        total = self.rows_in + self.dirt.unreadable_rows
        what = f"no rows are left of {total}{': ' if reasons else ''}{', '.join(reasons)}."
        raise UsageError(what, hint="`stats` shows what the columns contain.")

    def count_rest(self) -> int:
        """Count duplicates and what is not sampled without reading rows, and return how many rows are left."""
        unique, most = self._unique(), self.query.options.most
        left = unique if most is None else min(unique, most)
        self._add_unique(unique, left)
        return left

    def stream(self) -> Iterator[pa.Table]:
        """Yield the rows to write, in order. At the end, duplicates and what was not sampled are counted, too."""
        if self.query.options.ordered_by_hash:
            yield from self._shuffled()
        else:
            yield from self._in_order()

    def _shuffled(self) -> Iterator[pa.Table]:
        names, dedup = self.query.streamed, self.query.dedup
        order = [names[name] for name in dict.fromkeys((*dedup, *self.query.columns))]
        ties = Ties(HASH, order, [names[name] for name in dedup])
        received = 0

        def received_tables() -> Iterator[pa.Table]:
            nonlocal received
            for table in self._tables([*names.items()], hashed=True):
                received += len(table)
                yield table

        written, most = 0, self.query.options.most
        output = list(self.query.columns.values())
        for table in ties.resolved(received_tables()):
            some = table if most is None else table.slice(0, max(most - written, 0))
            if len(some):
                written += len(some)
                yield some.select(output)
        self._check_received(self.selected, received)
        self._add_unique(received - ties.dropped, written)

    def _in_order(self) -> Iterator[pa.Table]:
        unique, written = self._unique(), 0
        for table in self._tables([*self.query.columns.items()], hashed=False):
            written += len(table)
            yield table
        self._add_unique(unique, written)
        self._check_received(self.rows_in, written + sum(step.removed for step in self.steps))

    def _unique(self) -> int:
        """Return the number of rows that are left without duplicates."""
        if not self.query.dedup:
            return self.selected
        ((unique,),) = self.engine.fetch(f"SELECT COUNT(*) FROM ({self.query.unique()}) AS u")
        return int(unique)

    def _tables(self, columns: Sequence[tuple[str, str]], *, hashed: bool) -> Iterator[pa.Table]:
        """Yield what the engine returns, with the types of the tables."""
        import pyarrow as pa

        schema = pa.schema([(new, self.query.kinds[old]) for old, new in columns])
        if hashed:
            schema = schema.append(pa.field(HASH, pa.string()))
        for batch in self.engine.batches(self.query.rows(streamed=self.engine.keeps_order)):
            yield pa.Table.from_batches([batch]).cast(schema)

    def _check_received(self, expected: int, counted: int) -> None:
        """Raise unless every row is accounted for."""
        if expected == counted:
            return
        what = f"{plural(expected, 'row')} became {counted}: the tables changed while they were read"
        if not self.query.options.where:
            raise ObjectChanged(f"{what}.")
        what = f"{what}, or a condition is not the same each time, as one with random() is."
        raise ObjectChanged(what, hint="`sample`, for a random part of the rows.")

    def _add_unique(self, unique: int, written: int) -> None:
        if self.query.dedup:
            self.steps.append(Removed("dedup", self.selected - unique, 0, self.query.dedup))
        most = self.query.options.most
        if most is not None:
            self.steps.append(Removed("sample", unique - written, 0, self.query.key, most))


@contextlib.contextmanager
def opened(
    options: Options,
    urls: Sequence[str],
    directory: str,
    storage: StorageOptions,
    *,
    engine: str,
    memory: int,
    jobs: int,
    repair: bool = False,
    positions: bool = False,
) -> Iterator[Selection]:
    """Bring the tables to an engine, and check the conditions. Working files go to `directory`.

    With `positions` rows have their positions in the tables, even if they are shuffled.
    """
    dirt = Dirt()

    def open_all(names: Sequence[str], folder: str, *, other: bool) -> Tables:
        path = os.path.join(directory, folder)
        os.makedirs(path, exist_ok=True)
        return open_tables(
            names, path, storage, lambda each: needed_columns(options, each, other=other), dirt, repair=repair
        )

    tables = open_all(urls, "tables", other=False)
    others = open_all(options.join, "join", other=True) if options.join else None
    _check_names(options, [*tables.names, *(() if others is None else others.names)])
    running = make_engine(engine, directory, memory, jobs)
    try:
        query = Query.of(options, tables.schema, running.dialect, None if others is None else others.schema)
        running.keep_order(query.positions)
        running.add_tables(ROWS, tables, positions=positions or query.positions)
        if others is not None:
            running.add_tables(OTHER, others, positions=False)
            dirt.repeated_keys = _repeated(running, query)
            on = running.dialect.name(query.on[1])
            running.add_view(
                ONE_EACH,
                query.one_each() if dirt.repeated_keys else f"SELECT * FROM {OTHER} WHERE {on} IS NOT NULL",
            )
        running.add_view(JOINED, query.joined())
        for condition in options.where:
            running.check_condition(condition, JOINED, list(query.kinds))
        yield Selection(running, query, tables, dirt)
    finally:
        running.close()


def _check_names(options: Options, names: Sequence[str]) -> None:
    """Raise if an argument names a column that the tables do not have."""
    for argument, columns in (
        ("columns", options.columns or ()),
        ("dedup", options.dedup),
        ("key", options.key),
    ):
        for name in columns:
            find_column(name, names, argument)
    for name in options.filters:
        matched(name, names)


def _repeated(engine: Engine, query: Query) -> int:
    on = engine.dialect.name(query.on[1])
    ((count,),) = engine.fetch(f"SELECT COUNT({on}) - COUNT(DISTINCT {on}) FROM {OTHER}")
    return int(count)
