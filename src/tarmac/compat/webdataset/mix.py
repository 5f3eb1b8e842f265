"""`webdataset.mix`: combine several datasets into one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tarmac.runtime.seeds import random_seed
from tarmac.stream.mix import RandomMix as RandomMix
from tarmac.stream.mix import RoundRobin as RoundRobin


def random_samples(
    sources: Iterable[Iterable[Any]], probs: Iterable[float] | None = None, longest: bool = False
) -> Iterator[Any]:
    """Yield items from randomly selected sources, in a new order for each call."""
    return iter(RandomMix(sources, probs, longest, seed=random_seed()))


def round_robin_shortest(*sources: Iterable[Any]) -> Iterator[Any]:
    """Yield one item of each source in turn until the first source ends."""
    return iter(RoundRobin(sources))


def round_robin_longest(*sources: Iterable[Any]) -> Iterator[Any]:
    """Yield one item of each source in turn until all sources end."""
    return iter(RoundRobin(sources, longest=True))
