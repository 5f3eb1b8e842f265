"""Write shards of records with an index of their rows, so that a dataset reads single rows.

A shard of records is a plain tar file with one member per record. The index of its rows is an ordinary sidecar whose
offsets point into the members: the value of a column of a row is a range of bytes of the shard. So datasets, loaders,
caches and stores treat rows as they treat samples. Columns of single numbers are metadata columns of the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tarmac.errors import BadManifest
from tarmac.indexing.entries import Entries, member_column
from tarmac.indexing.manifest import Manifest, Shard, read_manifest, write_manifest
from tarmac.indexing.sidecar import SUFFIX, make_sidecar, open_sidecar, sidecar_url, write_sidecar
from tarmac.runtime.types import Integers
from tarmac.samples.writer import TarWriter
from tarmac.storage import StorageOptions, WriteOptions, stat
from tarmac.storage.types import DEFAULT_STORAGE, DEFAULT_WRITE
from tarmac.tools.mappers.records import FIELD, Records, Schema, parse_record, to_arrow

INFO = "records"
"""The entry of a manifest's `info` that holds the schema of its records."""
LENGTH = "length"
"""The metadata column `COLUMN.length` has the number of elements of each value of a ragged column."""


def rows_url(shard: str) -> str:
    """Return the URL of the index of a shard's rows; `SHARD.arrow` would be the index of its records."""
    name, _, query = sidecar_url(shard).rpartition(SUFFIX)
    return f"{name}.rows{SUFFIX}{query}"


@dataclass
class RowIndex:
    """Where each row of the records of a shard is."""

    schema: Schema
    _keys: list[Any] = field(default_factory=list)
    _offsets: list[Integers] = field(default_factory=list)
    """For each record, the offsets of its values in the record, a row for each row."""
    _sizes: list[Integers] = field(default_factory=list)
    _scalars: dict[str, list[Any]] = field(default_factory=dict)
    rows: int = 0

    @property
    def _members(self) -> list[str]:
        return [name for name, column in self.schema.columns.items() if column.shape]

    def add(self, content: Any, batch: Any = None) -> None:
        """Append the rows of a record, whose bytes are not kept; `batch` is a view of them, if they were parsed."""
        import pyarrow as pa

        whole = pa.py_buffer(content)
        batch = parse_record(whole)[1] if batch is None else batch
        offsets, sizes = [], []
        for name in self._members:
            column, array = self.schema.columns[name], batch.column(name)
            width = np.dtype(column.dtype).itemsize
            values = array.values.buffers()[1]
            begin = values.address - whole.address if values is not None and values.size else 0
            if column.ragged:
                bounds = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1)
            else:
                bounds = np.arange(len(array) + 1) * (column.shape[0] or 0)
            offsets.append(begin + width * bounds[:-1])
            sizes.append(width * np.diff(bounds))
        self._keys.append(_copied(batch.column("key")))
        self._offsets.append(np.stack(offsets, axis=1))
        self._sizes.append(np.stack(sizes, axis=1))
        for name, column in self.schema.columns.items():
            if not column.shape:
                self._scalars.setdefault(name, []).append(_copied(batch.column(name)))
        self.rows += len(batch)

    def placed_at(self, offsets: Sequence[int]) -> _Placed:
        """Return the index of a shard whose records begin at these offsets."""
        starts = [np.array(start) for start in offsets]
        absolute = [start + each for start, each in zip(starts, self._offsets, strict=True)]
        return _Placed(self._members, self._keys, absolute, self._sizes)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata columns: numbers, and the lengths of ragged values."""
        import pyarrow as pa

        columns = {name: pa.concat_arrays(arrays) for name, arrays in self._scalars.items()}
        for number, name in enumerate(self._members):
            if self.schema.columns[name].ragged:
                width = np.dtype(self.schema.columns[name].dtype).itemsize
                lengths = np.concatenate([sizes[:, number] for sizes in self._sizes]) // width
                columns[f"{name}.{LENGTH}"] = pa.array(lengths.astype(np.uint32))
        return columns


@dataclass
class _Placed:
    """The keys and extents of rows, as a sidecar takes them."""

    names: list[str]
    keys: list[Any]
    offsets: list[Integers]
    sizes: list[Integers]

    def columns(self) -> dict[str, Any]:
        import pyarrow as pa

        offsets = np.concatenate(self.offsets).reshape(-1)
        sizes = np.concatenate(self.sizes).reshape(-1)
        rows = len(offsets) // len(self.names)
        keys = pa.concat_arrays(self.keys)
        members = member_column(
            np.arange(0, len(offsets) + 1, len(self.names), dtype=np.int32),
            np.tile(np.arange(len(self.names), dtype=np.int16), rows),
            self.names,
            offsets,
            sizes,
            np.zeros(len(offsets), np.uint64),
        )
        return {"key": _texts(keys), "members": members}

    def layout(self) -> list[str] | None:
        return self.names


def row_extents(content: bytes, offset: int) -> tuple[list[str], Integers]:
    """Return the keys of the rows of a record at an offset in its shard, and offset and size of each value."""
    index = RowIndex(parse_record(content)[0])
    index.add(content)
    rows = index.placed_at([offset])
    keys = [bytes(key.as_buffer()).decode("utf-8", "surrogateescape") for key in rows.keys[0]]
    return keys, np.stack([rows.offsets[0].reshape(-1), rows.sizes[0].reshape(-1)], axis=1)


def _copied(array: Any) -> Any:
    """Return an array that does not share the memory of its record."""
    import pyarrow as pa

    return pa.concat_arrays([array, array[:0]])


def _texts(keys: Any) -> Any:
    """Return keys as text, if they are valid UTF-8: then an index holds them as text."""
    import pyarrow as pa

    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return keys


class RecordShardWriter:
    """Writes records to a shard, and the index of their rows beside it, both when it is closed.

    >>> with RecordShardWriter("tokens-000000.tar", schema) as shard:
    ...     shard.write(records)
    >>> write_record_manifest([shard.shard], schema, "tokens.json")
    """

    shard: Shard
    """The shard as a manifest lists it, once it is written."""

    def __init__(
        self,
        url: str,
        schema: Schema,
        *,
        storage: StorageOptions = DEFAULT_STORAGE,
        write: WriteOptions = DEFAULT_WRITE,
    ) -> None:
        self.schema, self._storage = schema, storage
        self._rows = RowIndex(schema)
        self._writer = _Writer(url, encoder=False, index=True, storage=storage, write=write)
        self._writer.rows = self._rows
        self._records = 0

    def write(self, records: Records) -> None:
        """Append a record."""
        self.copy(to_arrow(records))

    def copy(self, record: Any, batch: Any = None) -> None:
        """Append the bytes of a record of this schema; `batch` is a view of them, if they were parsed."""
        self._writer.write({"__key__": f"{self._records:06d}", FIELD: record})
        self._rows.add(record, batch)
        self._records += 1

    def close(self) -> None:
        """Publish the shard and its index."""
        self._writer.close()
        url, index = self._writer.name, self._writer.sidecar
        assert url is not None
        assert index is not None
        facts = open_sidecar(index, self._storage).facts
        self.shard = Shard(url, facts.samples, facts.size, index, facts.fingerprint)

    def abort(self) -> None:
        """Discard the shard."""
        self._writer.abort()

    def __enter__(self) -> RecordShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class _Writer(TarWriter):
    """A writer whose index has the rows of its records."""

    rows: RowIndex
    _watched = False

    def _write_index(self, entries: Entries) -> str:
        assert self.name is not None
        info, url = stat(self.name, self._storage), rows_url(self.name)
        starts = entries.columns()["members"].values.field("offset").to_pylist()
        index, columns = self.rows.placed_at(starts), self.rows.metadata()
        content = make_sidecar(
            index, info, columns, digests=False, url=self.name, storage=self._storage, rows=True
        )
        write_sidecar(url, content, self._storage)
        return url


def write_record_manifest(
    shards: Sequence[Shard], schema: Schema, url: str, storage: StorageOptions = DEFAULT_STORAGE
) -> None:
    """Write the manifest of shards of records, with their schema."""
    write_manifest(Manifest(list(shards), info={INFO: schema.to_json()}), url, storage)


def read_record_manifest(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> tuple[Manifest, Schema]:
    """Read such a manifest."""
    manifest = read_manifest(url, storage)
    if not lists_records(manifest):
        raise BadManifest(
            "the manifest lists shards of samples, not of records.", url=url, hint="tarmac.Dataset reads it."
        )
    return manifest, record_schema(manifest, url)


def lists_records(manifest: Manifest) -> bool:
    """Return whether a manifest lists shards of records."""
    return isinstance(manifest.info, dict) and INFO in manifest.info


def record_schema(manifest: Manifest, url: str | None = None) -> Schema:
    """Return the schema of the records that a manifest lists; errors name its URL."""
    try:
        return Schema.from_json(manifest.info[INFO])
    except (ValueError, LookupError, TypeError) as error:
        raise BadManifest(f"the schema of the records is invalid ({error}).", url=url) from None
