"""Index a shard whose samples are not contiguous, grouping all members that share a key.

Reading such a shard from start to end is an error, because a reader cannot know when a sample is complete.
With such an index it can be read and rewritten.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator

import numpy as np

from tarmac.errors import DuplicateField
from tarmac.indexing.build import DEFAULT_INDEXING, IndexOptions, index_shard
from tarmac.samples.grouping import Grouping, Naming, Sample
from tarmac.samples.native import NativeRuns, Value
from tarmac.tar import Member

_HINTS = {
    "error": "`repeated` keep with `rekey` '{i:09d}', if whole samples repeat; or tarmac check SHARD --repair -o DIR/.",
    "keep": "tarmac check SHARD --repair -o DIR/ writes a copy without it.",
}


def index_scattered(url: str, options: IndexOptions = DEFAULT_INDEXING) -> bytes:
    """Return the content of a sidecar for a local shard, whatever the order of its members.

    A sample with two fields of the same name is still an error.
    """
    return index_shard(url, options, _group_scattered)


def _group_scattered(
    members: Iterator[Member], url: str, options: Grouping, *, value: Value, runs: NativeRuns | None
) -> Iterator[Sample]:
    """Yield each key with the extents of its fields, in the order in which keys first occur."""
    naming = Naming(options, Counter())
    keys: dict[bytes, int] = {}
    fields: dict[str, int] = {}
    # Compact enough for millions of members: sample, field, offset, size and digest of each.
    owners, kinds, offsets, sizes, digests = (array(code) for code in "qqqqQ")
    for name, start, length, data in members:
        named = naming(name)
        if named is not None:
            offset, size, digest = value(start, length, data)
            owners.append(keys.setdefault(named[0], len(keys)))
            kinds.append(fields.setdefault(named[1], len(fields)))
            offsets.append(offset)
            sizes.append(size)
            digests.append(digest)
    order = np.argsort(np.asarray(owners), kind="stable")
    ends = np.cumsum(np.bincount(np.asarray(owners), minlength=len(keys))).tolist()
    names, start = list(fields), 0
    for encoded, end in zip(keys, ends, strict=True):
        key = encoded.decode("utf-8", "surrogateescape")
        sample: Sample = {"__key__": key, "__url__": url}
        for member in order[start:end].tolist():
            field = names[kinds[member]]
            if field in sample:
                what = f'the sample has two fields "{field}".'
                raise DuplicateField(what, url=url, key=key, hint=_HINTS[options.repeated])
            sample[field] = offsets[member], sizes[member], digests[member]
        yield sample
        start = end
