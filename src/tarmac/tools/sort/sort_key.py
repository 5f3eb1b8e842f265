"""Convert sort values to bytes that compare as the values do.

Integers and floats of any size share one form, so that 2, 2.5 and 10**30 compare with each other.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from tarmac.errors import (
    CodecError,
    DecodeFailed,
    IndexingError,
    MissingField,
    SampleError,
    TarmacError,
    UsageError,
)
from tarmac.exact.dataset import Dataset
from tarmac.exact.shardset import ShardSet
from tarmac.indexing.attributes import read_field
from tarmac.indexing.meta import MetaPlan, meta_plan
from tarmac.indexing.promote import as_text
from tarmac.samples.grouping import Sample

_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_FLOAT = re.compile(
    r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*|\s*[+-]?inf(?:inity)?\s*", re.I
)
_NUMBER, _TEXT = b"\0", b"\1"
_SHOWN = 60


@dataclass(frozen=True)
class SortKey:
    """The order of samples; `sort` documents the arguments."""

    by: str = "key"
    type: Literal["bytes", "int", "float"] | None = None
    reverse: bool = False
    unique: Literal["keep", "first", "error"] = "keep"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.by:
            raise UsageError("expected key, random, a field or a column, got nothing.", field="by")
        for name, known in (
            ("type", (None, "bytes", "int", "float")),
            ("unique", ("keep", "first", "error")),
        ):
            if getattr(self, name) not in known:
                choices = ", ".join(repr(each) for each in known if each)
                raise UsageError(f"expected one of {choices}, got {getattr(self, name)!r}.", field=name)
        if self.random and (self.reverse or self.type or self.unique != "keep"):
            raise UsageError('"random" cannot be combined with `type`, `reverse` or `unique`.', field="by")

    @property
    def random(self) -> bool:
        return self.by == "random"

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for a ledger."""
        if self.random:
            return {"by": self.by, "seed": self.seed}
        return {"by": self.by, "type": self.type, "reverse": self.reverse, "unique": self.unique}

    @cached_property
    def _plan(self) -> MetaPlan | None:
        try:
            return meta_plan([self.by])
        except IndexingError:
            return None  # a field without attributes

    @cached_property
    def _fields(self) -> frozenset[str]:
        origins = self._plan.columns[0].origins if self._plan else ()
        return frozenset((self.by.lower(), *(origin.field for origin in origins)))

    def values(self, dataset: Dataset) -> Iterator[bytes | TarmacError]:
        """Yield the value of each sample, or the error of reading it; only the needed fields are read."""
        by_key = self.by == "key"
        keys: Iterator[Sample] = ({"__key__": key} for key in dataset.keys())  # noqa: SIM118 - no dictionary
        for sample in keys if by_key else _only(dataset, self._fields):
            try:
                yield self._encode(sample["__key__"] if by_key else self._value(sample))
            except TarmacError as error:
                yield error.at(url=sample.get("__url__"), key=sample["__key__"])

    def _value(self, sample: Sample) -> Any:
        """Return the bytes of the field, or the value of the column."""
        data = sample.get(self.by.lower())
        if data is not None:
            return data
        for field, attribute, is_size in self._plan.columns[0].origins if self._plan else ():
            if field in sample:
                try:
                    value = len(sample[field]) if is_size else read_field(field, sample[field])(attribute)
                except CodecError:
                    raise
                except Exception as error:
                    raise DecodeFailed(f'cannot read the field "{field}": {error}') from None
                if value is not None:
                    return value
                break
        raise MissingField(
            f'the sample has no "{self.by}" to sort by.', hint='`missing`="skip" skips such samples.'
        )

    def _encode(self, value: Any) -> bytes:
        if self.type is None:
            if isinstance(value, bytes):
                return _TEXT + value
            # Only floats can be NaN; math.isnan fails for integers beyond the range of floats.
            if isinstance(value, int) or (isinstance(value, float) and not math.isnan(value)):
                return _NUMBER + number_bytes(value)
            return _TEXT + _bytes(value)
        if self.type == "bytes":
            return _bytes(value)
        text = as_text(value) if not isinstance(value, bytes) else value.decode("utf-8", "replace")
        try:
            if self.type == "int" and _INTEGER.fullmatch(text):
                return number_bytes(int(text))
            if self.type == "float" and _FLOAT.fullmatch(text):
                return number_bytes(float(text))
        except ValueError:  # Python converts at most a few thousand digits
            pass
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        expected = "an integer" if self.type == "int" else "a number"
        raise SampleError(
            f"{self.by}: expected {expected}, got {shown!r}.",
            hint='`on_error` "skip" leaves such samples out; `type` "bytes" accepts any value.',
        )


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    text = as_text(value)
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # JSON can contain lone surrogates
        return text.encode("utf-8", "surrogatepass")


def number_bytes(number: float) -> bytes:
    """Return bytes that compare as the numbers do; NaN has none."""
    try:
        nearest = float(number)
    except OverflowError:  # beyond all floats but the infinities
        nearest = sys.float_info.max if number > 0 else -sys.float_info.max
    nearest += 0.0  # -0.0 equals 0.0
    (bits,) = struct.unpack(">Q", struct.pack(">d", nearest))
    first: int = bits ^ (0xFFFFFFFFFFFFFFFF if bits >> 63 else 1 << 63)
    rest = number - int(nearest) if isinstance(number, int) else 0
    return struct.pack(">Q", first) + _integer_bytes(rest)


def _integer_bytes(number: int) -> bytes:
    """Encode the difference between an integer and the nearest float; it is mostly zero."""
    if number == 0:
        return b"\x80"
    size = number.bit_length() // 8 + 1
    if number > 0:
        return b"\x81" + size.to_bytes(4, "big") + number.to_bytes(size, "big")
    limit = (1 << 8 * (size + 4)) - 1
    return b"\x7f" + (limit - ((size << 8 * size) - number)).to_bytes(size + 4, "big")


def _only(dataset: Dataset, fields: frozenset[str]) -> Dataset:
    """Return the same samples with only these fields."""
    return Dataset._of_parts(
        [
            replace(part, shards=ShardSet(part.shards.manifest, replace(part.shards.options, fields=fields)))
            for part in dataset._parts
        ]
    )
