"""The samples of one shard as they are found or written, before they become a sidecar."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from tarmac.errors import BadName

__all__ = ["Entries", "Place"]

Place = tuple[int, int, int]
"""Where the bytes of one field are in the shard, how many there are, and their xxh3-64 digest (or 0)."""


WAITING = 300
"""So many places are gathered before they are packed, all at once, which takes a third of the time."""


class Entries:
    """Gather key by key where the fields are; compact, since shards may hold millions of samples."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.starts = array("i", [0])
        """Sample i owns the members from starts[i] up to starts[i + 1]."""
        self.fields: dict[str, int] = {}
        self.field_of = array("h")
        self._offsets = array("q")
        self._sizes = array("q")
        self._digests = array("Q")
        self._waiting: list[Place] = []
        self._members = 0
        self._layouts: dict[tuple[str, ...], array[int]] = {}

    def add(self, key: str, places: Mapping[str, Place]) -> None:
        """Append one sample, its fields in the order in which the shard has them."""
        names = tuple(places)
        numbers = self._layouts.get(names)
        if numbers is None:
            numbers = self._new_layout(names, key)
        self.field_of += numbers
        self._waiting += places.values()
        self._members += len(names)
        self.keys.append(key)
        self.starts.append(self._members)
        if len(self._waiting) > WAITING:
            self._pack()

    def _pack(self) -> None:
        if self._waiting:
            offsets, sizes, digests = zip(*self._waiting, strict=True)
            self._offsets.extend(offsets)
            self._sizes.extend(sizes)
            self._digests.extend(digests)
            self._waiting.clear()

    @property
    def offsets(self) -> array[int]:
        """Where each member is."""
        self._pack()
        return self._offsets

    @property
    def sizes(self) -> array[int]:
        """How large each member is."""
        self._pack()
        return self._sizes

    @property
    def digests(self) -> array[int]:
        """The digest of each member."""
        self._pack()
        return self._digests

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
