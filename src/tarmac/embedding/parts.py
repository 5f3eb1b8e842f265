"""The vectors of one shard: memory-mapped arrays, and the rows of the tables beside them."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tarmac.display import plural
from tarmac.embedding.layout import KEY, KEYS, OWN, metadata_name, scores_name, vectors_name
from tarmac.embedding.tables import AGAIN, Table, write_table
from tarmac.errors import IndexDamaged, NotFound
from tarmac.runtime.types import Integers
from tarmac.storage.mapped import map_file, release_pages

Vectors = NDArray[np.float32]
_HINTS = {
    "keys": "write the table with a column key, the key of each sample.",
    "scores": "tarmac embed --score computes scores again.",
}


@dataclass(frozen=True)
class Part:
    """The files of one part. Arrays are mapped and tables opened when they are needed."""

    directory: str
    name: str
    origin: str = ""
    """What identifies the vectors, for scores of them."""

    def path(self, kind: str) -> str:
        """Return the path of the vectors of a kind."""
        return os.path.join(self.directory, vectors_name(kind, self.name))

    def array(self, kind: str) -> NDArray[Any]:
        """Return the stored vectors of a kind, memory-mapped; raise IndexDamaged if the file is not whole."""
        path = self.path(kind)
        try:
            stored = _mapped(path)
        except FileNotFoundError:
            raise NotFound("no such file.", url=path, hint=AGAIN) from None
        except (ValueError, OSError, EOFError) as error:
            raise IndexDamaged(f"this is not an array of vectors: {error}.", url=path, hint=AGAIN) from None
        if stored.ndim != 2 or stored.dtype.kind != "f":
            what = f"expected vectors of floating-point numbers, got {stored.dtype} of shape {stored.shape}."
            raise IndexDamaged(what, url=path, hint="numpy.save(FILE, vectors.astype('float16')).")
        return stored

    @cached_property
    def _metadata(self) -> Table:
        return Table(os.path.join(self.directory, metadata_name(self.name)))

    @cached_property
    def _scores(self) -> Table | None:
        """The scores of these vectors; not those of other ones, which were replaced."""
        table = Table(os.path.join(self.directory, scores_name(self.name)), hint=_HINTS["scores"])
        if not (self.origin and os.path.exists(table.path)):
            return None
        return table if (table.origin, table.rows) == (self.origin, self.metadata_rows) else None

    @property
    def metadata_rows(self) -> int:
        """Return the number of rows of the metadata."""
        return self._metadata.rows

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of the metadata, with scores; keys have the name `key`, whatever wrote them."""
        own = [KEY if name == self._key else name for name in self._metadata.columns]
        return tuple(dict.fromkeys([*own, *self._scored]))

    @cached_property
    def _key(self) -> str:
        names = self._metadata.columns
        for name in KEYS:
            if name in names:
                return name
        what = f"expected a column {KEY!r}, got {', '.join(names)}."
        raise IndexDamaged(what, url=self._metadata.path, hint=_HINTS["keys"])

    @property
    def _scored(self) -> list[str]:
        return [] if self._scores is None else self._scores.columns

    def metadata(self, columns: Sequence[str] | None = None) -> Any:
        """Return the metadata as an Arrow table, with these columns or all."""
        return self._joined(columns, lambda table, names: table.read(names))

    def metadata_of(self, rows: Integers, columns: Sequence[str] | None = None) -> Any:
        """Return the metadata of some rows."""
        return self._joined(columns, lambda table, names: table.read_rows(rows, names))

    def _joined(self, columns: Sequence[str] | None, read: Callable[[Table, list[str]], Any]) -> Any:
        """Return columns of both tables; a score replaces metadata of the same name."""
        import pyarrow as pa

        names = self.columns if columns is None else columns
        scored = [name for name in names if name not in OWN and name in self._scored]
        own = [name for name in names if name not in scored]
        values: dict[str, Any] = {}
        if own or not scored:
            stored = read(self._metadata, [self._key if name == KEY else name for name in own])
            values |= zip(own, stored.columns, strict=True)
        if KEY in values:
            values[KEY] = self._as_keys(values[KEY])
        if scored and self._scores is not None:
            values |= zip(scored, read(self._scores, scored).columns, strict=True)
        return pa.table({name: values[name] for name in names})

    def _as_keys(self, column: Any) -> Any:
        """Return keys as text: other programs may number samples."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.null_count:
            what = f"{plural(column.null_count, 'row')} of {len(column)} have no key."
            raise IndexDamaged(what, url=self._metadata.path, hint=_HINTS["keys"])
        try:
            return pc.cast(column, pa.string())
        except pa.ArrowException as error:
            what = f"keys are not text: {str(error)[:200]}."
            raise IndexDamaged(what, url=self._metadata.path, hint=_HINTS["keys"]) from None

    def read_keys(self) -> list[str]:
        """Return the keys of all rows."""
        return self.metadata([KEY]).column(KEY).to_pylist()  # type: ignore[no-any-return]

    def add_scores(self, columns: Mapping[str, Any]) -> None:
        """Write scores of all vectors, beside those that there are."""
        earlier: dict[str, Any] = {}
        with contextlib.suppress(IndexDamaged):
            earlier = {name: self.metadata([name]).column(0) for name in self._scored}
        write_table(os.path.join(self.directory, scores_name(self.name)), {**earlier, **columns}, self.origin)
        for name in ("_scores", "columns"):
            self.__dict__.pop(name, None)


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
