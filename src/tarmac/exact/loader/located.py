"""Samples that were fetched before they are needed: where their bytes are on this machine.

The loader locates the samples of a batch when all of their bytes have arrived. The thread or process that builds the
batch then reads local bytes, and needs neither an index nor a connection.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from tarmac.exact.indexed import digest_mismatch
from tarmac.exact.loader.spool import Spool
from tarmac.samples.grouping import Sample


class Located(NamedTuple):
    """A sample whose bytes are in the spool."""

    key: str
    url: str
    members: Sequence[tuple[str, int, int, int | None]]
    """Name, offset in the spool, size, and the digest if it has to be verified."""


Locations = list[Located | None]
"""The samples of a batch; None for those that have to be read from their shards."""


class Packed(NamedTuple):
    """Locations that were written to the spool, for a worker process: a message of any size could block."""

    offset: int
    size: int


def pack(locations: Locations, spool: Spool) -> Packed | None:
    """Write locations to the spool; return None if it has no room."""
    content = pickle.dumps(locations, protocol=5)
    offset = spool.allocate(len(content))
    if offset is None:
        return None
    spool.write(offset, content)
    return Packed(offset, len(content))


def unpack(packed: Packed, spool: Spool) -> Locations:
    """Read locations from the spool."""
    locations: Locations = pickle.loads(spool.read(*packed))  # noqa: S301 - written by our own parent
    return locations


def read_located(located: Located, spool: Spool) -> Sample:
    """Read a sample from the spool."""
    sample: Sample = {"__key__": located.key, "__url__": located.url}
    for name, offset, size, digest in located.members:
        data = sample[name] = spool.read(offset, size)
        if digest is not None and xxhash.xxh3_64_intdigest(data) != digest:
            raise digest_mismatch(name, located.url, located.key)
    return sample
