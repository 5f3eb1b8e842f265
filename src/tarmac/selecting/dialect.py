"""Write the SQL that DuckDB and Spark understand alike; what differs is the spelling of names, texts and types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SAME = {
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "uint64": "DECIMAL(20, 0)",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
}


@dataclass(frozen=True)
class Dialect:
    """The spellings of one engine."""

    quote: str
    text: str
    """The type of text."""
    binary: str
    escapes: bool
    """Whether a backslash in a text is an escape."""

    def name(self, column: str) -> str:
        """Return a column name in quotes."""
        return f"{self.quote}{column.replace(self.quote, self.quote * 2)}{self.quote}"

    def names(self, columns: Any) -> str:
        """Return several column names."""
        return ", ".join(map(self.name, columns))

    def literal(self, text: str) -> str:
        """Return text as a constant."""
        if self.escapes:
            text = text.replace("\\", "\\\\").replace("'", "\\'")
        else:
            text = text.replace("'", "''")
        return f"'{text}'"

    def cast(self, expression: str, kind: Any) -> str:
        """Return the conversion to an Arrow type; unchanged if SQL has no name for the type."""
        name = {"string": self.text, "binary": self.binary, **_SAME}.get(str(kind))
        return expression if name is None else f"CAST({expression} AS {name})"

    def number(self, column: str, *, text: bool) -> str:
        """Return a column as DOUBLE; NaN, and text that is not a number, become NULL."""
        number = f"{'TRY_CAST' if text else 'CAST'}({self.name(column)} AS DOUBLE)"
        # Not by a comparison: the statistics of Parquet files ignore NaN, and DuckDB relies on them.
        return f"CASE WHEN ISNAN({number}) THEN NULL ELSE {number} END"


DUCKDB = Dialect('"', "VARCHAR", "BLOB", escapes=False)
SPARK = Dialect("`", "STRING", "BINARY", escapes=True)
