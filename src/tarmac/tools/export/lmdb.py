"""LMDB: one file that maps `key.field`, the name of the member in the shard, to the bytes of the field.

Read it with `lmdb.open(path, subdir=False, lock=False, readonly=True)`. In the order of the names, the fields of a
sample are adjacent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tarmac.errors import BadName, DuplicateField, WriteError
from tarmac.extras import import_extra
from tarmac.samples.grouping import Sample
from tarmac.tools.export.formats import RowOptions, Writer, payload
from tarmac.tools.output import fields_of

MAX_SAMPLES = 1_000
"""Samples per transaction."""
MAX_BYTES = 64 << 20
"""Approximate bytes per transaction."""
MAP = 256 << 20
"""Initial size of the memory map, which grows."""


class LmdbWriter(Writer):
    """Writes a database, in transactions of several samples."""

    def __init__(self, path: str, row: RowOptions) -> None:
        self._lmdb = import_extra("lmdb", "lmdb", "LMDB files")
        # No other process uses the file yet, so it needs neither locks nor syncs.
        options = {"subdir": False, "lock": False, "sync": False, "map_size": MAP}
        try:
            self._database: Any = self._lmdb.open(path, **options)
        except self._lmdb.Error as error:
            raise WriteError(f"the database cannot be created: {error}.") from error
        self._max_name: int = self._database.max_key_size()
        self._pending: dict[bytes, bytes] = {}
        self._samples = self._bytes = 0

    def add(self, sample: Sample) -> int:
        key, size = sample["__key__"], payload(sample)
        entries = {}
        for field, data in fields_of(sample).items():
            name = f"{key}.{field}".encode("utf-8", "surrogateescape")
            if len(name) > self._max_name:
                raise BadName(f"expected a name of at most {self._max_name} bytes, got {len(name)}.")
            entries[name] = bytes(data)
        self._check_new(entries)
        self._pending |= entries
        self._samples += 1
        self._bytes += size
        if self._samples >= MAX_SAMPLES or self._bytes >= MAX_BYTES:
            self._flush()
        return size

    def _check_new(self, names: Iterable[bytes]) -> None:
        """Raise before any part of a sample is written, so that it can be skipped."""
        with self._database.begin(buffers=True) as reader:
            for name in names:
                if name in self._pending or reader.get(name) is not None:
                    text = name.decode("utf-8", "replace")
                    hint = "keys must be unique: tarmac copy --rekey '{i:09d}'."
                    raise DuplicateField(f"another sample has {text}.", hint=hint)

    def _flush(self) -> None:
        """Write what is pending in one transaction; retry with a larger map if it is full."""
        while True:
            try:
                with self._database.begin(write=True) as transaction:
                    for name, data in self._pending.items():
                        transaction.put(name, data)
            except self._lmdb.MapFullError:
                self._database.set_mapsize(2 * self._database.info()["map_size"] + 2 * self._bytes)
            except self._lmdb.Error as error:
                raise WriteError(f"the database cannot be written: {error}.") from error
            else:
                break
        self._pending, self._samples, self._bytes = {}, 0, 0

    def finish(self) -> None:
        if self._pending:
            self._flush()
        self._database.sync(True)  # noqa: FBT003 - although opened without syncs
        self._database.close()

    def close(self) -> None:
        self._database.close()
