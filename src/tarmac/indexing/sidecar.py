"""Read and write the index of one shard: an Arrow file beside the shard, memory-mapped, never parsed.

It has one row per sample: `key`, `members` (a list of field, offset, size, digest) and metadata columns such as
`jpg.width`. Facts about the shard as a whole are JSON in the metadata of the schema. See FORMAT.md.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.errors import IndexDamaged, IndexMissing, NotFound, TarmacError
from tarmac.indexing.facts import Facts, facts_to_json, parse_facts
from tarmac.indexing.names import check_all_names
from tarmac.indexing.sampled_digests import Held, sample_digests
from tarmac.runtime.types import Integers
from tarmac.storage import (
    ObjectInfo,
    StorageOptions,
    WriteOptions,
    is_local,
    read_all,
    scheme_of,
    write_all,
)
from tarmac.storage.local import local_path
from tarmac.storage.mapped import map_local
from tarmac.storage.types import DEFAULT_STORAGE

SUFFIX = ".arrow"
_METADATA = b"tarmac"
_SCANS = 8
"""Keys found by scanning before a table of all keys is built."""


def sidecar_url(shard: str) -> str:
    """Return the URL of a shard's sidecar, beside it; the query and fragment of a web URL stay at the end."""
    if is_local(shard):
        return f"{shard}{SUFFIX}"
    # A server never sees a fragment, so a suffix after it would name the shard itself.
    end = shard.find("#") if scheme_of(shard) in ("http", "https") else -1
    path = shard if end < 0 else shard[:end]
    name = path.partition("?")[0]
    return f"{name}{SUFFIX}{shard[len(name) :]}"


class Sidecar:
    """The index of one shard. Its arrays are views of the mapped file, in the order of the shard."""

    def __init__(self, batch: Any, facts: Facts) -> None:
        self.facts = facts
        self._batch = batch
        members = batch.column("members").values
        field = members.field("field")
        self._field_names = field.dictionary
        self.fields = [_text(name) for name in self._field_names.to_pylist()]
        self.field_of: NDArray[np.int16] = _numbers(field.indices)
        self.offsets: Integers = _numbers(members.field("offset"))
        self.sizes: Integers = _numbers(members.field("size"))
        self.digests: NDArray[np.uint64] | None = _numbers(members.field("digest")) if facts.digests else None
        self.starts: NDArray[np.int32] = _numbers(batch.column("members").offsets)
        self.metadata = [name for name in batch.schema.names if name not in ("key", "members")]
        """The names of the metadata columns."""
        self._rows: dict[str, list[int]] | None = None
        self._scans = 0
        self._verified: set[str] = set()
        _, key_starts, key_bytes = batch.column("key").buffers()
        self._key_starts = memoryview(key_starts or bytes(4)).cast("i")
        self._key_bytes = memoryview(key_bytes or b"").tobytes()
        # Slicing ASCII keys out of one text is several times faster than decoding each.
        self.text: str | None = None
        """All keys concatenated, if they are ASCII; see `text_bounds`."""
        if self._key_bytes.isascii():
            self.text, self._key_bytes = self._key_bytes.decode("ascii"), b""

    def __len__(self) -> int:
        return self.facts.samples

    def key(self, row: int) -> str:
        """Return the key of a sample."""
        start, end = self._key_starts[row], self._key_starts[row + 1]
        if self.text is not None:
            return self.text[start:end]
        return self._key_bytes[start:end].decode("utf-8", "surrogateescape")

    def keys(self, rows: slice | Integers | None = None) -> list[str]:
        """Return the keys of some samples, or of all."""
        bounds = np.frombuffer(self._key_starts, np.int32)  # Arrow's own conversions would import pandas
        pairs: Iterable[tuple[int, int]]
        if isinstance(rows, np.ndarray):
            pairs = zip(bounds[:-1][rows].tolist(), bounds[1:][rows].tolist(), strict=True)
        else:
            first, last = (0, len(self)) if rows is None else (rows.start, rows.stop)
            pairs = pairwise(bounds[first : last + 1].tolist())
        text, raw = self.text, self._key_bytes
        if text is not None:
            return [text[start:end] for start, end in pairs]
        return [raw[start:end].decode("utf-8", "surrogateescape") for start, end in pairs]

    def split_by(self, rule: Callable[[str], tuple[str, str] | None]) -> bool:
        """Return whether a naming rule gives the keys of this index."""
        fields, field_of, starts = self.fields, self.field_of.tolist(), self.starts.tolist()
        for row, key in enumerate(self.keys()):
            for member in range(starts[row], starts[row + 1]):
                named = rule(f"{key}.{fields[field_of[member]]}")
                if named is None or named[0] != key:
                    return False
        return True

    def text_bounds(self, rows: slice | Integers) -> Integers:
        """Return where in `text` the keys of some samples start and stop."""
        bounds = np.frombuffer(self._key_starts, np.int32)
        return np.stack([bounds[:-1][rows], bounds[1:][rows]], axis=1).astype(np.int64)

    def find(self, key: str) -> Sequence[int]:
        """Return the rows of the samples with this key: several only if whole samples repeat."""
        if self._rows is None and self._scans < _SCANS:
            return self._scan(key)
        if self._rows is None:
            self._rows = {}
            for row, name in enumerate(self.keys()):
                self._rows.setdefault(name, []).append(row)
        return self._rows.get(key, ())

    def _scan(self, key: str) -> Sequence[int]:
        """Scan all keys, which for a few lookups is far cheaper than a table."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self._scans += 1
        wanted = pa.scalar(key.encode("utf-8", "surrogateescape"), pa.binary())
        matches = pc.equal(self._batch.column("key").view(pa.binary()), wanted)
        rows: list[int] = pc.indices_nonzero(matches).to_pylist()
        return rows

    def column(self, name: str) -> Any:
        """Return a metadata column, or `key`, as an Arrow array; raise IndexDamaged if it is corrupt."""
        column = self._batch.column(name)
        if name in self.facts.columns and name not in self._verified:
            if _column_hash(column) != self.facts.columns[name]:
                raise IndexDamaged(f'the column "{name}" of the index is corrupt.')
            self._verified.add(name)
        return column

    def bytes_of(self, rows: Integers) -> Integers:
        """Return the number of payload bytes of each of these samples."""
        firsts = self.starts[rows].astype(np.int64)
        counts = self.starts[rows + 1] - firsts
        if not len(rows):
            return counts
        # Only the members of these samples are read; every sample has at least one.
        before = np.cumsum(counts) - counts
        members = np.arange(counts.sum()) + np.repeat(firsts - before, counts)
        result: Integers = np.add.reduceat(self.sizes[members], before)
        return result

    def has(self, field: str) -> NDArray[np.bool_]:
        """Return for each sample whether it has the field."""
        if field not in self.fields:
            return np.zeros(len(self), bool)
        members = np.flatnonzero(self.field_of == self.fields.index(field))
        mask = np.zeros(len(self), bool)
        mask[np.searchsorted(self.starts, members, side="right") - 1] = True
        return mask

    def fingerprint(self) -> str:
        """Compute the hash of all keys, fields, offsets and sizes."""
        keys = self._batch.column("key")
        return _fingerprint(keys, self._field_names, self.starts, self.field_of, self.offsets, self.sizes)

    def check_shard(
        self,
        info: ObjectInfo,
        url: str,
        storage: StorageOptions = DEFAULT_STORAGE,
        content: Any = None,
    ) -> bool:
        """Raise IndexStale unless the shard is the one that was indexed; see `Facts.check_shard`.

        For a local copy all member names are compared, too. Return False if they remain to be compared.
        """
        same = self.facts.check_shard(info, url, storage, None if content is None else Held(content))
        if same or self.facts.rows:  # rows have no names in the shard
            return True
        if content is None and not is_local(url):
            return False
        check_all_names(self, info, url, content)
        return True


class Indexed(Protocol):
    """The keys and extents of the samples of a shard: `Entries`, or those of rows."""

    def columns(self) -> dict[str, Any]:
        """Return the columns `key` and `members`."""

    def layout(self) -> list[str] | None:
        """Return the fields of every sample, if all have the same."""


def make_sidecar(
    entries: Indexed,
    info: ObjectInfo,
    columns: dict[str, Any],
    *,
    digests: bool,
    url: str | None = None,
    storage: StorageOptions = DEFAULT_STORAGE,
    bad_meta: bool = False,
    rows: bool = False,
) -> bytes:
    """Return the content of a sidecar; `info` describes its shard.

    The shard at `url` is read for sampled digests. Without it there are none, and the shard counts as local. With
    `rows`, the entries are rows of records instead of members.
    """
    import pyarrow as pa

    arrays = entries.columns() | columns
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))
    members = arrays["members"]
    field, offsets, sizes = map(members.values.field, ("field", "offset", "size"))
    numbers = [_numbers(each) for each in (members.offsets, field.indices, offsets, sizes)]
    facts = Facts(
        size=info.size,
        version=info.version,
        local=url is None or is_local(url),
        samples=len(members),
        fingerprint=_fingerprint(arrays["key"], field.dictionary, *numbers),
        digests=digests,
        layout=entries.layout(),
        columns=_column_hashes(batch, columns),
        sampled_digests=() if url is None else tuple(sample_digests(url, info, numbers[2], storage)),
        bad_meta=bad_meta,
        rows=rows,
    )
    return _file(batch, facts)


def _file(batch: Any, facts: Facts) -> bytes:
    import pyarrow as pa

    schema = batch.schema.with_metadata({_METADATA: facts_to_json(facts)})
    sink = io.BytesIO()  # grows less than Arrow's own buffer and returns its content uncopied
    with pa.ipc.new_file(sink, schema) as file:
        file.write_batch(batch.replace_schema_metadata(schema.metadata))
    return sink.getvalue()


def with_columns(sidecar: Sidecar, columns: dict[str, Any]) -> bytes:
    """Return the content of a sidecar with further metadata columns, or others in the place of those it has."""
    import pyarrow as pa

    batch = sidecar._batch
    arrays = {name: batch.column(name) for name in batch.schema.names} | columns
    changed = pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))
    names = [name for name in arrays if name not in ("key", "members")]
    facts = replace(sidecar.facts, columns=_column_hashes(changed, names))
    return _file(changed, facts)


def _column_hashes(batch: Any, columns: Iterable[str]) -> dict[str, str]:
    """Return the hash of each metadata column as a reader of the file will see it."""
    import pyarrow as pa

    names = list(columns)
    if not names:
        return {}
    selected = batch.select(names)
    written = pa.ipc.read_record_batch(selected.serialize(), selected.schema)
    return {name: _column_hash(written.column(name)) for name in names}


def _column_hash(column: Any) -> str:
    digest = xxhash.xxh3_64(str(column.type).encode())
    for buffer in column.buffers():
        digest.update(b"" if buffer is None else buffer)
    return digest.hexdigest()


def _fingerprint(keys: Any, fields: Any, *numbers: Any) -> str:
    digest = xxhash.xxh3_128()
    for texts in (keys, fields):
        _, starts, text = texts.buffers()
        bounds = np.frombuffer(starts or bytes(4), np.int32, len(texts) + 1)
        digest.update(np.diff(bounds).astype(np.int64).data)
        digest.update(memoryview(text or b"")[bounds[0] : bounds[-1]])
    for each in numbers:
        digest.update(each)
    return digest.hexdigest()


def write_sidecar(url: str, content: bytes, storage: StorageOptions = DEFAULT_STORAGE) -> None:
    """Write a sidecar atomically; of concurrent writers the last one wins."""
    write_all(url, content, storage, WriteOptions(overwrite=True))


def open_sidecar(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> Sidecar:
    """Open a sidecar; a local one is memory-mapped."""
    try:
        # Arrow's own maps take ten times longer to open, because they read through its I/O threads.
        content = map_local(url).content() if is_local(url) else read_all(url, storage)
    except (NotFound, FileNotFoundError, NotADirectoryError):
        if is_local(url) and os.path.isdir(local_path(url)):
            raise IndexDamaged("the index is a directory.", url=url) from None
        raise IndexMissing("the index does not exist.", url=url) from None
    except OSError as error:
        if isinstance(error, TarmacError):
            raise
        raise IndexDamaged(f"the index cannot be read ({_line(error)}).", url=url) from None
    return read_sidecar(b"" if content is None else content, url)


def read_sidecar(content: Any, url: str) -> Sidecar:
    """Parse and validate the content of a sidecar: bytes or an Arrow file."""
    import pyarrow as pa

    try:
        file = pa.ipc.open_file(pa.py_buffer(content))
        facts = parse_facts((file.schema.metadata or {})[_METADATA], url)
        batch = file.get_batch(0)
        batch.validate(full=True)
        sidecar = Sidecar(batch, facts)
        consistent = _is_consistent(sidecar)
    except TarmacError:
        raise
    except (
        pa.ArrowException,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        OSError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise IndexDamaged(f"this is not a valid index ({_line(error)}).", url=url) from None
    if not consistent:
        raise IndexDamaged("the index contradicts itself.", url=url)
    return sidecar


def _is_consistent(sidecar: Sidecar) -> bool:
    """Return whether all offsets are inside the shard and the arrays agree with each other."""
    facts, starts, offsets, sizes = sidecar.facts, sidecar.starts, sidecar.offsets, sidecar.sizes
    keys, numbers = sidecar.column("key"), sidecar.field_of
    if [starts.dtype, numbers.dtype, offsets.dtype, sizes.dtype] != [np.int32, np.int16, np.int64, np.int64]:
        return False
    if not len(starts) == facts.samples + 1 == len(keys) + 1 or keys.null_count:
        return False
    if len(offsets):
        inside = (offsets >= 0) & (sizes >= 0) & (sizes <= facts.size - offsets)
        if not (inside.all() and (np.diff(starts) > 0).all()):
            return False
    if facts.layout is not None:
        row = [sidecar.fields.index(name) for name in facts.layout]
        if len(numbers) != len(row) * len(sidecar) or not (numbers.reshape(-1, len(row)) == row).all():
            return False
    return sidecar.fingerprint() == facts.fingerprint


def _numbers(array: Any) -> Any:
    """Return a view of an array of numbers. Its method `to_numpy` would import pandas, where that is installed."""
    if array.null_count:
        raise ValueError("numbers are missing")
    kind = np.dtype(str(array.type))
    buffer = array.buffers()[1]
    return (
        np.frombuffer(buffer, kind, len(array), array.offset * kind.itemsize)
        if len(array)
        else np.empty(0, kind)
    )


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
