"""The arguments of `select`, checked and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tarmac.arguments import check_types
from tarmac.errors import UsageError
from tarmac.limits import GIB
from tarmac.selecting.filters import FILTERS

ROWS_PER_FILE = 1_000_000
MEMORY = 2 * GIB
SMALLEST_MEMORY = GIB // 4
ENGINES = ("duckdb", "spark")
_SHARES = ("max_unsafe", "max_watermark")


@dataclass(frozen=True)
class Options:
    """What the result depends on, besides the tables."""

    where: tuple[str, ...] = ()
    columns: dict[str, str] | None = None
    """New names, by the names in the tables; None for all columns."""
    dedup: tuple[str, ...] = ()
    join: tuple[str, ...] = ()
    """The URLs of the tables that are joined."""
    on: str = ""
    how: str = "inner"
    shuffle: int | None = None
    sample: float | int | None = None
    key: tuple[str, ...] = ()
    filters: dict[str, Any] = field(default_factory=dict)
    nulls: str = "drop"
    rows_per_file: int = ROWS_PER_FILE

    def __post_init__(self) -> None:
        check_types(self.__annotations__, {"on": self.on, "rows_per_file": self.rows_per_file})
        numbers = {name: value for name, value in self.filters.items() if name != "lang"}
        check_types(dict.fromkeys(numbers, "float"), numbers)
        self._check_choices()
        self._check_numbers()
        if bool(self.join) != bool(self.on):
            raise UsageError("`join` and `on` belong together.", field="on" if self.join else "join")
        if self.key and not set(map(str.lower, self.key)) <= set(map(str.lower, self.dedup or self.key)):
            what = "rows that are duplicates must have the same key."
            raise UsageError(what, field="key", hint="only columns that `dedup` names.")
        if self.columns is not None and not self.columns:
            raise UsageError("expected at least one column.", field="columns")
        if self.columns is not None and len({*map(str.lower, self.columns.values())}) < len(self.columns):
            raise UsageError("two columns would have the same name; case does not matter.", field="columns")

    def _check_choices(self) -> None:
        for name, known in (("how", ("inner", "left")), ("nulls", ("drop", "keep"))):
            if getattr(self, name) not in known:
                what = f"expected {' or '.join(map(repr, known))}, got {getattr(self, name)!r}."
                raise UsageError(what, field=name)
        for name in self.filters:
            if name not in FILTERS:
                raise UsageError(f"expected one of {', '.join(FILTERS)}, got {name!r}.", field="filters")
        for text in self.where:
            if not text.strip():
                raise UsageError("expected a condition, got nothing.", field="where")

    def _check_numbers(self) -> None:
        rows, seed, sample = self.rows_per_file, self.shuffle, self.sample
        if not (_whole(rows) and rows >= 1):
            raise UsageError(f"expected a positive number, got {rows!r}.", field="rows_per_file")
        if not (seed is None or _whole(seed)):
            raise UsageError(f"expected a seed such as 0, got {seed!r}.", field="shuffle")
        share = isinstance(sample, float) and 0 < sample <= 1
        if not (sample is None or share or (_whole(sample) and sample >= 1)):
            what = f"expected a share such as 0.1, or a number of rows such as 1000, got {sample!r}."
            raise UsageError(what, field="sample")
        for name, value in self.filters.items():
            if name == "lang":
                if not value or not all(value):
                    raise UsageError("expected languages such as en.", field=name)
            elif not math.isfinite(value) or (name in _SHARES and not 0 <= value <= 1):
                expected = "a number from 0 to 1" if name in _SHARES else "a number"
                raise UsageError(f"expected {expected}, got {value!r}.", field=name)

    @property
    def ordered_by_hash(self) -> bool:
        """Whether rows are shuffled; otherwise they stay in the order of the tables."""
        return self.shuffle is not None

    @property
    def most(self) -> int | None:
        """The number of rows to sample, if it is one."""
        return self.sample if isinstance(self.sample, int) else None

    @property
    def share(self) -> float | None:
        """The share of rows to sample, if it is one."""
        return self.sample if isinstance(self.sample, float) else None

    def to_json(self) -> dict[str, Any]:
        """Return what was given, for the ledger and the manifest."""
        facts: dict[str, Any] = {
            "where": list(self.where),
            "columns": None if self.columns is None else [list(each) for each in self.columns.items()],
            "dedup": list(self.dedup),
            "on": self.on,
            "shuffle": self.shuffle,
            "sample": self.sample,
            "key": list(self.key),
            "rows_per_file": self.rows_per_file,
        }
        facts |= {"how": self.how if self.join else None, "nulls": self.nulls if self.filters else None}
        facts |= {name: list(value) if name == "lang" else value for name, value in self.filters.items()}
        return {name: value for name, value in facts.items() if value not in (None, [], "")}


def as_number(value: Any) -> Any:
    """Return a number of numpy as one of Python."""
    return value.item() if hasattr(value, "item") else value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
