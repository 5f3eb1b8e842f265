"""From a shard to its index: read its headers, and its payload only for digests and metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash

from tarmac.errors import AccessDenied, BadCondition, IndexingError, ObjectChanged, TarmacError
from tarmac.indexing.entries import Entries
from tarmac.indexing.marks import take_marks
from tarmac.indexing.meta import Columns as MetaColumns
from tarmac.indexing.meta import MetaPlan, parse_meta
from tarmac.indexing.sidecar import Sidecar, make_sidecar, open_sidecar
from tarmac.samples.grouping import Grouping, group_members
from tarmac.samples.naming import Splitter, first_dot
from tarmac.storage import Source, StorageOptions, is_local, open_read, stat
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar import Member, TarOptions, read_members
from tarmac.tar.compression import HEAD, detect
from tarmac.tar.reader import DEFAULT_OPTIONS

__all__ = ["index_shard", "IndexOptions", "keeping", "usable_index"]

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What an index is to hold, and how shards are read for it."""

    digests: bool = False
    """Also a digest of each field, which costs reading every byte."""
    meta: MetaPlan | None = None
    split: Splitter = first_dot
    lower: bool = True
    tar: TarOptions = DEFAULT_OPTIONS
    storage: StorageOptions = field(default=DEFAULT_STORAGE)
    keep: bool = True
    """Whether an index that is made again has the columns and digests of the one before, too."""


DEFAULT_INDEXING = IndexOptions()


def index_shard(url: str, options: IndexOptions = DEFAULT_INDEXING) -> bytes:
    """Return the content of a shard's sidecar. Damage of any kind raises; nothing is indexed by halves."""
    before = stat(url, options.storage)
    entries, columns = Entries(), None if options.meta is None else MetaColumns(options.meta)
    try:
        with open_read(url, options.storage) as source:
            _read(source, url, options, entries, columns)
        marks = take_marks(url, before, entries.offsets, options.storage)
    except TarmacError as error:
        error.at(url=url)
        raise
    if stat(url, options.storage) != before:
        raise ObjectChanged("the shard was written while it was being indexed.", url=url)
    return make_sidecar(
        entries,
        before,
        {} if columns is None else columns.arrays(),
        digests=options.digests,
        local=is_local(url),
        marks=marks,
        bad_meta=columns is not None and columns.plan.on_bad == "null",
    )


def _read(
    source: Source, url: str, options: IndexOptions, entries: Entries, columns: MetaColumns | None
) -> None:
    """Go through a shard from front to back."""
    whole, stream = source.map(), _Peeked(source)
    if form := detect(whole[:HEAD] if whole else stream.peek(HEAD)):
        raise IndexingError(
            f"the shard is compressed ({form}), so nothing in it has an address.",
            url=url,
            hint="unpack it: the images and arrays inside are mostly compressed already.",
        )
    # Of a mapped shard only what is needed is touched; from a stream all bytes come by anyway.
    payload = options.digests or (columns is not None and not whole)
    members = read_members(whole or stream, options.tar, url=url, payload=payload)
    grouping = Grouping(options.split, options.lower, tracked_keys=options.tar.limits.tracked_keys)
    kept: dict[int, bytes] = {}
    located = _located(members, options.digests, None if columns is None or whole else kept)
    for sample in group_members(located, url, grouping):
        key = sample.pop("__key__")
        del sample["__url__"]
        entries.add(key, sample)
        if columns is not None:
            needed = {
                name: whole[offset : offset + size] if whole else kept[offset]
                for name, (offset, size, _) in sample.items()
                if columns.plan.needs(name)
            }
            columns.add(needed, key, {name: size for name, (_, size, _) in sample.items()})
            # One member of the next sample is there already.
            last = max((offset for offset, _, _ in sample.values()), default=0)
            for offset in [offset for offset in kept if offset <= last]:
                del kept[offset]


def _located(members: Iterator[Member], digests: bool, kept: dict[int, bytes] | None) -> Iterator[Any]:
    """The members of a shard, in place of whose bytes comes where they are; `kept` gets the bytes."""
    digest = xxhash.xxh3_64_intdigest
    for name, offset, size, data in members:
        if kept is not None:
            kept[offset] = data
        yield name, offset, size, (offset, size, digest(data) if digests else 0)


class _Peeked:
    """A stream whose beginning can be looked at."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._head = b""

    def peek(self, size: int) -> bytes:
        """The first bytes, so many or more, unless the stream ends before."""
        while len(self._head) < size and (more := self._source.read(CHUNK)):
            self._head += more
        return self._head

    def read(self, size: int, /) -> bytes:
        head, self._head = self._head[:size], self._head[size:]
        return head or self._source.read(size)


def usable_index(
    url: str, index: str, options: IndexOptions = DEFAULT_INDEXING, *, unchanged: bool = False
) -> Sidecar | None:
    """Open the sidecar of a shard if there is one that still holds and has all that is asked for.

    With `unchanged`, a shard that has another time or ETag than when it was indexed needs a new index, even
    if it looks like a copy.
    """
    try:
        sidecar = open_sidecar(index, options.storage)
        info = stat(url, options.storage)
        sidecar.check_shard(info, url, options.storage)
    except (IndexingError, AccessDenied):  # some stores refuse what is not there
        return None
    if unchanged and sidecar.facts.same_version(info, url) is False:
        return None
    wanted = set() if options.meta is None else {column.name for column in options.meta.columns}
    there = set(sidecar.metadata)
    if not options.keep:
        return sidecar if (there, sidecar.facts.digests) == (wanted, options.digests) else None
    return sidecar if wanted <= there and sidecar.facts.digests >= options.digests else None


def keeping(options: IndexOptions, *indexes: str) -> IndexOptions:
    """Add to the options what the indexes hold that a shard has now, however old: columns and digests."""
    for index in indexes if options.keep else ():
        try:
            sidecar = open_sidecar(index, options.storage)
        except (IndexingError, AccessDenied):
            continue
        options = replace(
            options,
            digests=options.digests or sidecar.facts.digests,
            meta=_joined(options.meta, sidecar, index),
        )
    return options


def _joined(plan: MetaPlan | None, sidecar: Sidecar, index: str) -> MetaPlan | None:
    """The columns of a plan and of an index."""
    if not sidecar.metadata:
        return plan
    try:
        before = parse_meta(sidecar.metadata, on_bad="null" if sidecar.facts.bad_meta else "raise")
    except BadCondition as error:
        error.hint = "tarmac index --drop makes an index without the columns that this one has."
        raise error.at(url=index) from None
    if plan is None:
        return before
    names = {column.name for column in plan.columns}
    return replace(plan, columns=(*plan.columns, *(one for one in before.columns if one.name not in names)))
