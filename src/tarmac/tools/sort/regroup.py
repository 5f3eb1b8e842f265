"""The index of a shard whose samples are not in one piece: the files of one key, wherever they are, are one.

Reading such a shard from front to back is an error, since a reader cannot know that a sample is whole. With
an index it can be read, and written anew in order.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import DuplicateField, TarmacError
from tarmac.indexing.entries import Entries, Extent
from tarmac.indexing.meta import Columns, MetaPlan
from tarmac.indexing.sampled_digests import sample_digests
from tarmac.indexing.sidecar import make_sidecar
from tarmac.samples.naming import first_dot, is_metadata, is_reserved
from tarmac.storage import stat
from tarmac.storage.local import LocalSource
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar import read_members

__all__ = ["regrouped"]


class _Members:
    """All files of a shard: of which sample, which field, where, how large. Compact, for millions."""

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}
        self.fields: dict[str, int] = {}
        self.owners = array("q")
        self.field_of = array("q")
        self.offsets = array("q")
        self.sizes = array("q")

    def add(self, name: bytes, offset: int, size: int) -> None:
        """Take in a file, by the naming rule; what belongs to no sample is passed over, as in reading."""
        named = None if is_metadata(name) else first_dot(name.decode("utf-8", "surrogateescape"))
        if named is None or is_reserved(named[1]):
            return
        key, field = named[0], named[1].lower()
        self.owners.append(self.keys.setdefault(key, len(self.keys)))
        self.field_of.append(self.fields.setdefault(field, len(self.fields)))
        self.offsets.append(offset)
        self.sizes.append(size)

    def samples(self) -> Iterator[tuple[str, dict[str, Extent]]]:
        """Key by key, in the order in which they first came, where the fields are."""
        owners = _numbers(self.owners)
        order = np.argsort(owners, kind="stable")
        ends = np.cumsum(np.bincount(owners, minlength=len(self.keys))).tolist()
        names, start = list(self.fields), 0
        for key, end in zip(self.keys, ends, strict=True):
            places: dict[str, Extent] = {}
            for member in order[start:end].tolist():
                field = names[self.field_of[member]]
                if field in places:
                    raise DuplicateField(f'the field "{field}" comes twice.', key=key)
                places[field] = self.offsets[member], self.sizes[member], 0
            yield key, places
            start = end


def _numbers(values: array[int]) -> NDArray[np.int64]:
    return np.frombuffer(values, np.int64) if values else np.empty(0, np.int64)


def regrouped(url: str, meta: MetaPlan | None = None) -> bytes:
    """Return the content of a sidecar for a local shard in which the files of a sample lie apart.

    A field that comes twice is an error still: there is no telling which one is meant.
    """
    info, found, entries = stat(url, DEFAULT_STORAGE), _Members(), Entries()
    columns = None if meta is None else Columns(meta)
    with LocalSource(url) as source:
        try:
            for name, offset, size, _ in read_members(source.map() or source, url=url, payload=False):
                found.add(name, offset, size)
            for key, places in found.samples():
                entries.add(key, places)
                if columns is not None:
                    needed = {
                        field: source.read_at(offset, size)
                        for field, (offset, size, _) in places.items()
                        if columns.plan.needs(field)
                    }
                    columns.add(needed, key, {field: size for field, (_, size, _) in places.items()})
        except TarmacError as error:
            error.at(url=url)
            raise
    arrays = {} if columns is None else columns.arrays()
    sampled = sample_digests(url, info, entries.offsets, DEFAULT_STORAGE)
    return make_sidecar(entries, info, arrays, digests=False, local=True, sampled_digests=sampled)
