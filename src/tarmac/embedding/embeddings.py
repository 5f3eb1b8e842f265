"""Read embeddings: vectors by number or key, and the metadata beside them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from tarmac.embedding.keys import HINT, KeyIndex
from tarmac.embedding.layout import KEY, KINDS, OWN, Facts, PartFacts, list_parts, read_facts
from tarmac.embedding.parts import Part, Vectors
from tarmac.embedding.tables import AGAIN, joined
from tarmac.errors import IndexDamaged, UsageError
from tarmac.indexing.promote import common_types
from tarmac.indexing.where import parse_where
from tarmac.jobs.entries import public_name
from tarmac.runtime.types import Integers
from tarmac.storage import is_local, location
from tarmac.storage.local import local_path

_HINT = "copy the directory again, or remove the files of parts that are not whole."
BLOCK = 1 << 14
"""Vectors that are converted at a time."""


class Embeddings:
    """The vectors of samples, in the order of their shards, as `tarmac embed` or clip-retrieval wrote them.

    >>> vectors = tarmac.Embeddings("embeddings/")
    >>> vectors[0], vectors["000123"], vectors[[5, 2, 7]], len(vectors), vectors.dimension
    >>> vectors[vectors.where("width >= 512")]
    >>> dataset = tarmac.Dataset("train.json").map(vectors.add)      # samples with a field "img_emb"

    `kind` is "img" or "text"; by default the one that the directory has, or "img". Vectors are stored as float16 and
    memory-mapped; what is returned is float32.
    """

    def __init__(self, source: str | os.PathLike[str], *, kind: str | None = None) -> None:
        name = os.fspath(source)
        if not is_local(name):
            what = "vectors are mapped into memory, so they are read from local directories only."
            raise UsageError(what, url=name, hint="copy the directory to this machine.")
        self.directory: str = local_path(name)
        facts = read_facts(self.directory)
        self.facts: Facts = _listed(self.directory) if facts is None else facts
        kinds = tuple(each for each in KINDS if each in self.facts.kinds)
        if kind is not None and kind not in kinds:
            raise UsageError(f"expected {' or '.join(kinds)}, got {kind!r}.", field="kind", url=name)
        self.kinds: tuple[str, ...] = kinds
        self.kind: str = kinds[0] if kind is None else kind
        self.parts: tuple[Part, ...] = tuple(
            Part(self.directory, part.name, part.origin) for part in self.facts.parts
        )
        self.offsets: Integers = np.cumsum([0, *(part.rows for part in self.facts.parts)])
        """The number of the first vector of each part, and at the end the number of all vectors."""
        self._arrays: dict[int, NDArray[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Absolute: a worker opens it before it enters the directory of the job.
        return {"source": os.path.abspath(self.directory), "kind": self.kind}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["source"], kind=state["kind"])  # type: ignore[misc]

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __repr__(self) -> str:
        return (
            f"Embeddings({self.directory!r}, kind={self.kind!r}): {len(self):,} vectors of {self.dimension} "
            f"numbers in {len(self.parts):,} parts"
        )

    @property
    def dimension(self) -> int:
        """Return the number of numbers of a vector."""
        return self.facts.kinds[self.kind]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what the manifest says of all files, to recognise other vectors."""
        return self.fingerprint_of(len(self.parts))

    def fingerprint_of(self, parts: int) -> str:
        """Return the fingerprint of the first parts alone, to recognise a directory that has grown."""
        facts = [(part.name, part.rows, sorted(part.files.items())) for part in self.facts.parts[:parts]]
        return xxhash.xxh3_128_hexdigest(repr((self.kind, self.dimension, facts)).encode())

    def __contains__(self, key: object) -> bool:
        """Return whether there is a vector of this key."""
        return isinstance(key, str) and len(self.find_all(key)) > 0

    @overload
    def __getitem__(self, index: int | str) -> Vectors: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Sequence[str] | NDArray[Any]) -> Vectors: ...
    def __getitem__(self, index: Any) -> Vectors:
        """Return the vector of a number or key, or an array of vectors for a slice, a list of them, or a mask."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self.take(np.arange(start, stop, step))
        if np.ndim(index) == 0:
            return self.take([index]).reshape(-1)
        return self.take(index)

    def take(self, numbers: ArrayLike) -> Vectors:
        """Return the vectors of these numbers or keys, or those that a mask selects, a row for each."""
        chosen = self._checked(numbers)
        result = np.empty((len(chosen), self.dimension), np.float32)
        for part, where in self._by_part(chosen):
            result[where] = self.array(part)[chosen[where] - self.offsets[part]]
        return result

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, Vectors]]:
        """Yield all vectors in order, at most `size` of one part at a time, with the number of the first of them."""
        for part in range(len(self.parts)):
            array = self.array(part)
            for start in range(0, len(array), size):
                yield int(self.offsets[part]) + start, array[start : start + size].astype(np.float32)

    def array(self, part: int) -> NDArray[Any]:
        """Return the stored vectors of a part; raise IndexDamaged unless they are as the manifest says."""
        if part not in self._arrays:
            stored = self.parts[part].array(self.kind)
            expected = (int(self.offsets[part + 1] - self.offsets[part]), self.dimension)
            if stored.shape != expected:
                what = f"expected {expected[0]} vectors of {expected[1]} numbers, got {stored.shape}."
                raise IndexDamaged(what, url=self.parts[part].path(self.kind), hint=AGAIN)
            self._arrays[part] = stored
        return self._arrays[part]

    def keys(self, numbers: ArrayLike | None = None) -> list[str]:
        """Return the keys of all vectors, or of these numbers."""
        if numbers is None:
            return [key for part in self.parts for key in part.read_keys()]
        return self.metadata(numbers, [KEY]).column(KEY).to_pylist()  # type: ignore[no-any-return]

    def metadata(self, numbers: ArrayLike, columns: str | Sequence[str] | None = None) -> Any:
        """Return the metadata of these numbers as an Arrow table, a row for each; parts without a column have nulls."""
        import pyarrow as pa

        chosen = self._checked(numbers)
        wanted = [columns] if isinstance(columns, str) else columns
        pieces, places = [], []
        for part, where in self._by_part(chosen):
            has = self.parts[part].columns
            names = [name for name in wanted or has if name in has] or [KEY]
            pieces.append(self.parts[part].metadata_of(chosen[where] - self.offsets[part], names))
            places.append(where)
        present = {name for piece in pieces for name in piece.column_names}
        self.check_columns([name for name in wanted or () if name not in OWN | present])
        if not pieces:
            known = wanted or (self.parts[0].columns if self.parts else ())
            return pa.table({name: pa.array([], pa.null()) for name in known})
        table = joined(pieces, places)
        for name in wanted or ():
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table)))
        return table if wanted is None else table.select(list(wanted))

    def check_columns(self, names: Iterable[str], field: str = "columns") -> None:
        """Raise UsageError, which names the argument `field`, if no part has a column of one of these names."""
        for name in names:
            if not any(name in part.columns for part in self.parts):
                known = sorted({name for part in self.parts for name in part.columns})
                what = f"the metadata has no column {name!r}."
                raise UsageError(what, field=field, url=self.directory, hint=f"one of {', '.join(known)}.")

    def where(self, condition: str) -> NDArray[np.bool_]:
        """Return for each vector whether a condition on its metadata is true, such as `width >= 512`."""
        parsed = parse_where(condition)

        def tables() -> Iterator[Any]:
            for part in self.parts:
                yield part.metadata(sorted({*parsed.resolve(part.columns, indexed=False).values(), KEY}))

        types = common_types(tables())  # a column can have numbers in one part and text in another
        masks = [parsed.mask(table, types) for table in tables()]
        return np.concatenate(masks) if masks else np.zeros(0, bool)

    def number(self, key: str, shard: str = "") -> int:
        """Return the number of the vector of a key; raise KeyError if there is none.

        Of several vectors with the key, it is that of the shard with this URL; without one, they are an error.
        """
        numbers = self._keys.find_all(key)
        if not len(numbers):
            raise KeyError(key)
        if len(numbers) > 1:
            source = location(public_name(shard))
            parts = np.searchsorted(self.offsets, numbers, side="right") - 1
            own = [self.facts.parts[part].source == source for part in parts.tolist()]
            if own.count(True) != 1:
                what = f"{len(numbers)} vectors have the key {key!r}."
                raise UsageError(what, url=self.directory, hint=HINT)
            numbers = numbers[own]
        return int(numbers[0])

    def find(self, keys: Iterable[str]) -> Integers:
        """Return the number of the first vector of each key; -1 if there is none."""
        return self._keys.find(keys)

    def find_all(self, key: str) -> Integers:
        """Return the numbers of all vectors of a key."""
        return self._keys.find_all(key)

    @cached_property
    def _keys(self) -> KeyIndex:
        return KeyIndex(key for part in self.parts for key in part.read_keys())

    def add(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample with the vector of its key as a further field, `img_emb` or `text_emb`.

        Where several vectors have the key, the sample must come from the shard that was embedded.
        """
        number = self.number(str(sample["__key__"]), str(sample.get("__url__", "")))
        return {**sample, f"{self.kind}_emb": self.take([number]).reshape(-1)}

    def _checked(self, numbers: ArrayLike) -> Integers:
        """Return the numbers that numbers, keys or a mask stand for; raise an error unless they are one of these."""
        given = np.asarray(numbers).reshape(-1)
        if given.dtype.kind == "U":
            return np.array([self.number(key) for key in given.tolist()], np.int64)
        if given.dtype == bool and len(given) == len(self):
            return np.flatnonzero(given)
        if len(given) and given.dtype.kind not in "iu":
            shape = f"{given.dtype} of shape {np.shape(numbers)}"
            what = f"expected numbers, keys or a mask of {len(self)} values, got {shape}."
            raise UsageError(what, field="index", url=self.directory)
        chosen = given.astype(np.int64)
        chosen = np.where(chosen < 0, chosen + len(self), chosen)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise IndexError(f"expected numbers below {len(self)}, got {given[:5]}")
        return chosen

    def _by_part(self, chosen: Integers) -> Iterator[tuple[int, Integers]]:
        """Yield the parts that hold these vectors, with the places of theirs in the list."""
        parts = np.searchsorted(self.offsets, chosen, side="right") - 1
        order = np.argsort(parts, kind="stable")
        bounds = np.flatnonzero(np.diff(parts[order])) + 1
        for where in np.split(order, bounds) if len(order) else ():
            yield int(parts[where[0]]), where


def _listed(directory: str) -> Facts:
    """Return the facts of a directory that clip-retrieval wrote, from its files."""
    names = list_parts(directory)
    first, *others = names.values()
    if any(other != first for other in others):
        what = f"the kinds have different parts: {names}."
        raise IndexDamaged(what, url=directory, hint=_HINT)
    kinds: dict[str, int] = {}
    parts = []
    for name in first:
        part = Part(directory, name)
        rows = part.metadata_rows
        files: dict[str, Sequence[Any]] = {}
        for kind in names:
            stored = part.array(kind)
            url = part.path(kind)
            if len(stored) != rows:
                what = f"expected {rows} vectors, as metadata has rows, got {len(stored)}."
                raise IndexDamaged(what, url=url, hint=_HINT)
            if kinds.setdefault(kind, stored.shape[1]) != stored.shape[1]:
                what = f"expected vectors of {kinds[kind]} numbers, as in other parts, got {stored.shape[1]}."
                raise IndexDamaged(what, url=url, hint=_HINT)
            status = os.stat(url)
            files[os.path.relpath(url, directory)] = [status.st_size, ""]
        parts.append(PartFacts(name, rows, files=files))
    return Facts(tuple(parts), kinds)
