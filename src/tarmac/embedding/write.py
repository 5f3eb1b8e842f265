"""Write a part: the records that a job has collected become arrays of vectors and a table of metadata.

Records are read twice, one at a time: first for the number of rows and the types of columns, then to write.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import xxhash

from tarmac.embedding.layout import KINDS, metadata_name, vectors_name
from tarmac.embedding.mapper import META
from tarmac.embedding.metadata import complete, to_table
from tarmac.indexing.promote import common_types
from tarmac.limits import Limits
from tarmac.samples.reader import SampleReader
from tarmac.storage import StorageOptions, WriteOptions, is_local, open_write
from tarmac.storage.types import DEFAULT_STORAGE, Sink
from tarmac.tar import TarOptions
from tarmac.tools.mappers.records import FIELD, Ragged, Records, from_arrow
from tarmac.tools.output import make_directory

ROWS = 1 << 14
"""Rows in a group of the table."""
_OWN = TarOptions(limits=Limits(member_bytes=1 << 62))
"""Records are what this job wrote, of any size."""


def write_part(
    records: str,
    directory: str,
    part: str,
    shard: str,
    write: WriteOptions,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> tuple[int, dict[str, int], dict[str, tuple[int, str]]]:
    """Write the files of a part; each appears whole.

    Return the number of rows, the dimensions, and the size and the digest of each file by its path in the directory.
    """
    count, kinds, types = _survey(records)
    with ExitStack() as stack:
        arrays = {kind: vectors_name(kind, part) for kind in kinds}
        table = metadata_name(part)
        files = {
            name: _opened(stack, f"{directory}/{name}", write, storage) for name in (*arrays.values(), table)
        }
        for kind, name in arrays.items():
            files[name].write(_header(count, kinds[kind]))
        rows = _Table(files[table])
        for read in _records(records):
            for kind, name in arrays.items():
                files[name].write(np.ascontiguousarray(read.columns[kind]).tobytes())
            rows.add(complete(read.keys, shard, _metadata(read), types))
        rows.close()
        for file in files.values():  # the table last: a part without one is not complete
            file.sink.commit()
        stack.pop_all()
    return count, kinds, {name: (file.tell(), file.digest.hexdigest()) for name, file in files.items()}


def _opened(stack: ExitStack, url: str, write: WriteOptions, storage: StorageOptions) -> _File:
    if is_local(url):
        make_directory(url)
    sink = open_write(url, storage, write)
    stack.callback(sink.abort)
    return _File(sink)


def _survey(path: str) -> tuple[int, dict[str, int], dict[str, Any]]:
    """Return the number of rows, the dimension of each kind, and the types of the columns of metadata."""
    count, kinds = 0, dict[str, int]()

    def tables() -> Iterator[Any]:
        nonlocal count
        for read in _records(path):
            count += len(read)
            columns = read.schema.columns
            kinds.update({kind: columns[kind].shape[0] or 0 for kind in KINDS if kind in columns})
            yield _metadata(read)

    types = common_types(tables())
    return count, kinds, types


def _records(path: str) -> Iterator[Records]:
    for sample in SampleReader([path], tar=_OWN):
        yield from_arrow(sample[FIELD])


def _metadata(read: Records) -> Any:
    meta = read.columns[META]
    assert isinstance(meta, Ragged)
    return to_table(meta[number].tobytes() for number in range(len(meta)))


def _header(rows: int, dimension: int) -> bytes:
    buffer = io.BytesIO()
    shape = {"descr": "<f2", "fortran_order": False, "shape": (rows, dimension)}
    np.lib.format.write_array_header_1_0(buffer, shape)
    return buffer.getvalue()


class _Table:
    """Writes tables of rows to a Parquet file, in groups of the same size however they arrive."""

    def __init__(self, file: _File) -> None:
        self._file = file
        self._pending: list[Any] = []
        self._rows = 0
        self._writer: Any = None

    def add(self, table: Any) -> None:
        self._pending.append(table)
        self._rows += len(table)
        if self._rows >= ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.concat_tables(self._pending)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, table.schema, compression="zstd")
        self._writer.write_table(table, row_group_size=len(table))
        self._pending, self._rows = [], 0

    def close(self) -> None:
        if self._pending:
            self._flush()
        self._writer.close()


class _File(io.RawIOBase):
    """A sink as a file, which Arrow can write to, and which knows its size and its digest."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.digest = xxhash.xxh3_64()
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        self.sink.write(content)
        self.digest.update(content)
        self._size += len(content)
        return len(content)

    def tell(self) -> int:
        return self._size
