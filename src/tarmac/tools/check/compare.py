"""Compare a shard with its index and its entry in a manifest, while it is read."""

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

LocatedField = tuple[int, int, bytes]
"""Offset, size and bytes of a field."""


def entries_of(manifest: Manifest, urls: Sequence[str]) -> list[Shard | None]:
    """Return the entry of each of these shards in the manifest."""
    known = {_identity(shard.url): shard for shard in manifest.shards}
    return [known.get(_identity(url)) for url in urls]


def _identity(url: str) -> str:
    return os.path.abspath(local_path(url)) if is_local(url) else url


class Comparison:
    """Compare sample by sample; the index of another shard is reported at the first difference."""

    def __init__(self, url: str, entry: Shard | None, *, need_digests: bool, storage: StorageOptions) -> None:
        self._url, self._entry, self._storage = url, entry, storage
        self._need_digests = need_digests
        self._sidecar: Sidecar | None = None
        self._row = 0

    @property
    def _indexed(self) -> bool:
        entry = self._entry
        return self._need_digests or (entry is not None and bool(entry.index or entry.fingerprint))

    def begin(self) -> Iterator[TarmacError]:
        """Open the index, and yield an error if it obviously belongs to another shard."""
        entry = self._entry
        if not self._indexed:
            return
        url = (entry.index if entry else None) or sidecar_url(self._url)
        try:
            sidecar = open_sidecar(url, self._storage)
        except TarmacError as error:
            yield error
            return
        if entry is not None and entry.fingerprint not in (None, sidecar.facts.fingerprint):
            yield IndexDamaged("the index is not the one that the manifest describes.", url=url)
        if self._need_digests and sidecar.digests is None:
            yield IndexMissing("the index has no digests.", url=url, hint="tarmac index --digests SHARDS")
        try:
            sidecar.check_shard(stat(self._url, self._storage), self._url, self._storage)
        except IndexStale as error:
            yield error
        self._sidecar = sidecar

    def sample(self, key: str, fields: Mapping[str, LocatedField]) -> Iterator[TarmacError]:
        """Yield the differences of one sample."""
        sidecar, row = self._sidecar, self._row
        self._row += 1
        if sidecar is None:
            return
        if row >= len(sidecar) or sidecar.key(row) != key:
            self._sidecar = None
            expected = f'"{sidecar.key(row)}"' if row < len(sidecar) else "no sample"
            yield IndexStale(f"the index has {expected} at row {row}.", url=self._url, key=key)
            return
        begin, end = int(sidecar.starts[row]), int(sidecar.starts[row + 1])
        indexed = {sidecar.fields[sidecar.field_of[member]]: member for member in range(begin, end)}
        for field in sorted(indexed.keys() ^ fields.keys()):
            yield IndexStale(
                f'the index and the shard disagree on the field "{field}".', url=self._url, key=key
            )
        for field in indexed.keys() & fields.keys():
            yield from self._field(sidecar, indexed[field], key, field, fields[field])

    def _field(
        self, sidecar: Sidecar, member: int, key: str, field: str, located: LocatedField
    ) -> Iterator[TarmacError]:
        offset, size, data = located
        if (offset, size) != (int(sidecar.offsets[member]), int(sidecar.sizes[member])):
            what = f'"{field}" is {size} bytes at {offset}, the index has '
            what += f"{sidecar.sizes[member]} at {sidecar.offsets[member]}."
            yield IndexStale(what, url=self._url, key=key)
        elif sidecar.digests is not None and xxhash.xxh3_64_intdigest(data) != int(sidecar.digests[member]):
            what = f'the bytes of "{field}" differ from those that were indexed.'
            yield DigestMismatch(
                what, url=self._url, key=key, offset=offset, hint="download or write the shard again."
            )

    def end(self, samples: int) -> Iterator[TarmacError]:
        """Yield what is missing at the end."""
        entry: Any = self._entry
        if entry is not None and entry.samples != samples:
            yield IndexStale(f"the manifest has {entry.samples} samples, the shard {samples}.", url=self._url)
        if self._sidecar is not None and len(self._sidecar) > samples:
            what = f"the index has {len(self._sidecar)} samples, the shard {samples}."
            yield IndexStale(what, url=self._url)
