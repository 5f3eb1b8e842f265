"""Join the samples of two datasets by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.errors import DuplicateField, MissingField
from tarmac.runtime.types import Integers
from tarmac.steps.stage import Each

if TYPE_CHECKING:
    from tarmac.exact.dataset import Dataset

_SHARED = frozenset(("__key__", "__url__"))
Hashes = NDArray[np.uint64]


class AddFields(Each):
    """Adds the fields of the sample with the same key of another dataset, which is read on access."""

    def __init__(self, other: Dataset[Any]) -> None:
        super().__init__()
        self._other = other
        hashes = key_hashes(other.keys())
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def find(self, keys: Iterable[str]) -> Integers:
        """Return the number of the sample with each key in the other dataset; -1 if there is none."""
        wanted = key_hashes(keys)
        if not len(self._hashes):
            return np.full(len(wanted), -1)
        places = np.searchsorted(self._hashes, wanted).clip(max=len(self._hashes) - 1)
        return np.where(self._hashes[places] == wanted, self._order[places], -1)

    def apply(self, item: Any) -> dict[str, Any]:
        key = item["__key__"]
        number = int(self.find([key])[0])
        if number < 0 or self._other.key(number) != key:
            raise MissingField("the other dataset has no sample with this key.")
        added = self._other[number]
        if not isinstance(added, Mapping):
            raise MissingField(f"expected dictionaries in the other dataset, got {type(added).__name__}.")
        if both := sorted((item.keys() & added.keys()) - _SHARED):
            raise DuplicateField(f"both datasets have the fields {', '.join(both)}.")
        return {**added, **item}


def key_hashes(keys: Iterable[str]) -> Hashes:
    """Return a hash of each key: eight bytes, where the key itself takes a hundred."""
    digest = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(key.encode("utf-8", "surrogateescape")) for key in keys), np.uint64)
