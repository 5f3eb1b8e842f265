"""Turn options into SQL: what is kept, in which order, and how many rows each condition removes.

Rows are shuffled by the MD5 of seed and key, which all engines compute alike. Rows of equal keys follow each other in
any order: `ties.py` puts them in order. Without a shuffle, rows are in the order of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarmac.errors import UsageError
from tarmac.selecting.dialect import Dialect
from tarmac.selecting.filters import FILTERS, SPELLINGS, Predicate, named_predicate, spelled
from tarmac.selecting.options import Options
from tarmac.selecting.schemas import find_column, hashable, is_text

if TYPE_CHECKING:
    import pyarrow as pa

ROWS, OTHER, ONE_EACH, JOINED = "tarmac_rows", "tarmac_other", "tarmac_one_each", "tarmac_joined"
"""The names of views: the tables, those to join, their rows without repetitions, and both together."""
HASH, FILE, ROW, AT, PARTNER = (
    "__tarmac_hash",
    "__tarmac_file",
    "__tarmac_row",
    "__tarmac_at",
    "__tarmac_partner",
)
SWAPPED = "__tarmac_swapped"
_ROWS_PER_TABLE = 1 << 40
_ALL = 1 << 128


def needed_columns(options: Options, names: Sequence[str], *, other: bool = False) -> list[str]:
    """Return the columns of a table that a selection needs; `other` is that of a join."""
    if options.columns is None:
        return list(names)
    wanted = {name.lower() for name in (*options.columns, *options.dedup, *options.key, options.on)}
    meanings = {meaning for name in options.filters for meaning in FILTERS[name].columns}
    if not other and (options.ordered_by_hash or options.sample) and not (options.key or options.dedup):
        meanings |= {"url", "text"}
    wanted |= {name for meaning in meanings for name in SPELLINGS[meaning]}
    conditions = "\n".join(options.where).lower()
    return [
        name
        for name in names
        if name.lower() in wanted or any(each in conditions for each in _spellings_in_sql(name.lower()))
    ]


def _spellings_in_sql(name: str) -> list[str]:
    """Return how a condition may spell a name: as it is, or within quotes."""
    return [name, name.replace('"', '""'), name.replace("`", "``")]


@dataclass(frozen=True)
class Query:
    """The SQL of a selection."""

    options: Options
    schema: pa.Schema
    """The columns of the tables."""
    dialect: Dialect
    other: pa.Schema | None = None
    """The columns of the tables to join."""
    on: tuple[str, str] = ("", "")
    """The column to join by, in the tables and in the others."""
    kinds: Mapping[str, Any] = field(default_factory=dict)
    """The types of all columns that conditions can use."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns to write, and their new names."""
    dedup: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, options: Options, schema: pa.Schema, dialect: Dialect, other: pa.Schema | None = None
    ) -> Query:
        """Resolve the names of columns."""
        kinds = {each.name: each.type for each in schema}
        on = ("", "")
        if other is not None:
            on = find_column(options.on, schema.names, "on"), find_column(options.on, other.names, "on")
            if is_text(kinds[on[0]]) != is_text(other.field(on[1]).type):
                what = (
                    f"the column holds {kinds[on[0]]} values, and {other.field(on[1]).type} values in `join`."
                )
                raise UsageError(what, field="on")
            lowered = {name.lower() for name in schema.names}
            kinds |= {each.name: each.type for each in other if each.name.lower() not in lowered}
        names = list(kinds)
        if options.columns is None:
            columns = {name: name for name in names}
        else:
            columns = {find_column(old, names, "columns"): new for old, new in options.columns.items()}
        dedup = tuple(find_column(name, names, "dedup") for name in options.dedup)
        key = tuple(find_column(name, names, "key") for name in options.key)
        if options.ordered_by_hash or options.sample is not None:
            key = _key(key, dedup, kinds)
            if options.ordered_by_hash and dedup and not set(key) <= set(dedup):
                what = f"rows that are duplicates would have different keys: {', '.join(key)}."
                raise UsageError(
                    what, field="dedup", hint="a column of text or integers among them; or no `shuffle`."
                )
        return cls(options, schema, dialect, other, on, kinds, columns, dedup, key)

    @property
    def positions(self) -> bool:
        """Whether rows need their positions in the tables."""
        return not self.options.ordered_by_hash

    @property
    def output(self) -> pa.Schema:
        """The columns that are written."""
        import pyarrow as pa

        return pa.schema([(new, self.kinds[old]) for old, new in self.columns.items()])

    @property
    def streamed(self) -> dict[str, str]:
        """The columns that an engine returns of shuffled rows: their names there, by those in the tables."""
        return {**self.columns, **{name: f"__tarmac_{name}" for name in self.extra}}

    @property
    def extra(self) -> list[str]:
        """Columns that are read to find duplicates, and not written."""
        return [name for name in self.dedup if name not in self.columns]

    def predicates(self) -> list[Predicate]:
        """Return all conditions, in the order in which they are applied."""
        options, texts = self.options, {name: is_text(kind) for name, kind in self.kinds.items()}
        conditions = []
        if self.other is not None and options.how == "inner":
            conditions.append(
                Predicate("join", self.dialect.name(PARTNER), "FALSE", tuple(dict.fromkeys(self.on)))
            )
        for name, argument in options.filters.items():
            keep = options.nulls == "keep"
            conditions.append(named_predicate(name, argument, texts, self.dialect, keep_unknown=keep))
        conditions += [
            Predicate("where", f"(\n{text}\n)", f"(\n{text}\n) IS NULL", shown=text) for text in options.where
        ]
        if options.share is not None:
            limit = f"{min(int(options.share * _ALL), _ALL - 1):032x}"
            conditions.append(
                Predicate("sample", f"{self.hash} < '{limit}'", "FALSE", self.key, options.share)
            )
        return conditions

    @property
    def hash(self) -> str:
        """The SQL of the value that rows are ordered by."""
        seed = self.dialect.literal(str(self.options.shuffle or 0))
        parts = [self.dialect.cast(self.dialect.name(name), "string") for name in self.key]
        return f"MD5(CONCAT_WS('/', {', '.join([seed, *parts])}))"

    def one_each(self) -> str:
        """Return the rows of the tables to join, the smallest of those with the same value of `on`."""
        assert self.other is not None
        on = self.dialect.name(self.on[1])
        order = ", ".join(
            f"{self.dialect.name(each.name)} NULLS FIRST" for each in self.other if _sortable(each.type)
        )
        ranked = (
            f"SELECT *, ROW_NUMBER() OVER (PARTITION BY {on} ORDER BY {order}) AS __tarmac_n FROM {OTHER}"
        )
        names = self.dialect.names(self.other.names)
        return f"SELECT {names} FROM ({ranked} WHERE {on} IS NOT NULL) AS r WHERE __tarmac_n = 1"

    def joined(self) -> str:
        """Return the view that conditions apply to."""
        name = self.dialect.name
        if self.other is None:
            return f"SELECT * FROM {ROWS}"
        more = [
            f"o.{name(each)}"
            for each in self.other.names
            if each in self.kinds and each not in self.schema.names
        ]
        partner = f"(o.{name(self.on[1])} IS NOT NULL) AS {name(PARTNER)}"
        swapped = f"{self._swapped()} AS {name(SWAPPED)}"
        on = f"t.{name(self.on[0])} = o.{name(self.on[1])}"
        columns = ", ".join(["t.*", *more, partner, swapped])
        return f"SELECT {columns} FROM {ROWS} AS t LEFT JOIN {ONE_EACH} AS o ON {on}"

    def _swapped(self) -> str:
        """Return SQL that is true where the tables disagree about which side is the width."""
        assert self.other is not None
        sides = [
            [spelled(side, names) for side in ("width", "height")]
            for names in (self.schema.names, self.other.names)
        ]
        if not all(side for both in sides for side in both):
            return "FALSE"
        (width, height), (other_width, other_height) = (
            [f"{alias}.{self.dialect.name(side or '')}" for side in both]
            for alias, both in zip("to", sides, strict=True)
        )
        return (
            f"COALESCE({width} = {other_height} AND {height} = {other_width} AND {width} <> {height}, FALSE)"
        )

    def counts(self) -> str:
        """Return the number of rows by the first condition that removes them.

        Condition i has the number 2 i, or 2 i + 1 where its value is unknown; rows that are kept have -1.
        """
        cases = "".join(
            f" WHEN {each.unknown} THEN {2 * number + 1} WHEN NOT {each.passes} THEN {2 * number}"
            for number, each in enumerate(self.predicates())
        )
        step = f"CASE{cases} ELSE -1 END" if cases else "-1"
        swapped = self.dialect.name(SWAPPED) if self.other is not None else "FALSE"
        rows = f"SELECT {step} AS step, CASE WHEN {swapped} THEN 1 ELSE 0 END AS swapped FROM {JOINED}"
        return f"SELECT step, COUNT(*), SUM(swapped) FROM ({rows}) AS r GROUP BY step"

    def _kept(self, more: str) -> str:
        conditions = [each.passes for each in self.predicates()]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT *{more} FROM {JOINED}{where}"

    def rows(self, *, streamed: bool) -> str:
        """Return all rows in order. `streamed` is whether the engine keeps the order of tables by itself."""
        name, options = self.dialect.name, self.options
        columns = [f"{name(old)} AS {name(new)}" for old, new in self.streamed.items()]
        if options.ordered_by_hash:
            kept = self._kept(f", {self.hash} AS {HASH}")
            return f"SELECT {', '.join([*columns, HASH])} FROM ({kept}) AS k ORDER BY {HASH}"
        written = ", ".join(columns[: len(self.columns)])
        if streamed and not self.dedup and options.most is None and self.other is None:
            return f"SELECT {written} FROM ({self._kept('')}) AS k"
        return f"SELECT {written} FROM ({self.unique(sampled=True)}) AS u ORDER BY {AT}"

    def positioned(self) -> str:
        """Return the rows that no condition removes, with their positions."""
        return self._kept(f", CAST({FILE} AS BIGINT) * {_ROWS_PER_TABLE} + {ROW} AS {AT}")

    def unique(self, *, sampled: bool = False) -> str:
        """Return rows with their positions: the first of those that are duplicates, and then a sample of them."""
        rows = self.positioned()
        if self.dedup:
            first = f"SELECT MIN({AT}) FROM ({rows}) AS f GROUP BY {self.dialect.names(self.dedup)}"
            rows = f"SELECT * FROM ({rows}) AS k WHERE {AT} IN ({first})"
        if sampled and self.options.most is not None:
            rows = f"SELECT * FROM ({rows}) AS s ORDER BY {self.hash}, {AT} LIMIT {self.options.most}"
        return rows


def _key(given: Sequence[str], dedup: Sequence[str], kinds: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns whose values decide the order of a shuffle, and the sample."""
    if given:
        for name in given:
            if not hashable(kinds[name]):
                what = f"expected columns of text or integers, got {name!r} with {kinds[name]} values."
                raise UsageError(what, field="key")
        return tuple(given)
    links = [spelled(meaning, kinds) for meaning in ("url", "text")]
    for names in (dedup, links if links[0] else (), kinds):
        chosen = tuple(name for name in names if name is not None and hashable(kinds[name]))
        if chosen:
            return chosen
    raise UsageError("a shuffle or a sample needs a column of text or integers.", field="key")


def _sortable(kind: Any) -> bool:
    import pyarrow as pa

    return not pa.types.is_nested(kind)
