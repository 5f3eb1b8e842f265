"""The indexed shards of a dataset, opened when they are first needed and let go when others are."""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from tarmac.errors import IndexDamaged, IndexMissing, IndexStale
from tarmac.exact.indexed import IndexedShard
from tarmac.indexing.build import REQUESTS, IndexOptions, find_or_make_index
from tarmac.indexing.manifest import Manifest, Shard
from tarmac.indexing.sidecar import Sidecar, open_sidecar, sidecar_url
from tarmac.runtime.lookahead import in_threads
from tarmac.storage import Cache, Source, StorageOptions, is_local, open_read, stat
from tarmac.storage.types import DEFAULT_STORAGE

__all__ = ["Opening", "ShardSet"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opening:
    """How the shards of a dataset are opened."""

    fields: frozenset[str] | None = None
    verify: bool = False
    """Compare each field with its digest in the index."""
    in_memory: bool = False
    """Read each shard once and keep it."""
    cache: Cache | None = None
    """Keep remote shards on disk, whole; without it they are read by ranges."""
    storage: StorageOptions = field(default=DEFAULT_STORAGE)
    open_shards: int = 128
    """How many are kept open; each takes three descriptors."""
    mapped: bool = True
    """Map local shards; else they are read piece by piece, so that little memory is in use."""
    views: bool = False
    """Give out memoryviews of mapped shards, for whoever only passes them on."""

    @property
    def indexing(self) -> IndexOptions:
        """How a shard is indexed that has no index yet."""
        return IndexOptions(digests=self.verify, storage=self.storage)


class Holder(Protocol):
    """Someone who holds on to open shards."""

    def forget_table(self) -> None:
        """Let go of them."""


class ShardSet:
    """The shards of one manifest. Safe to use from several threads; pickles without what it has open."""

    def __init__(self, manifest: Manifest, opening: Opening) -> None:
        self.manifest = manifest
        self.opening = opening
        self.close()

    def close(self) -> None:
        """Let go of all shards; they open again when needed."""
        for holder in list(getattr(self, "_holders", ())):
            holder.forget_table()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        most = self.opening.open_shards
        self._open: _Kept[IndexedShard] = _Kept(None if self.opening.in_memory else most)
        self._sidecars: _Kept[Sidecar] = _Kept(most)

    def open(self, number: int) -> IndexedShard:
        """Return a shard, opened now or before."""
        found = self._open.get(number, self._opened)
        if found.damaged and self.opening.cache is not None:  # the cache has let go of it, so may we
            self._open.drop(number)
            found = self._open.get(number, self._opened)
        return found

    def open_now(self, numbers: Sequence[int], holder: Holder) -> list[IndexedShard] | None:
        """Return shards if all of them are open and stay so: those of a cache may have to go.

        Whoever holds on to them is told when they are to be let go.
        """
        if len(self._open) < len(numbers) or self.opening.cache is not None:
            return None
        found = [self._open.there(number) for number in numbers]
        if None in found:
            return None
        self._holders.add(holder)
        return found  # type: ignore[return-value]

    def let_go(self, number: int) -> None:
        """Close a shard when nobody reads from it any more."""
        self._open.drop(number)

    def sidecar(self, number: int) -> Sidecar:
        """Return the index of a shard, without opening the shard unless it is open."""
        found = self._open.there(number)
        return self._sidecars.get(number, self._checked_sidecar) if found is None else found.sidecar

    def sidecars(self, numbers: Sequence[int]) -> Iterator[Sidecar]:
        """The indexes of several shards, in order; those in a store are fetched several at a time."""
        if all(is_local(self.url(number)) for number in numbers):
            return map(self.sidecar, numbers)
        return in_threads(self.sidecar, numbers, REQUESTS)

    def url(self, number: int) -> str:
        """Where a shard is."""
        return self.manifest.shards[number].url

    def _opened(self, number: int) -> IndexedShard:
        opening, url, sidecar = self.opening, self.url(number), self.sidecar(number)
        info = stat(url, opening.storage)
        source = self._source(url, info.version)
        try:
            # What was downloaded or read into memory anyway need not be asked for again.
            content = None if source is None or is_local(url) else source.map() or source.content()
            compared = sidecar.check_shard(info, url, opening.storage, content)
            return IndexedShard(
                url,
                sidecar,
                source,
                storage=opening.storage,
                fields=opening.fields,
                verify=opening.verify,
                version=info.version,
                mapped=opening.mapped,
                views=opening.views,
                compare_names=not compared,
            )
        except BaseException as error:
            if source is not None:
                if isinstance(error, IndexStale):
                    source.blame(error)
                source.close()
            raise

    def _source(self, url: str, version: str | None) -> Source | None:
        opening = self.opening
        if opening.in_memory:
            with open_read(url, opening.storage) as source:
                return _Held(source)
        if opening.cache is not None:
            return opening.cache.open_read(url, opening.storage, version)
        return open_read(url, opening.storage) if is_local(url) else None

    def _checked_sidecar(self, number: int) -> Sidecar:
        """The sidecar that the manifest speaks of; one that is missing is made, if the manifest had none."""
        shard = self.manifest.shards[number]
        if shard.fingerprint is None:
            sidecar, _ = find_or_make_index(shard.url, self.opening.indexing)
        else:
            sidecar = _named_sidecar(shard, self.opening.storage)
        if len(sidecar) != shard.samples:
            raise IndexDamaged(
                f"the manifest says {shard.samples} samples, the shard has {len(sidecar)}.", url=shard.url
            )
        return sidecar

    def after_fork(self) -> None:
        """Open shards anew in a forked process; what is held in memory is shared with the parent."""
        held = self._open
        self.close()
        if self.opening.in_memory:
            self._open = held

    def __getstate__(self) -> dict[str, Any]:
        return {"manifest": self.manifest, "opening": self.opening}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.close()


def _named_sidecar(shard: Shard, storage: StorageOptions) -> Sidecar:
    url = shard.index or sidecar_url(shard.url)
    try:
        sidecar = open_sidecar(url, storage)
    except IndexMissing as error:
        error.hint = f"tarmac index {shard.url}, or copy the index together with its shard."
        raise
    if sidecar.facts.fingerprint != shard.fingerprint:
        raise IndexDamaged("this index is not the one that the manifest was made from.", url=url)
    return sidecar


class _Kept(Generic[T]):
    """Things by number, made when they are first asked for; of too many, those made first are let go.

    A shard that is let go is closed when the last thread that reads from it is done. Several threads may
    make different things at a time, but none makes what another one is making.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._things: dict[int, T] = {}
        self.renew_locks()
        _alive.add(self)

    def renew_locks(self) -> None:
        """Forget locks: a forked process has none of the threads that would let go of them."""
        self._lock = threading.Lock()
        self._making: dict[int, threading.Lock] = {}

    def __len__(self) -> int:
        return len(self._things)

    def there(self, number: int) -> T | None:
        """Return what was made before, if it is still there."""
        return self._things.get(number)

    def get(self, number: int, make: Callable[[int], T]) -> T:
        """Return what was made before, or make it now."""
        found = self._things.get(number)
        if found is None:
            with self._lock:
                lock = self._making.setdefault(number, threading.Lock())
            with lock:
                found = self._things.get(number)
                if found is None:
                    found = make(number)
                    self._keep(number, found)
        return found

    def drop(self, number: int) -> None:
        """Do not keep this one."""
        with self._lock:
            self._things.pop(number, None)

    def _keep(self, number: int, thing: T) -> None:
        with self._lock:
            self._making.pop(number, None)
            self._things[number] = thing
            if self._most is not None and len(self._things) > self._most:
                del self._things[next(iter(self._things))]


_alive: weakref.WeakSet[_Kept[Any]] = weakref.WeakSet()


def _in_child() -> None:
    for kept in _alive:
        kept.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class _Held(Source):
    """A shard that was read into memory."""

    def __init__(self, source: Source) -> None:
        parts = io.BytesIO()
        while chunk := source.read(16 << 20):
            parts.write(chunk)
        self._content = parts.getvalue()

    def content(self) -> bytes:
        """All of it."""
        return self._content
