"""A text file of which every line is a sample with one field: the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tarmac.tools.pack.sources.rows import Record, Rows

__all__ = ["Lines"]


class Lines(Rows):
    """Lines as they are, blank ones too, without their line ends; samples are numbered."""

    kind = "lines"

    def names(self) -> list[str]:
        return ["txt"]

    def records(self) -> Iterator[Record]:
        begin = 0
        with open(self.near.path, "rb") as file:
            for number, line in enumerate(file, 1):
                yield number, begin, len(line), self.parsed(line, number)
                begin += len(line)

    def parsed(self, text: bytes, number: int) -> Mapping[str, Any]:
        return {"txt": text.removesuffix(b"\n").removesuffix(b"\r")}
