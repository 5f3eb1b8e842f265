"""Shard lists: the first stage of a pipeline yields shards as dictionaries with a `url`.

Shards are yielded in the order of the list, shuffled, or drawn with replacement.
"""

from __future__ import annotations

import logging
import operator
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from tarmac import environment
from tarmac.errors import NoSamples, NotFound
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.runtime.seeds import Seed, SeedPart, make_seed, random_seed, webdataset_seed
from tarmac.runtime.worker_info import current_worker_info
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards, ShardUrl, expand, iter_urls
from tarmac.stream.epochs import EpochAware, NumberedEpochs, StreamSource
from tarmac.stream.shards.specs import MultiShardSample

_log = logging.getLogger("tarmac")

T = TypeVar("T")


_DISTINCT_EPOCHS = 31
"""The number of epochs in which webdataset's seeds differ: then each worker repeats epochs of the next one."""


class SimpleShardList(StreamSource):
    """The shards of a list, in its order or shuffled.

    With a `seed`, the order of the first epoch is the one that the webdataset library produces, and later epochs
    have other orders, the same on all workers and ranks. `seed=True` draws a seed once. After an assignment to `seed`
    the order depends on the new seed alone, not on the epoch, so a program may set it in each epoch.
    """

    foreseeable = True
    seed_assigned: bool = False

    def __init__(
        self,
        urls: Shards,
        seed: Seed | None = None,
        *,
        limits: Limits = DEFAULT_LIMITS,
        storage: StorageOptions = DEFAULT_STORAGE,
    ) -> None:
        super().__init__()
        self.urls: list[ShardUrl] = expand(urls, limits=limits, storage=storage)
        self._seed: Seed | None = random_seed() if seed is True else seed
        self._drawn = seed is True

    @property
    def seed(self) -> Seed | None:
        """The seed of the order; None keeps that of the list."""
        return self._seed

    @seed.setter
    def seed(self, seed: Seed | None) -> None:
        self._seed, self._drawn, self.seed_assigned = seed, False, True

    def seeds(self) -> Seed | None:
        return self._seed if self._drawn else None

    def load_seeds(self, seeds: int) -> None:
        self._seed = operator.index(seeds)

    def __len__(self) -> int:
        return len(self.urls)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        epoch = self._next_epoch().number
        urls = self.urls.copy()
        seed = self._seed
        if seed is not None:
            first = epoch == 0 or self.seed_assigned
            random.Random(seed if first else make_seed("shard list", seed, epoch)).shuffle(urls)
        return ({"url": url} for url in urls)


class ResampledShards(NumberedEpochs, StreamSource):
    """Shards drawn with replacement, `nshards` in each epoch; endlessly by default.

    With `deterministic`, the draws depend on `seed`, the epoch, the rank and the worker; `worker_seed()` replaces
    the last two. They are those of the webdataset library, until its seeds would repeat after 31 epochs. Otherwise
    they depend on a random number drawn at construction, which `state_dict` saves. `seed` and `epoch`, the number of
    the last epoch, may be set.
    """

    per_reader = True
    foreseeable = True

    def __init__(
        self,
        urls: Shards,
        nshards: int = sys.maxsize,
        seed: Seed = 0,
        worker_seed: Callable[[], SeedPart] | None = None,
        deterministic: bool = False,
        max_urls: int = 1_000_000,
        empty_check: bool = True,
        *,
        limits: Limits = DEFAULT_LIMITS,
        storage: StorageOptions = DEFAULT_STORAGE,
    ) -> None:
        super().__init__()
        self.urls: list[ShardUrl] = expand_source(urls, int(max_urls), limits=limits, storage=storage)
        if empty_check and not self.urls:
            raise NotFound("no shards to draw from.", hint="pass empty_check=False to allow an empty list.")
        self.nshards = nshards
        self.seed = seed
        self.worker_seed = worker_seed
        self.deterministic = deterministic
        self._random = random_seed()
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._epoch = self._next_number()
        seed = self._seed_of(self._epoch)
        if environment.show_seed():
            _log.warning("ResampledShards: epoch %d has seed %d", self._epoch, seed)
        return self._draw(random.Random(seed))

    def _seed_of(self, epoch: int) -> int:
        info = current_worker_info()
        own = (info.rank, info.worker) if self.worker_seed is None else self.worker_seed()
        if not self.deterministic:
            return make_seed("resample", own, epoch, self._random)
        if epoch < _DISTINCT_EPOCHS:
            return webdataset_seed(
                info.rank * 1000 + info.worker if self.worker_seed is None else own, epoch, self.seed
            )
        return make_seed("resample", own, epoch, self.seed)

    def _draw(self, rng: random.Random) -> Iterator[dict[str, Any]]:
        if self.urls:
            for _ in range(self.nshards):
                yield {"url": self.urls[rng.randrange(len(self.urls))]}

    def seeds(self) -> list[Any]:
        return [None if self.deterministic else self._random, *super().seeds()]

    def load_seeds(self, seeds: list[Any]) -> None:
        drawn, *epochs = seeds
        super().load_seeds(epochs)
        self._random = self._random if self.deterministic else operator.index(drawn)

    def state_dict(self) -> dict[str, Any]:
        """Return what the draws of the current epoch depend on."""
        epoch = self._epoch if self._next is None else self._next
        return {"seed": self.seed if self.deterministic else self._random, "epoch": epoch}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Make the next epoch the one that `state_dict` was called in, from its beginning."""
        if self.deterministic:
            self.seed = state["seed"]
        else:
            self._random = state["seed"]
        self.set_epoch(state["epoch"])


ResampledShardList = ResampledShards


class Resample(EpochAware):
    """Collect all items and draw `n` of them with replacement. Without `seed`, one is drawn at construction."""

    per_reader = True
    foreseeable = True

    def __init__(self, n: int = sys.maxsize, seed: Seed | None = None) -> None:
        super().__init__()
        self.n = n
        self.seed: Seed = random_seed() if seed is None else seed
        self._drawn = seed is None

    def seeds(self) -> Seed | None:
        return self.seed if self._drawn else None

    def load_seeds(self, seeds: int) -> None:
        self.seed = operator.index(seeds)

    def run(self, source: Iterable[T]) -> Iterator[T]:
        info = current_worker_info()
        seed = make_seed("resampled", self.seed, self._next_epoch().number, info.rank, info.worker)
        return self._draw(source, random.Random(seed))

    def _draw(self, source: Iterable[T], rng: random.Random) -> Iterator[T]:
        items = list(source)
        if not items:
            raise NoSamples("the stage before `resampled` yielded no items.", hint="check the shard list.")
        for _ in range(self.n):
            yield rng.choice(items)


resampled = Resample


def non_empty(src: Iterable[T]) -> Iterator[T]:
    """Yield all items, and raise if there are none."""
    empty = True
    for item in src:
        empty = False
        yield item
    if empty:
        raise NoSamples("the stage before `non_empty` yielded no items.", hint="check the shard list.")


def expand_urls(urls: Shards) -> list[ShardUrl]:
    """Return the URLs that a pattern, or a list of patterns, expands to."""
    return expand(urls)


def expand_source(
    source: Shards,
    max_urls: int = 1_000_000_000,
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> list[ShardUrl]:
    """Return the first `max_urls` URLs that a pattern or an iterable expands to; there may be none."""
    urls = iter_urls(source, limits=limits, storage=storage)
    result = list(islice(urls, max_urls))
    if len(result) == max_urls and next(urls, None) is not None:
        _log.warning("there are more than max_urls=%d shards; the rest is ignored", max_urls)
    return result


def shardspec(spec: Shards | Mapping[str, Any]) -> SimpleShardList | MultiShardSample:
    """Return the shard list of a YAML specification, or of anything else that names shards."""
    if isinstance(spec, Mapping):
        return MultiShardSample(spec)
    if isinstance(spec, str | os.PathLike) and os.fspath(spec).lower().endswith((".yaml", ".yml")):
        return MultiShardSample(spec)
    return SimpleShardList(spec)
