"""Index a shard whose samples are not contiguous, grouping all members that share a key.

Reading such a shard from start to end is an error, because a reader cannot know when a sample is complete.
With such an index it can be read and rewritten.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from tarmac.errors import DuplicateField, TarmacError
from tarmac.indexing.build import DEFAULT_INDEXING, IndexOptions
from tarmac.indexing.entries import Entries, Extent
from tarmac.indexing.meta import Columns
from tarmac.indexing.sidecar import make_sidecar
from tarmac.samples.naming import Splitter, is_metadata, is_reserved
from tarmac.storage import stat
from tarmac.storage.local import LocalSource
from tarmac.tar import read_members


class _Members:
    """All members of a shard: sample, field, offset and size, compact enough for millions."""

    def __init__(self, split_name: Splitter) -> None:
        self.split_name = split_name
        self.keys: dict[str, int] = {}
        self.fields: dict[str, int] = {}
        self.sample_numbers = array("q")
        self.field_numbers = array("q")
        self.offsets = array("q")
        self.sizes = array("q")

    def add(self, name: bytes, offset: int, size: int) -> None:
        """Add a member, unless it belongs to no sample."""
        pair = None if is_metadata(name) else self.split_name(name.decode("utf-8", "surrogateescape"))
        if pair is None or is_reserved(pair[1]):
            return
        key, field = pair[0], pair[1].lower()
        self.sample_numbers.append(self.keys.setdefault(key, len(self.keys)))
        self.field_numbers.append(self.fields.setdefault(field, len(self.fields)))
        self.offsets.append(offset)
        self.sizes.append(size)

    def samples(self) -> Iterator[tuple[str, dict[str, Extent]]]:
        """Yield each key with the locations of its fields, in the order in which keys first occur."""
        numbers = np.asarray(self.sample_numbers)
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=len(self.keys))).tolist()
        names, start = list(self.fields), 0
        for key, end in zip(self.keys, ends, strict=True):
            locations: dict[str, Extent] = {}
            for member in order[start:end].tolist():
                field = names[self.field_numbers[member]]
                if field in locations:
                    raise DuplicateField(f'the sample has two fields "{field}".', key=key)
                locations[field] = self.offsets[member], self.sizes[member], 0
            yield key, locations
            start = end


def index_scattered(url: str, options: IndexOptions = DEFAULT_INDEXING) -> bytes:
    """Return the content of a sidecar for a local shard, whatever the order of its members.

    A sample with two fields of the same name is still an error.
    """
    info, members, entries = stat(url, options.storage), _Members(options.split_name), Entries()
    columns = None if options.meta is None else Columns(options.meta)
    with LocalSource(url) as source:
        try:
            for name, offset, size, _ in read_members(
                source.map() or source, options.tar, url=url, payload=False
            ):
                members.add(name, offset, size)
            for key, locations in members.samples():
                entries.add(key, locations)
                if columns is not None:
                    columns.add_located(locations, key, source.read_at)
        except TarmacError as error:
            error.at(url=url)
            raise
    arrays = {} if columns is None else columns.arrays()
    return make_sidecar(entries, info, arrays, digests=False, url=url, storage=options.storage)
