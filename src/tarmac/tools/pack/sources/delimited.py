"""Tables of text: csv with quotes, tsv without; the first row names the columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from tarmac.errors import DecodeFailed, UrlError
from tarmac.tools.pack.sources.rows import Record, Rows

__all__ = ["Csv", "Tsv"]

_LONGEST = (1 << 31) - 1
"""Characters of a cell; the standard library's own bound of 128 Ki is met by real captions and masks."""


class Csv(Rows):
    """Cells are text and stay as they are written: 007 is no number, and an empty cell an empty text."""

    kind = "csv"
    style: Mapping[str, Any] = {"delimiter": ","}

    def names(self) -> list[str]:
        return self._head

    @cached_property
    def _head(self) -> list[str]:
        head = next(self._raw(), None)
        if head is None:
            raise UrlError("the table is empty; its first row names the columns.", url=self.name)
        return head[3]

    def records(self) -> Iterator[Record]:
        raw = self._raw()
        next(raw, None)
        for number, begin, length, cells in raw:
            yield number, begin, length, self._row(cells, number)

    def parsed(self, text: bytes, number: int) -> Mapping[str, Any]:
        for _, _, _, cells in self._split(io.BytesIO(text), number):
            return self._row(cells, number)
        raise DecodeFailed(f"row {number} is empty.", url=self.name)

    def _raw(self) -> Iterator[tuple[int, int, int, list[str]]]:
        with open(self.near.path, "rb") as file:
            yield from self._split(file, 0)

    def _split(self, file: Any, number: int) -> Iterator[tuple[int, int, int, list[str]]]:
        """Rows, and where they begin and end; a reader takes no line before it needs it."""
        csv.field_size_limit(_LONGEST)
        taken, begin = 0, 0

        def lines() -> Iterator[str]:
            nonlocal taken
            for line in file:
                text = line.decode("utf-8-sig" if taken == 0 else "utf-8")
                taken += len(line)
                yield text

        reader = csv.reader(lines(), strict=True, **self.style)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except (csv.Error, UnicodeDecodeError) as error:
                raise DecodeFailed(f"row {number} cannot be read: {error}.", url=self.name) from None
            if cells:
                yield number, begin, taken - begin, cells
                number += 1
            begin = taken

    def _row(self, cells: list[str], number: int) -> Mapping[str, Any]:
        if len(cells) != len(self._head):
            what = f"row {number} has {len(cells)} cells, the table has {len(self._head)} columns."
            raise DecodeFailed(what, url=self.name)
        return dict(zip(self._head, cells, strict=True))


class Tsv(Csv):
    """Tabs separate cells, and a quote is a quote."""

    kind = "tsv"
    style: Mapping[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
