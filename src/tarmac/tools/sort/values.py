"""What samples are sorted by, as bytes that compare as the values do.

Numbers of any size, whole or not, get one form, so that 2, 2.5 and 10**30 are in order among each other.
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
    UrlError,
)
from tarmac.exact.dataset import Dataset
from tarmac.exact.shardset import ShardSet
from tarmac.indexing.attributes import read_field
from tarmac.indexing.meta import MetaPlan, meta_plan
from tarmac.indexing.promote import as_text
from tarmac.samples.grouping import Sample

__all__ = ["By", "number_bytes"]

_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_FLOAT = re.compile(
    r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*|\s*[+-]?inf(?:inity)?\s*", re.I
)
_NUMBER, _TEXT = b"\0", b"\1"
_SHOWN = 60


@dataclass(frozen=True)
class By:
    """The order that is asked for."""

    what: str = "key"
    """`key`, `random`, a field, or a column such as `jpg.width` or `json.score`."""
    kind: Literal["bytes", "int", "float"] | None = None
    """How values are compared; None compares numbers as numbers and the rest as bytes."""
    reverse: bool = False
    """The largest first; samples that are equal stay in the order in which they come."""
    unique: Literal["keep", "error", "first"] = "keep"
    """What to do with samples that have equal values."""
    seed: int = 0
    """For `random`."""

    def __post_init__(self) -> None:
        if not self.what:
            raise UrlError("--by names what to sort by: key, random, a field or a column.")
        if self.random and (self.reverse or self.kind or self.unique != "keep"):
            raise UrlError("--by random has neither a type nor an end to begin at, and no two are equal.")

    @property
    def random(self) -> bool:
        """Whether there is nothing to compare."""
        return self.what == "random"

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger."""
        if self.random:
            return {"by": self.what, "seed": self.seed}
        return {"by": self.what, "type": self.kind, "reverse": self.reverse, "unique": self.unique}

    @cached_property
    def _plan(self) -> MetaPlan | None:
        try:
            return meta_plan([self.what])
        except IndexingError:
            return None  # a field of which nothing is known but its bytes

    @cached_property
    def _fields(self) -> frozenset[str]:
        origins = self._plan.columns[0].origins if self._plan else ()
        return frozenset((self.what.lower(), *(origin.field for origin in origins)))

    def values(self, dataset: Dataset) -> Iterator[bytes | TarmacError]:
        """The value of each sample, or what is wrong with it; no more is read than is needed."""
        if self.what == "key":
            for key in dataset.keys():  # noqa: SIM118 - no dictionary
                yield self._value(key, key)
            return
        for sample in _only(dataset, self._fields):
            try:
                found = self._found(sample)
            except TarmacError as error:
                yield error.at(url=sample["__url__"], key=sample["__key__"])
                continue
            value = self._value(found, sample["__key__"])
            yield value.at(url=sample["__url__"]) if isinstance(value, TarmacError) else value

    def _found(self, sample: Sample) -> Any:
        """The bytes of the field, or what the column says."""
        there = sample.get(self.what.lower())
        if there is not None:
            return there
        for field, attribute, is_size in self._plan.columns[0].origins if self._plan else ():
            if field in sample:
                try:
                    found = len(sample[field]) if is_size else read_field(field, sample[field])(attribute)
                except CodecError:
                    raise
                except Exception as error:
                    raise DecodeFailed(f'the field "{field}" cannot be read: {error}') from None
                if found is not None:
                    return found
                break
        raise MissingField(
            f'the sample has no "{self.what}" to sort by.', hint="--missing skip leaves such samples out."
        )

    def _value(self, found: Any, key: str) -> bytes | TarmacError:
        if self.kind is None:
            if isinstance(found, bytes):
                return _TEXT + found
            # Only floats can be asked whether they are NaN: a whole number may be larger than any of them.
            if isinstance(found, int) or (isinstance(found, float) and not math.isnan(found)):
                return _NUMBER + number_bytes(found)
            return _TEXT + _bytes(found)
        if self.kind == "bytes":
            return _bytes(found)
        text = as_text(found) if not isinstance(found, bytes) else found.decode("utf-8", "replace")
        try:
            if self.kind == "int" and _WHOLE.fullmatch(text):
                return number_bytes(int(text))
            if self.kind == "float" and _FLOAT.fullmatch(text):
                return number_bytes(float(text))
        except ValueError:  # Python converts no more than a few thousand digits
            pass
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        wanted = "a whole number" if self.kind == "int" else "a number"
        return SampleError(
            f"{self.what} is to be {wanted}, it is {shown!r}.",
            key=key,
            hint="--on-error skip leaves such samples out; --type bytes takes any value.",
        )


def _bytes(found: Any) -> bytes:
    if isinstance(found, bytes):
        return found
    text = as_text(found)
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # JSON can name half a character
        return text.encode("utf-8", "surrogatepass")


def number_bytes(number: float) -> bytes:
    """A number, not NaN, as bytes that compare as numbers do."""
    try:
        near = float(number)
    except OverflowError:  # larger than any float but the infinite ones
        near = sys.float_info.max if number > 0 else -sys.float_info.max
    near += 0.0  # one zero, not two
    (bits,) = struct.unpack(">Q", struct.pack(">d", near))
    first: int = bits ^ (0xFFFFFFFFFFFFFFFF if bits >> 63 else 1 << 63)
    rest = number - int(near) if isinstance(number, int) else 0
    return struct.pack(">Q", first) + _whole(rest)


def _whole(number: int) -> bytes:
    """What a whole number has more than the float next to it; mostly nothing."""
    if number == 0:
        return b"\x80"
    size = number.bit_length() // 8 + 1
    if number > 0:
        return b"\x81" + size.to_bytes(4, "big") + number.to_bytes(size, "big")
    limit = (1 << 8 * (size + 4)) - 1
    return b"\x7f" + (limit - ((size << 8 * size) - number)).to_bytes(size + 4, "big")


def _only(dataset: Dataset, fields: frozenset[str]) -> Dataset:
    """The same samples with these fields alone."""
    return Dataset.of_parts(
        [
            replace(part, shards=ShardSet(part.shards.manifest, replace(part.shards.opening, fields=fields)))
            for part in dataset.parts
        ]
    )
