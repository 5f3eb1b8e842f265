"""JSON lines: an object on each, whose members are the fields of a sample."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tarmac.errors import DecodeFailed, UrlError
from tarmac.tools.pack.sources.rows import Record, Rows

__all__ = ["JsonLines"]


class JsonLines(Rows):
    """Objects may have different members; one that is missing or null makes no field."""

    kind = "jsonl"

    def names(self) -> list[str]:
        """Every member that any object has, so that a name that none has is noticed."""
        names: dict[str, None] = {}
        for _, _, _, row in self.records():
            names.update(dict.fromkeys(row))
        if not names:
            raise UrlError("there is no object in it.", url=self.name)
        return list(names)

    def records(self) -> Iterator[Record]:
        begin = 0
        with open(self.near.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, begin, len(line), self.parsed(line, number)
                begin += len(line)

    def parsed(self, text: bytes, number: int) -> Mapping[str, Any]:
        try:
            row = json.loads(text.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise DecodeFailed(f"line {number} is not JSON: {error}.", url=self.name) from None
        if not isinstance(row, dict):
            raise DecodeFailed(f"line {number} is not a JSON object.", url=self.name)
        return row
