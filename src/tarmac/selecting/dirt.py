"""Count what is wrong with tables, and repair text that is not UTF-8."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Dirt:
    """What was wrong, in numbers."""

    empty_tables: int = 0
    """Files without a byte."""
    unreadable_rows: int = 0
    """Lines with too many or too few cells, or that are not JSON objects. They are left out."""
    repaired_values: int = 0
    """Texts that were not UTF-8: what is invalid became U+FFFD."""
    swapped_sizes: int = 0
    """Rows whose width and height are those of the joined table in the other order."""
    repeated_keys: int = 0
    """Rows of the joined table whose `on` occurs again; the smallest row is used."""

    def counts(self) -> dict[str, int]:
        """Return what occurred."""
        return {name: count for name, count in asdict(self).items() if count}


def as_text(values: pa.Array, dirt: Dirt) -> pa.Array:
    """Return bytes or text of unknown quality as text, which is valid UTF-8."""
    import pyarrow as pa

    data = values if pa.types.is_binary(values.type) else values.cast(pa.binary())
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        texts = []
        for value in data.to_pylist():
            text: Any = value
            if value is not None:
                text = value.decode("utf-8", "replace")
                dirt.repaired_values += text.encode() != value
            texts.append(text)
        return pa.array(texts, pa.string())


def repaired(batch: pa.RecordBatch, dirt: Dirt) -> pa.RecordBatch:
    """Return a batch whose columns of text are valid UTF-8."""
    import pyarrow as pa

    columns = [
        as_text(column, dirt)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
