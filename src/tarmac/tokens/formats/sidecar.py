"""Shards beside the data: one for each input shard, with a sample of tokens for each of its samples, by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from tarmac.indexing.manifest import Manifest, Shard, read_manifest, write_manifest
from tarmac.indexing.sidecar import open_sidecar, sidecar_url
from tarmac.jobs.task import Outcome
from tarmac.samples.writer import TarWriter
from tarmac.storage import stat
from tarmac.tokens.formats.base import Target, npy_head
from tarmac.tokens.info import MANIFEST
from tarmac.tokens.rows import Rows, to_records
from tarmac.tokens.survey import Piece, Pieces
from tarmac.tools.mappers.records import Array, iter_rows

SUFFIX = ".tokens.tar"


class SidecarFormat:
    """Writes NAME.tokens.tar for each input shard NAME.tar: the fields COLUMN.npy of each sample."""

    pieces: Pieces = "parts"

    def names(self, target: Target, pieces: Sequence[Piece]) -> list[str]:
        del target
        return [f"{piece.part}{SUFFIX}" for piece in pieces]

    def others(self, target: Target) -> list[str]:
        del target
        return [MANIFEST]

    def check(self, target: Target) -> None:
        """Accept all rows."""

    def write(self, target: Target, name: str, rows: Iterator[Rows], outcome: Outcome) -> None:
        url = target.directory + name
        with _Writer(url, encoder=False, index=True, storage=target.storage, write=target.write) as writer:
            for batch, _ in rows:
                for key, row in iter_rows(to_records(batch, target.schema)):
                    fields = {f"{column}.npy": _npy(np.asarray(value)) for column, value in row.items()}
                    writer.write({"__key__": key, **fields})
        outcome.outputs[url] = target.size(name)
        index = sidecar_url(url)
        outcome.companions[index] = stat(index, target.storage).size

    def finish(self, target: Target, outcomes: Sequence[Outcome]) -> None:
        names = [url.removeprefix(target.directory) for outcome in outcomes for url in outcome.outputs]
        shards = [self._shard(target, name) for name in names]
        write_manifest(Manifest(shards, "tokens"), target.directory + MANIFEST, target.storage)

    def _shard(self, target: Target, name: str) -> Shard:
        url = target.directory + name
        facts = open_sidecar(sidecar_url(url), target.storage).facts
        return Shard(url, facts.samples, facts.size, None, facts.fingerprint)

    def count(self, target: Target, names: Sequence[str]) -> int:
        """Compare the manifest with the indexes of all shards, and these with the sizes of the shards."""
        manifest, rows = read_manifest(target.directory + MANIFEST, target.storage), 0
        for shard, name in zip(manifest.shards, names, strict=True):
            known = self._shard(target, name)
            if (shard.samples, shard.size, target.size(name)) != (known.samples, known.size, known.size):
                return -1
            rows += known.samples
        return rows


class _Writer(TarWriter):
    """A writer that publishes nothing unless it is closed."""

    _watched = False


def _npy(value: Array) -> bytes:
    return _head(value.dtype.str, value.shape) + value.tobytes()


@lru_cache(maxsize=1 << 14)
def _head(dtype: str, shape: tuple[int, ...]) -> bytes:
    return npy_head(dtype, shape)


FORMAT = SidecarFormat()
