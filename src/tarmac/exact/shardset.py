"""The indexed shards of a dataset, opened on first use and closed when too many are open."""

from __future__ import annotations

import io
import shlex
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Generic, Protocol, TypeVar

from tarmac.display import display_url
from tarmac.errors import IndexDamaged, IndexingError, IndexMissing, IndexStale
from tarmac.exact.indexed import IndexedShard
from tarmac.indexing.build import REQUESTS, IndexOptions, find_or_make_index
from tarmac.indexing.manifest import Manifest, Shard
from tarmac.indexing.meta import MetaPlan
from tarmac.indexing.sidecar import Sidecar, open_sidecar, sidecar_url
from tarmac.runtime.lookahead import in_threads
from tarmac.samples.naming import Splitter, first_dot
from tarmac.storage import Cache, Source, StorageOptions, is_local, open_read, stat
from tarmac.storage.local import LocalSource
from tarmac.storage.locks import forget_in_children
from tarmac.storage.mapped import MAPS_KEEP_LOCKS, map_cached, map_local, max_descriptors, max_maps
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar import TarOptions
from tarmac.tar.reader import DEFAULT_OPTIONS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How the shards of a dataset are opened."""

    fields: frozenset[str] | None = None
    """Fields to read; None for all."""
    verify: bool = False
    """Compare each field with its digest in the index."""
    in_memory: bool = False
    """Read each shard once and keep it in memory."""
    cache: Cache | None = None
    """Keep whole remote shards on disk; without it they are read by ranges."""
    storage: StorageOptions = field(default=DEFAULT_STORAGE)
    meta: MetaPlan | None = None
    """Columns that the indexes must have."""
    tar: TarOptions = DEFAULT_OPTIONS
    split_name: Splitter | None = None
    """How member names are split into key and field; None accepts what the index has."""
    open_shards: int | None = None
    """Largest number of open shards; None for as many as the process can map."""
    mapped: bool = True
    """Map local shards; otherwise read them in pieces, which keeps less memory in use."""
    views: bool = False
    """Return memoryviews of mapped shards instead of bytes."""
    rows: bool = False
    """Whether the indexes are those of rows of records, as tokens have, instead of samples."""

    @property
    def indexing(self) -> IndexOptions:
        """The options for building an index that is missing."""
        split = self.split_name or first_dot
        return IndexOptions(
            digests=self.verify, meta=self.meta, split_name=split, tar=self.tar, storage=self.storage
        )


class Holder(Protocol):
    """An object that keeps references to open shards."""

    def forget_table(self) -> None: ...


class ShardSet:
    """The shards of one manifest. Thread-safe; a pickled copy starts with no open shards."""

    def __init__(self, manifest: Manifest, options: OpenOptions) -> None:
        self.manifest = manifest
        self.options = options
        self.close()

    def close(self) -> None:
        """Close all shards; they are opened again on access."""
        for holder in list(getattr(self, "_holders", ())):
            holder.forget_table()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        limit = self.max_open = self.options.open_shards or _max_open(self.options)
        """The largest number of open shards."""
        self._open: _Pool[IndexedShard] = _Pool(None if self.options.in_memory else limit)
        self._sidecars: _Pool[Sidecar] = _Pool(limit)

    def open(self, number: int) -> IndexedShard:
        """Return an open shard."""
        shard = self._open.get(number, self._open_shard)
        if shard.damaged and self.options.cache is not None:  # the cache has dropped it, too
            self._open.drop(number)
            shard = self._open.get(number, self._open_shard)
        return shard

    def stay_open(self, count: int, holder: Holder) -> bool:
        """Return whether `count` shards can stay open: those of a cache may be evicted.

        `holder` is notified when they are closed.
        """
        if self.options.cache is not None or (count > self.max_open and not self.options.in_memory):
            return False
        self._holders.add(holder)
        return True

    def retire(self, number: int) -> None:
        """Make a shard that will not be used again soon the first to be closed.

        A remote one is closed at once, since its index takes memory; a cached one is the first to be evicted, too.
        """
        if is_local(self.url(number)):
            self._open.retire(number)
            return
        self._open.drop(number)
        self._sidecars.drop(number)
        if self.options.cache is not None:
            self.options.cache.retire(self.url(number))

    def sidecar(self, number: int) -> Sidecar:
        """Return the index of a shard, without opening the shard."""
        shard = self._open.peek(number)
        return self._sidecars.get(number, self._checked_sidecar) if shard is None else shard.sidecar

    def sidecars(self, numbers: Sequence[int]) -> Iterator[Sidecar]:
        """Yield the indexes of several shards, in order; remote ones are fetched in parallel."""
        if all(is_local(self.url(number)) for number in numbers):
            return map(self.sidecar, numbers)
        return in_threads(self.sidecar, numbers, REQUESTS)

    def is_fetched(self, number: int) -> bool:
        """Return whether a shard is remote, and neither cached nor in memory."""
        options = self.options
        return options.cache is None and not options.in_memory and not is_local(self.url(number))

    def url(self, number: int) -> str:
        """Return the URL of a shard."""
        return self.manifest.shards[number].url

    def _open_shard(self, number: int) -> IndexedShard:
        options, url, sidecar = self.options, self.url(number), self.sidecar(number)
        info = stat(url, options.storage)
        source = self._source(url, info.version)
        try:
            sidecar.facts.check_size(info, url)
            if source is not None:
                # A shard that was downloaded or read into memory need not be requested again.
                content = None if is_local(url) else source.map() or source.content()
                sidecar.check_shard(info, url, options.storage, content)
            if isinstance(source, LocalSource):
                source = map_cached(source)
            return IndexedShard(
                url,
                sidecar,
                source,
                storage=options.storage,
                fields=options.fields,
                verify=options.verify,
                remote=None if is_local(url) else info,
                mapped=options.mapped,
                views=options.views,
            )
        except BaseException as error:
            if source is not None:
                if isinstance(error, IndexStale):
                    source.blame(error)
                source.close()
            raise

    def _source(self, url: str, version: str | None) -> Source | None:
        options = self.options
        if options.in_memory:
            with open_read(url, options.storage) as source:
                return InMemory(source)
        if options.cache is not None:
            return options.cache.open_read(url, options.storage, version)
        return map_local(url) if is_local(url) else None

    def _checked_sidecar(self, number: int) -> Sidecar:
        """Return the index that the manifest names; if it names none, find or build one."""
        shard = self.manifest.shards[number]
        if shard.fingerprint is None:
            sidecar, _ = find_or_make_index(shard.url, self.options.indexing)
        else:
            sidecar = _named_sidecar(shard, self.options.storage)
        if len(sidecar) != shard.samples:
            raise IndexDamaged(
                f"expected {shard.samples} samples as in the manifest, got {len(sidecar)}.", url=shard.url
            )
        self._check_contents(sidecar, shard.url)
        return sidecar

    def _check_contents(self, sidecar: Sidecar, url: str) -> None:
        """Raise if an existing index does not have what the options ask for."""
        if sidecar.facts.rows and not self.options.rows:
            what = "this is an index of the rows of records, not of samples."
            raise IndexingError(what, url=url, hint="tarmac.Tokens(MANIFEST) reads tokens.")
        meta, split = self.options.meta, self.options.split_name
        missing = {column.name for column in meta.columns} - set(sidecar.metadata) if meta else set()
        if missing:
            names = ",".join(sorted(missing))
            raise IndexingError(
                f"the index has no columns {names}.", url=url, hint=f"tarmac index SHARDS --meta {names}"
            )
        if split is not None and not sidecar.split_by(split):
            raise IndexingError(
                "the index was built with a different `split_name`.",
                url=url,
                hint="leave `split_name` out, or remove the index, SHARD.arrow, and run "
                "tarmac index SHARDS -o manifest.json with this `split_name`.",
            )

    def after_fork(self) -> None:
        """Open shards again in a forked process; those in memory are shared with the parent."""
        inherited = self._open
        self.close()
        if self.options.in_memory:
            self._open = inherited

    def __getstate__(self) -> dict[str, Any]:
        return {"manifest": self.manifest, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.close()


def _max_open(options: OpenOptions) -> int:
    """Return how many shards can be open: each takes two maps, and one from a cache may take two descriptors."""
    shards = max_maps() // 4
    return shards if options.cache is None or MAPS_KEEP_LOCKS else min(shards, max_descriptors() // 4)


def _named_sidecar(shard: Shard, storage: StorageOptions) -> Sidecar:
    url = shard.index or sidecar_url(shard.url)
    try:
        sidecar = open_sidecar(url, storage)
    except IndexMissing as error:
        shown = shlex.quote(display_url(shard.url))
        error.hint = f"tarmac index {shown}, or copy the index together with its shard."
        raise
    if sidecar.facts.fingerprint != shard.fingerprint:
        raise IndexDamaged("the index does not match the fingerprint in the manifest.", url=url)
    return sidecar


class _Pool(Generic[T]):
    """Objects by number, created on first use; retired and then the oldest ones are dropped when there are too many.

    A dropped shard is closed when the last thread stops reading from it. Several threads can create
    different objects in parallel, but only one creates each.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._items: OrderedDict[int, T] = OrderedDict()
        self.forget()
        forget_in_children(self)

    def forget(self) -> None:
        """Replace the locks: a forked process has none of the threads that would release them."""
        self._lock = threading.Lock()
        self._creating: dict[int, threading.Lock] = {}

    def __len__(self) -> int:
        return len(self._items)

    def peek(self, number: int) -> T | None:
        """Return the object if it exists."""
        return self._items.get(number)

    def get(self, number: int, create: Callable[[int], T]) -> T:
        """Return the object, creating it if necessary."""
        item = self._items.get(number)
        if item is None:
            with self._lock:
                lock = self._creating.setdefault(number, threading.Lock())
            with lock:
                item = self._items.get(number)
                if item is None:
                    self._make_room(1)  # first: an entry of a cache that is open cannot be evicted
                    item = create(number)
                    with self._lock:
                        self._creating.pop(number, None)
                        self._items[number] = item
                    self._make_room(0)
        return item

    def _make_room(self, more: int) -> None:
        with self._lock:
            while self._limit is not None and self._items and len(self._items) + more > self._limit:
                self._items.popitem(last=False)

    def retire(self, number: int) -> None:
        """Make an object the first to be dropped."""
        with self._lock:
            if number in self._items:
                self._items.move_to_end(number, last=False)

    def drop(self, number: int) -> None:
        """Remove an object."""
        with self._lock:
            self._items.pop(number, None)


class InMemory(Source):
    """A shard that was read into memory."""

    def __init__(self, stream: Source | IO[bytes]) -> None:
        buffer = io.BytesIO()
        while chunk := stream.read(16 << 20):
            buffer.write(chunk)
        self._content = buffer.getvalue()

    def content(self) -> bytes:
        return self._content
