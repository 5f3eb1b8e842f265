"""Shards in the order in which they are read: a list as it is, shuffled, or drawn with replacement.

A shard is a dictionary with a `url`. These are sources: a pipeline begins with one of them.
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
from tarmac.errors import NotFound
from tarmac.runtime.seeds import Seed, SeedPart, drawn_seed, make_seed
from tarmac.runtime.worker_info import current_worker_info
from tarmac.storage.urls import Shards, ShardUrl, expand, iter_urls
from tarmac.stream.epochs import EpochAware, StreamSource
from tarmac.stream.shards.directory import DirectoryShardList
from tarmac.stream.shards.specs import MultiShardSample

__all__ = [
    "DirectoryShardList",
    "expand_source",
    "expand_urls",
    "MultiShardSample",
    "non_empty",
    "Resample",
    "resampled",
    "ResampledShardList",
    "ResampledShards",
    "shardspec",
    "SimpleShardList",
]

_log = logging.getLogger("tarmac")

T = TypeVar("T")


class SimpleShardList(StreamSource):
    """The shards of a list, in its order or shuffled.

    With a `seed` the first pass has the order that the webdataset library gives for it, and each later
    pass another, the same on all workers and ranks. `seed=True` draws a seed once.
    """

    def __init__(self, urls: Shards, seed: Seed | None = None) -> None:
        super().__init__()
        self.urls = expand(urls)
        self.seed = drawn_seed() if seed is True else seed
        self._drawn = seed is True

    def __len__(self) -> int:
        return len(self.urls)

    def seeds(self) -> Seed | None:
        """Return the seed if it was drawn, so that a resumed pipeline has the same."""
        return self.seed if self._drawn else None

    def load_seeds(self, seeds: int) -> None:
        """Take over a seed that was drawn."""
        self.seed = operator.index(seeds)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        epoch = self._begin()
        urls = self.urls.copy()
        if self.seed is not None:
            seed = self.seed if epoch == 0 else make_seed("shard list", self.seed, epoch)
            random.Random(seed).shuffle(urls)
        return ({"url": url} for url in urls)


class ResampledShards(StreamSource):
    """Shards drawn with replacement, `nshards` in each pass; without end by default.

    With `deterministic`, the draws follow from `seed`, the number of the pass, and the rank and worker, or
    what `worker_seed()` returns in their place. Otherwise they also follow from a number drawn when the
    object is made; `state_dict` tells it, so that a run can be repeated.
    """

    per_reader = True

    def __init__(
        self,
        urls: Shards,
        nshards: int = sys.maxsize,
        seed: Seed = 0,
        worker_seed: Callable[[], SeedPart] | None = None,
        deterministic: bool = False,
        max_urls: int = 1_000_000,
        empty_check: bool = True,
    ) -> None:
        super().__init__()
        self.urls = expand_source(urls, int(max_urls))
        if empty_check and not self.urls:
            raise NotFound("there are no shards to draw from.", hint="empty_check=False if that may be so.")
        self.nshards = nshards
        self.seed = seed
        self.worker_seed = worker_seed
        self.deterministic = deterministic
        self._seed = seed if deterministic else make_seed(seed, drawn_seed())
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._epoch = epoch

    @property
    def epoch(self) -> int:
        """The number of the last pass; -1 before the first."""
        return self._epochs.last

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._epoch = self._begin()
        place = current_worker_info()
        worker = (place.rank, place.worker) if self.worker_seed is None else self.worker_seed()
        seed = make_seed("resample", worker, self._epoch, self._seed)
        if environment.show_seed():
            _log.warning("ResampledShards: pass %d has the seed %d", self._epoch, seed)
        return self._draw(random.Random(seed))

    def _draw(self, rng: random.Random) -> Iterator[dict[str, Any]]:
        if self.urls:
            for _ in range(self.nshards):
                yield {"url": self.urls[rng.randrange(len(self.urls))]}

    def seeds(self) -> Seed | None:
        """Return the seed if it was drawn, so that a resumed pipeline has the same."""
        return None if self.deterministic else self._seed

    def load_seeds(self, seeds: int) -> None:
        """Take over a seed that was drawn."""
        self._seed = operator.index(seeds)

    def state_dict(self) -> dict[str, Any]:
        """Tell what the draws of the current pass follow from."""
        return {"seed": self._seed, "epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass the one that `state_dict` was taken in, from its beginning."""
        self._seed = state["seed"]
        self.set_epoch(state["epoch"])


ResampledShardList = ResampledShards


class Resample(EpochAware):
    """A stage that holds all it is given and draws `n` of it with replacement.

    Without a seed one is drawn when the object is made.
    """

    per_reader = True

    def __init__(self, n: int = sys.maxsize, seed: Seed | None = None) -> None:
        super().__init__()
        self.n = n
        self.seed = drawn_seed() if seed is None else seed
        self._drawn = seed is None

    def seeds(self) -> Seed | None:
        """Return the seed if it was drawn, so that a resumed pipeline has the same."""
        return self.seed if self._drawn else None

    def load_seeds(self, seeds: int) -> None:
        """Take over a seed that was drawn."""
        self.seed = operator.index(seeds)

    def __call__(self, src: Iterable[T]) -> Iterator[T]:
        place = current_worker_info()
        seed = make_seed("resampled", self.seed, self._begin(), place.rank, place.worker)
        return self._draw(src, random.Random(seed))

    def _draw(self, src: Iterable[T], rng: random.Random) -> Iterator[T]:
        items = list(src)
        if not items:
            raise ValueError("there is nothing to draw from: the stage before `resampled` gave no item")
        for _ in range(self.n):
            yield rng.choice(items)


def resampled(n: int = sys.maxsize, seed: Seed | None = None) -> Resample:
    """Make a stage that draws `n` items with replacement from all it is given."""
    return Resample(n, seed)


def non_empty(src: Iterable[T]) -> Iterator[T]:
    """Pass everything on; a source that has nothing is an error."""
    empty = True
    for item in src:
        empty = False
        yield item
    if empty:
        raise ValueError("no data arrived here at all, and `non_empty` says that this is an error")


def expand_urls(urls: Shards) -> list[ShardUrl]:
    """Return the URLs that a pattern, or a list of patterns, stands for."""
    return expand(urls)


def expand_source(source: Shards, max_urls: int = 1_000_000_000) -> list[ShardUrl]:
    """Return the URLs of a pattern or an iterable, and no more than `max_urls` of them; there may be none."""
    urls = iter_urls(source)
    found = list(islice(urls, max_urls))
    if len(found) == max_urls and next(urls, None) is not None:
        _log.warning("there are more than max_urls=%d shards; the rest is not used", max_urls)
    return found


def shardspec(spec: Shards | Mapping[str, Any]) -> SimpleShardList | MultiShardSample:
    """Make a shard list: of a specification in YAML, or of anything else that names shards."""
    if isinstance(spec, Mapping):
        return MultiShardSample(spec)
    if isinstance(spec, str | os.PathLike) and os.fspath(spec).lower().endswith((".yaml", ".yml")):
        return MultiShardSample(spec)
    return SimpleShardList(spec)
