"""The samples of one shard as they are found or written, before they become a sidecar."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from tarmac.errors import BadName

__all__ = ["Entries", "Place"]

Place = tuple[int, int, int]
"""Where the bytes of one field are in the shard, how many there are, and their xxh3-64 digest (or 0)."""


class Entries:
    """Gather key by key where the fields are; compact, since shards may hold millions of samples."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.starts = array("i", [0])
        """Sample i owns the members from starts[i] up to starts[i + 1]."""
        self.fields: dict[str, int] = {}
        self.field_of = array("h")
        self.offsets = array("q")
        self.sizes = array("q")
        self.digests = array("Q")
        self._layouts: dict[tuple[str, ...], array[int]] = {}

    def add(self, key: str, places: Mapping[str, Place]) -> None:
        """Append one sample, its fields in the order in which the shard has them."""
        names = tuple(places)
        numbers = self._layouts.get(names)
        if numbers is None:
            numbers = self._new_layout(names, key)
        self.field_of += numbers
        offset, size, digest = self.offsets.append, self.sizes.append, self.digests.append
        for place in places.values():
            offset(place[0])
            size(place[1])
            digest(place[2])
        self.keys.append(key)
        self.starts.append(len(self.offsets))

    def _new_layout(self, names: tuple[str, ...], key: str) -> array[int]:
        numbers = array("h", [self._number_of(name, key) for name in names])
        if len(self._layouts) < 1000:
            self._layouts[names] = numbers
        return numbers

    def _number_of(self, field: str, key: str) -> int:
        if field in self.fields:
            return self.fields[field]
        number = len(self.fields)
        if number > 32_000:
            raise BadName(
                "the shard has more than 32,000 different fields; the naming rule is probably wrong.",
                key=key,
                hint="split=last_dot for keys that contain dots.",
            )
        self.fields[field] = number
        return number

    def layout(self) -> list[str] | None:
        """The fields that every sample has, in the same order; None when samples differ."""
        count = len(self.keys)
        if not count:
            return None
        first = self.field_of[: self.starts[1]]
        # No sample has a field twice, so samples can only be alike if all their members line up.
        if self.field_of != first * count:
            return None
        names = list(self.fields)
        return [names[number] for number in first]

    def columns(self) -> dict[str, Any]:
        """The keys and members as Arrow arrays."""
        import pyarrow as pa

        members = pa.StructArray.from_arrays(
            [
                pa.DictionaryArray.from_arrays(
                    _numbers(self.field_of, pa.int16()), _texts(list(self.fields))
                ),
                _numbers(self.offsets, pa.int64()),
                _numbers(self.sizes, pa.int64()),
                _numbers(self.digests, pa.uint64()),
            ],
            ["field", "offset", "size", "digest"],
        )
        starts = _numbers(self.starts, pa.int32())
        return {"key": _texts(self.keys), "members": pa.ListArray.from_arrays(starts, members)}


def _numbers(values: array[int], kind: Any) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _texts(names: list[str]) -> Any:
    """Text where all names are text; bytes when one of them is not, so that none is changed."""
    import pyarrow as pa

    try:
        return pa.array(names, pa.string())
    except UnicodeEncodeError:
        return pa.array([name.encode("utf-8", "surrogateescape") for name in names], pa.binary())
