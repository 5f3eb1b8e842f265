"""The vectors of one shard: memory-mapped arrays, and the rows of a table of metadata beside them."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tarmac.embedding.layout import CAPTION, KEY, KEYS, metadata_name, vectors_name
from tarmac.errors import IndexDamaged, NotFound
from tarmac.runtime.types import Integers
from tarmac.storage.mapped import map_file, release_pages

Vectors = NDArray[np.float32]
_AGAIN = "tarmac embed, which makes missing parts again."


@dataclass(frozen=True)
class Part:
    """The files of one part. Arrays are mapped and tables opened when they are needed."""

    directory: str
    name: str

    def path(self, kind: str) -> str:
        """Return the path of the vectors of a kind."""
        return os.path.join(self.directory, vectors_name(kind, self.name))

    def array(self, kind: str) -> NDArray[Any]:
        """Return the stored vectors of a kind, memory-mapped; raise IndexDamaged if the file is not whole."""
        path = self.path(kind)
        try:
            stored = _mapped(path)
        except FileNotFoundError:
            raise NotFound("no such file.", url=path, hint=_AGAIN) from None
        except (ValueError, OSError, EOFError) as error:
            raise IndexDamaged(f"this is not an array of vectors: {error}.", url=path, hint=_AGAIN) from None
        if stored.ndim != 2 or stored.dtype.kind != "f":
            what = f"expected vectors of floating-point numbers, got {stored.dtype} of shape {stored.shape}."
            raise IndexDamaged(what, url=path)
        return stored

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open the table while the block runs: a thousand open files are too many for a process."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = os.path.join(self.directory, metadata_name(self.name))
        try:
            with pq.ParquetFile(path, metadata=self.__dict__.get("_facts"), memory_map=True) as table:
                yield table
        except FileNotFoundError:
            raise NotFound("no such file.", url=path, hint=_AGAIN) from None
        except (pa.ArrowException, OSError) as error:
            what = f"this is not a table of metadata: {str(error)[:200]}."
            raise IndexDamaged(what, url=path, hint=_AGAIN) from None

    @cached_property
    def _facts(self) -> Any:
        """What the table says of its row groups and columns."""
        with self._opened() as table:
            return table.metadata

    @property
    def metadata_rows(self) -> int:
        """Return the number of rows of the metadata."""
        return int(self._facts.num_rows)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of the metadata; keys have the name `key`, whatever wrote them."""
        return tuple(KEY if name == self._key else name for name in self._names)

    @cached_property
    def _names(self) -> list[str]:
        return list(self._facts.schema.to_arrow_schema().names)

    @cached_property
    def _key(self) -> str:
        names = self._names
        for name in KEYS:
            if name in names:
                return name
        path = os.path.join(self.directory, metadata_name(self.name))
        raise IndexDamaged(f"expected a column {KEY!r}, got {', '.join(names)}.", url=path)

    def metadata(self, columns: Sequence[str] | None = None) -> Any:
        """Return the metadata as an Arrow table, with these columns or all."""
        names = self.columns if columns is None else columns
        stored = [self._key if name == KEY else name for name in names]
        with self._opened() as table:
            read = table.read(stored)
        return read.rename_columns(list(names))

    def metadata_of(self, rows: Integers, columns: Sequence[str] | None = None) -> Any:
        """Return the metadata of some rows, reading only the row groups that they are in."""
        import pyarrow as pa

        names = self.columns if columns is None else columns
        groups = self._facts
        sizes = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
        ends = np.cumsum(sizes)
        within = np.searchsorted(ends, rows, side="right")
        needed = np.unique(within)
        stored = [self._key if name == KEY else name for name in names]
        with self._opened() as table:
            read = table.read_row_groups(needed.tolist(), stored).rename_columns(list(names))
        starts = np.concatenate([[0], np.cumsum(np.array(sizes)[needed])])[np.searchsorted(needed, within)]
        return read.take(pa.array(starts + rows - (ends - sizes)[within]))

    def read_keys(self) -> list[str]:
        """Return the keys of all rows."""
        return self.metadata([KEY]).column(KEY).to_pylist()  # type: ignore[no-any-return]

    def captions(self) -> list[str | None]:
        """Return the texts of all rows; those of a part without them are None."""
        if CAPTION not in self.columns:
            return [None] * self.metadata_rows
        return self.metadata([CAPTION]).column(CAPTION).to_pylist()  # type: ignore[no-any-return]


def release(stored: NDArray[Any]) -> None:
    """Return the pages of mapped vectors to the system: they would count as memory of this process."""
    base: Any = stored
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap | ctypes.Array):
        release_pages(stored.ctypes.data, stored.nbytes)


def _mapped(path: str) -> NDArray[Any]:
    """Map an array. Unlike that of `numpy.load`, this map keeps no descriptor open."""
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, by_column, kind = read_header(file)
        begin, size = file.tell(), os.fstat(file.fileno()).st_size
        content = map_file(file.fileno(), size)
    count = math.prod(shape)
    if by_column or kind.hasobject or begin + count * kind.itemsize != size:
        raise ValueError(f"expected {count} numbers of {kind} in rows, got {size - begin} bytes")
    if content is None:
        raise OSError("it cannot be mapped into memory")
    return np.frombuffer(content, kind, count, begin).reshape(shape)
