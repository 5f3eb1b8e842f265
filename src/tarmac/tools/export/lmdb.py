"""LMDB: one file of `key.field` to the bytes of that field, as the member of the shard was called.

Read it with `lmdb.open(path, subdir=False, lock=False, readonly=True)`; the fields of a sample are
neighbours in the order of the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tarmac.errors import BadName, DuplicateField, WriteError
from tarmac.runtime.extras import import_extra
from tarmac.samples.grouping import Sample
from tarmac.tools.export.form import Shape, Writer, payload

__all__ = ["open_writer"]

SAMPLES = 1_000
"""Samples of a transaction, at most, ..."""
BYTES = 64 << 20
"""... and about how many bytes."""
MAP = 256 << 20
"""Room in the address space to begin with; it grows."""


def open_writer(name: str, path: str, shape: Shape) -> Writer:
    """Begin a database in a file that nobody else uses yet."""
    del name, shape
    return _Database(path)


class _Database(Writer):
    def __init__(self, path: str) -> None:
        self._lmdb = import_extra("lmdb", "lmdb", "LMDB files")
        # Nobody else knows the file yet: no locks, and the disk need not keep up.
        options = {"subdir": False, "lock": False, "sync": False, "map_size": MAP}
        try:
            self._database: Any = self._lmdb.open(path, **options)
        except self._lmdb.Error as error:
            raise WriteError(f"the database could not be begun: {error}.") from error
        self._longest: int = self._database.max_key_size()
        self._waiting: dict[bytes, bytes] = {}
        self._samples = self._bytes = 0

    def add(self, sample: Sample) -> int:
        key, size = sample["__key__"], payload(sample)
        entries = {}
        for field, data in sample.items():
            if field[:2] != "__":
                name = f"{key}.{field}".encode("utf-8", "surrogateescape")
                if len(name) > self._longest:
                    raise BadName(f"a name of {len(name)} bytes; LMDB takes {self._longest}.")
                entries[name] = bytes(data)
        self._refuse_known(entries)
        self._waiting |= entries
        self._samples += 1
        self._bytes += size
        if self._samples >= SAMPLES or self._bytes >= BYTES:
            self._flush()
        return size

    def _refuse_known(self, names: Iterable[bytes]) -> None:
        """Refuse a sample before any of it is taken in, so that it can be left out."""
        with self._database.begin(buffers=True) as reader:
            for name in names:
                if name in self._waiting or reader.get(name) is not None:
                    text = name.decode("utf-8", "replace")
                    hint = "keys have to differ: tarmac copy --rekey '{i:09d}'."
                    raise DuplicateField(f"another sample has {text}, too.", hint=hint)

    def _flush(self) -> None:
        """Write what is waiting, in one transaction; where the map is too small, again in a larger one."""
        while True:
            try:
                with self._database.begin(write=True) as transaction:
                    for name, data in self._waiting.items():
                        transaction.put(name, data)
            except self._lmdb.MapFullError:
                self._database.set_mapsize(2 * self._database.info()["map_size"] + 2 * self._bytes)
            except self._lmdb.Error as error:
                raise WriteError(f"the database could not be written: {error}.") from error
            else:
                break
        self._waiting, self._samples, self._bytes = {}, 0, 0

    def finish(self) -> None:
        if self._waiting:
            self._flush()
        self._database.sync(True)  # noqa: FBT003 - also where it was opened without
        self._database.close()

    def close(self) -> None:
        self._database.close()
