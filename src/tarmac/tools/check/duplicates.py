"""Find keys that several shards have, without holding all keys in memory.

Each shard leaves the hashes of its keys, sorted, in a file of a temporary directory, and the keys in the same
order in another. Hashes are compared range by range; those that come twice are looked up as keys.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from tarmac.errors import DiskFull, WriteError

__all__ = ["KeyFiles"]

AT_ONCE = 2_000_000
"""Keys of all shards that are compared together, about."""


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """The keys of shards, by number, in a directory."""

    directory: str
    at_once: int = AT_ONCE

    def save(self, number: int, keys: Sequence[str]) -> None:
        """Leave the keys of one shard."""
        raw = [key.encode("utf-8", "surrogateescape") for key in keys]
        hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, raw), np.uint64, len(raw))
        order = np.argsort(hashes, kind="stable")
        try:
            np.save(self._hashes(number), hashes[order])
            with open(self._keys(number), "wb") as file:
                file.write(b"\0".join([raw[place] for place in order.tolist()]))
        except OSError as error:
            what = f"the keys of a shard cannot be kept for comparison: {error.strerror}."
            hint = "TMPDIR, a directory with room."
            kind = DiskFull if error.errno == 28 else WriteError
            raise kind(what, url=self.directory, hint=hint) from None

    def duplicates(self) -> Iterator[tuple[str, list[int]]]:
        """Each key that comes more than once, and the numbers of the shards it comes in."""
        numbers = sorted(int(name[:-4]) for name in os.listdir(self.directory) if name.endswith(".npy"))
        total = sum(len(self._open(number)) for number in numbers)
        ranges = max(-(-total // self.at_once), 1)
        edges = [index * 2**64 // ranges for index in range(ranges + 1)]
        for low, high in itertools.pairwise(edges):
            yield from self._of_range(numbers, low, high - 1)

    def _of_range(self, numbers: list[int], low: int, last: int) -> Iterator[tuple[str, list[int]]]:
        """The same for the keys whose hashes are from `low` to `last`."""
        places: list[tuple[int, int, Any]] = []
        for number in numbers:
            hashes = self._open(number)
            begin = int(np.searchsorted(hashes, np.uint64(low), "left"))
            end = int(np.searchsorted(hashes, np.uint64(last), "right"))
            if begin < end:
                places.append((number, begin, np.array(hashes[begin:end])))
        if not places:
            return
        together = np.sort(np.concatenate([hashes for _, _, hashes in places]))
        twice = np.unique(together[1:][together[1:] == together[:-1]])
        if not len(twice):
            return
        found: dict[bytes, list[int]] = {}
        for number, begin, hashes in places:
            hits = np.flatnonzero(np.isin(hashes, twice))
            if len(hits):
                with open(self._keys(number), "rb") as file:
                    keys = file.read().split(b"\0")
                for hit in hits.tolist():
                    found.setdefault(keys[begin + hit], []).append(number)
        for key, shards in found.items():  # different keys may have the same hash
            if len(shards) > 1:
                yield key.decode("utf-8", "surrogateescape"), shards

    def _open(self, number: int) -> Any:
        return np.load(self._hashes(number), mmap_mode="r")

    def _hashes(self, number: int) -> str:
        return os.path.join(self.directory, f"{number}.npy")

    def _keys(self, number: int) -> str:
        return os.path.join(self.directory, f"{number}.keys")
