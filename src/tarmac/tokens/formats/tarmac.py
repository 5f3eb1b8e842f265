"""Shards of records with an index of their rows, and a manifest: what `tarmac.Dataset` reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tarmac.errors import UsageError
from tarmac.indexing.manifest import Shard
from tarmac.indexing.sidecar import open_sidecar
from tarmac.jobs.task import Outcome
from tarmac.storage import stat
from tarmac.tokens.formats.base import Target
from tarmac.tokens.info import MANIFEST
from tarmac.tokens.rows import Rows, to_records
from tarmac.tokens.survey import Piece, Pieces
from tarmac.tools.mappers.shards import (
    RecordShardWriter,
    read_record_manifest,
    rows_url,
    write_record_manifest,
)

_SHARD = "shard"
"""A detail of an outcome: what the manifest has about the shard."""
_FEW = 16
"""A record is joined to others if more than this many of its size are within the limits."""
_HEAD = 1 << 14
"""What a record has besides its rows, at most."""


class TarmacFormat:
    """Writes `tokens-000000.tar`, … and `tokens.json`."""

    pieces: Pieces = "shards"

    def names(self, target: Target, pieces: Sequence[Piece]) -> list[str]:
        del target
        return [f"tokens-{number:06d}.tar" for number in range(len(pieces))]

    def others(self, target: Target) -> list[str]:
        del target
        return [MANIFEST]

    def check(self, target: Target) -> None:
        if not any(column.shape for column in target.schema.columns.values()):
            names = ", ".join(target.schema.columns)
            what = f"expected a column of tokens or vectors, got numbers alone: {names}."
            raise UsageError(what, field="format", hint='`format`="npy" writes an array for each column.')

    def write(self, target: Target, name: str, rows: Iterator[Rows], outcome: Outcome) -> None:
        url, schema = target.directory + name, target.schema
        with RecordShardWriter(url, schema, storage=target.storage, write=target.write) as shard:
            for as_they_are, some in itertools.groupby(rows, lambda each: _is_large(each, target)):
                if as_they_are:
                    for batch, record in some:
                        shard.copy(record, batch)
                else:
                    for batch in target.batches(some):
                        shard.write(to_records(batch, schema))
        facts = shard.shard
        outcome.details[_SHARD] = {
            "samples": facts.samples,
            "size": facts.size,
            "fingerprint": facts.fingerprint,
        }
        outcome.outputs[url] = target.size(name)
        index = rows_url(url)
        outcome.companions[index] = stat(index, target.storage).size

    def finish(self, target: Target, outcomes: Sequence[Outcome]) -> None:
        shards = [
            Shard(url, index=rows_url(url), **outcome.details[_SHARD])
            for outcome in outcomes
            for url in outcome.outputs
        ]
        write_record_manifest(shards, target.schema, target.directory + MANIFEST, target.storage)

    def _shard(self, target: Target, name: str) -> Shard:
        url = target.directory + name
        facts = open_sidecar(rows_url(url), target.storage).facts
        return Shard(url, facts.samples, facts.size, rows_url(url), facts.fingerprint)

    def count(self, target: Target, names: Sequence[str]) -> int:
        """Compare the manifest with the indexes of all shards, and these with the sizes of the shards."""
        manifest, _ = read_record_manifest(target.directory + MANIFEST, target.storage)
        rows = 0
        for shard, name in zip(manifest.shards, names, strict=True):
            known = self._shard(target, name)
            if (shard.samples, shard.size, target.size(name)) != (known.samples, known.size, known.size):
                return -1
            rows += known.samples
        return rows


def _is_large(rows: Rows, target: Target) -> bool:
    """Return whether rows are a record that is copied as it is, since joining it to others would gain little."""
    batch, record = rows
    if record is None or len(batch) > target.record_rows or len(record) > target.record_bytes + _HEAD:
        return False
    return len(batch) * _FEW >= target.record_rows or len(record) * _FEW >= target.record_bytes


FORMAT = TarmacFormat()
