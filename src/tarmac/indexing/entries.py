"""Collect the samples of one shard while it is read or written, for its sidecar."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from tarmac.errors import BadName

if TYPE_CHECKING:
    import numpy as np

Extent: TypeAlias = tuple[int, int, int]
"""Offset, size and xxh3-64 digest (or 0) of one field in the shard."""
Numbers: TypeAlias = "array[int] | np.ndarray[Any, Any]"
BUFFERED = 300
"""Extents collected before they are packed: packing many takes a third of the time."""


class Entries:
    """The keys and extents of the samples of a shard, stored compactly: there may be millions."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.starts = array("i", [0])
        """Sample i has the members from starts[i] up to starts[i + 1]."""
        self.fields: dict[str, int] = {}
        self.field_of = array("h")
        self._offsets = array("q")
        self._sizes = array("q")
        self._digests = array("Q")
        self._buffer: list[Extent] = []
        self._members = 0
        self._layouts: dict[tuple[str, ...], array[int]] = {}

    def add(self, key: str, extents: Mapping[str, Extent]) -> None:
        """Append a sample, its fields in the order of the shard."""
        names = tuple(extents)
        numbers = self._layouts.get(names)
        if numbers is None:
            numbers = array("h", [self._number_of(name, key) for name in names])
            if len(self._layouts) < 1000:
                self._layouts[names] = numbers
        self.field_of += numbers
        self._buffer += extents.values()
        self._members += len(names)
        self.keys.append(key)
        self.starts.append(self._members)
        if len(self._buffer) > BUFFERED:
            self._pack()

    def _pack(self) -> None:
        if self._buffer:
            offsets, sizes, digests = zip(*self._buffer, strict=True)
            self._offsets.extend(offsets)
            self._sizes.extend(sizes)
            self._digests.extend(digests)
            self._buffer.clear()

    def _number_of(self, field: str, key: str) -> int:
        number = self.fields.get(field, len(self.fields))
        if number > 32_000:
            raise BadName(
                "the shard has more than 32,000 different fields; the naming rule is probably wrong.",
                key=key,
                hint="split_name=tarmac.last_dot for keys that contain dots.",
            )
        self.fields[field] = number
        return number

    def layout(self) -> list[str] | None:
        """Return the fields of every sample if all have the same in the same order, else None."""
        count = len(self.keys)
        if not count:
            return None
        first = self.field_of[: self.starts[1]]
        # No sample has a field twice, so the samples are equal exactly if this pattern repeats.
        if self.field_of != first * count:
            return None
        names = list(self.fields)
        return [names[number] for number in first]

    def columns(self) -> dict[str, Any]:
        """Return the keys and members as Arrow arrays."""
        self._pack()
        members = member_column(
            self.starts, self.field_of, list(self.fields), self._offsets, self._sizes, self._digests
        )
        return {"key": key_column(self.keys), "members": members}


def member_column(
    starts: Numbers, field_of: Numbers, fields: list[str], offsets: Numbers, sizes: Numbers, digests: Numbers
) -> Any:
    """Return the column `members` of a sidecar: the members of sample i are those from starts[i] to starts[i + 1]."""
    import pyarrow as pa

    members = pa.StructArray.from_arrays(
        [
            pa.DictionaryArray.from_arrays(_numbers(field_of, pa.int16()), key_column(fields)),
            _numbers(offsets, pa.int64()),
            _numbers(sizes, pa.int64()),
            _numbers(digests, pa.uint64()),
        ],
        ["field", "offset", "size", "digest"],
    )
    return pa.ListArray.from_arrays(_numbers(starts, pa.int32()), members)


def _numbers(values: Numbers, type_: Any) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def key_column(names: list[str]) -> Any:
    """Return a text array, or a binary one if a name is not valid UTF-8.

    It is made of its buffers, because `pa.array` would import pandas, where that is installed.
    """
    import pyarrow as pa

    joined, kind = "".join(names), pa.string()
    if joined.isascii():
        lengths, data = map(len, names), joined.encode()
    else:
        try:
            encoded = [name.encode() for name in names]
        except UnicodeEncodeError:
            encoded, kind = [name.encode("utf-8", "surrogateescape") for name in names], pa.binary()
        lengths, data = map(len, encoded), b"".join(encoded)
    starts = array("i", accumulate(lengths, initial=0))
    return pa.Array.from_buffers(kind, len(names), [None, pa.py_buffer(starts), pa.py_buffer(data)])
