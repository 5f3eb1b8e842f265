"""Compare a shard that is read with what its index and its manifest say of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import xxhash

from tarmac.errors import DigestMismatch, IndexDamaged, IndexMissing, IndexStale, TarmacError
from tarmac.indexing.manifest import Manifest, Shard
from tarmac.indexing.sidecar import Sidecar, open_sidecar, sidecar_url
from tarmac.storage import StorageOptions, is_local, stat
from tarmac.storage.local import local_path

__all__ = ["Comparison", "entries_of", "Place"]

Place = tuple[int, int, bytes]
"""Where a field is, how large it is, and its bytes."""


def entries_of(manifest: Manifest, urls: Sequence[str]) -> list[Shard | None]:
    """What the manifest says of each of these shards."""
    known = {_plain(shard.url): shard for shard in manifest.shards}
    return [known.get(_plain(url)) for url in urls]


def _plain(url: str) -> str:
    return os.path.abspath(local_path(url)) if is_local(url) else url


class Comparison:
    """Compares sample by sample; of an index that is of another shard the first difference is told."""

    def __init__(self, url: str, told: Shard | None, *, need_digests: bool, storage: StorageOptions) -> None:
        self._url, self._told, self._storage = url, told, storage
        self._need_digests = need_digests
        self._sidecar: Sidecar | None = None
        self._row = 0

    @property
    def _indexed(self) -> bool:
        told = self._told
        return self._need_digests or (told is not None and bool(told.index or told.fingerprint))

    def begin(self) -> Iterator[TarmacError]:
        """Open the index, and say whether it is of this shard, as far as that shows from outside."""
        told = self._told
        if not self._indexed:
            return
        place = (told.index if told else None) or sidecar_url(self._url)
        try:
            sidecar = open_sidecar(place, self._storage)
        except TarmacError as error:
            yield error
            return
        if told is not None and told.fingerprint not in (None, sidecar.facts.fingerprint):
            yield IndexDamaged("this index is not the one that the manifest was made from.", url=place)
        if self._need_digests and sidecar.digests is None:
            yield IndexMissing("the index has no digests.", url=place, hint="tarmac index --digest SHARDS")
        try:
            sidecar.check_shard(stat(self._url, self._storage), self._url, self._storage)
        except IndexStale as error:
            yield error
        self._sidecar = sidecar

    def sample(self, key: str, places: Mapping[str, Place]) -> Iterator[TarmacError]:
        """What is different in one sample."""
        sidecar, row = self._sidecar, self._row
        self._row += 1
        if sidecar is None:
            return
        if row >= len(sidecar) or sidecar.key(row) != key:
            self._sidecar = None
            there = f'"{sidecar.key(row)}"' if row < len(sidecar) else "nothing"
            yield IndexStale(f"the index has {there} as sample {row}.", url=self._url, key=key)
            return
        begin, end = int(sidecar.starts[row]), int(sidecar.starts[row + 1])
        indexed = {sidecar.fields[sidecar.field_of[place]]: place for place in range(begin, end)}
        for field in sorted(indexed.keys() ^ places.keys()):
            yield IndexStale(
                f'the index and the shard disagree on a field "{field}".', url=self._url, key=key
            )
        for field in indexed.keys() & places.keys():
            yield from self._field(sidecar, indexed[field], key, field, places[field])

    def _field(
        self, sidecar: Sidecar, place: int, key: str, field: str, found: Place
    ) -> Iterator[TarmacError]:
        offset, size, data = found
        if (offset, size) != (int(sidecar.offsets[place]), int(sidecar.sizes[place])):
            what = f'"{field}" is {size} bytes at {offset}, the index has '
            what += f"{sidecar.sizes[place]} at {sidecar.offsets[place]}."
            yield IndexStale(what, url=self._url, key=key)
        elif sidecar.digests is not None and xxhash.xxh3_64_intdigest(data) != int(sidecar.digests[place]):
            what = f'the bytes of "{field}" are not those that were indexed.'
            yield DigestMismatch(what, url=self._url, key=key, offset=offset, hint="fetch or write it again.")

    def end(self, samples: int) -> Iterator[TarmacError]:
        """What is missing when all was read."""
        told: Any = self._told
        if told is not None and told.samples != samples:
            yield IndexStale(f"the manifest says {told.samples} samples, there are {samples}.", url=self._url)
        if self._sidecar is not None and len(self._sidecar) > samples:
            what = f"the index has {len(self._sidecar)} samples, the shard {samples}."
            yield IndexStale(what, url=self._url)
