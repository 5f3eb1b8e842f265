"""Reorder samples: what the Order arguments mean."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

from tarmac.errors import UsageError
from tarmac.exact.dataset import Dataset
from tarmac.runtime.seeds import make_seed
from tarmac.samples.grouping import Sample
from tarmac.stream.shuffle import buffer_shuffle
from tarmac.tools.permutations import Interleaved, Mixed, Permutation, Shuffled


@dataclass(frozen=True)
class Order:
    """The order of samples; `OrderArgs` documents the arguments."""

    shuffle: bool = False
    seed: int = 0
    buffer: int = 10_000
    interleave: int = 0
    weights: Sequence[float] = ()
    until: Literal["first", "all"] = "all"

    def __post_init__(self) -> None:
        if sum(map(bool, (self.shuffle, self.interleave, self.weights))) > 1:
            raise UsageError("`shuffle`, `interleave` and `weights` are mutually exclusive.")
        if self.buffer < 1:
            raise UsageError(f"expected a positive number, got {self.buffer}.", field="buffer")
        if self.interleave < 0:
            raise UsageError(f"expected a positive number, got {self.interleave}.", field="interleave")
        if min(self.weights, default=1) <= 0:
            raise UsageError(f"expected positive numbers, got {min(self.weights)}.", field="weights")
        if self.until not in ("first", "all"):
            raise UsageError(f"expected 'first' or 'all', got {self.until!r}.", field="until")

    @property
    def as_is(self) -> bool:
        """Return whether the order does not change."""
        return not (self.shuffle or self.interleave or self.weights)

    def of(self, datasets: Sequence[Dataset]) -> Permutation | None:
        """Return the order of all samples of these datasets; None if it does not change."""
        if self.weights:
            return Mixed(tuple(map(len, datasets)), tuple(map(float, self.weights)), self.seed, self.until)
        if self.shuffle:
            return Shuffled(sum(map(len, datasets)), self.seed)
        if self.interleave > 1:
            lengths = tuple(n for dataset in datasets for n in dataset.lengths.tolist())
            return Interleaved(lengths, self.interleave)
        return None

    def of_streams(
        self,
        shards: Iterator[Iterator[Sample]],
        select: Callable[[Iterable[Sample]], Iterator[Sample]] = iter,
    ) -> Iterator[Sample]:
        """Yield the selected samples of shards that are read once; a shuffle is one in a buffer."""
        if self.interleave > 1:
            samples = _interleaved(map(select, shards), self.interleave)
        else:
            samples = select(chain.from_iterable(shards))
        if self.shuffle:
            rng = random.Random(make_seed("copy", self.seed))
            samples = buffer_shuffle(samples, self.buffer, self.buffer, rng)
        return samples

    def options(self, *, one_pass: bool = False) -> dict[str, Any]:
        """Return what the result depends on, for a ledger."""
        names = ("shuffle", "seed") if self.shuffle else ("interleave",) if self.interleave else ()
        mixed = ("weights", "seed", "until") if self.weights else ()
        options = {name: getattr(self, name) for name in (*names, *mixed)}
        if self.weights:
            options["weights"] = tuple(map(float, self.weights))
        return {"order": options} | ({"buffer": self.buffer} if self.shuffle and one_pass else {})


AS_IS = Order()


def _interleaved(shards: Iterator[Iterator[Sample]], ways: int) -> Iterator[Sample]:
    """Yield one sample of each of `ways` shards in turn; the next shard replaces one that is exhausted."""
    active: list[tuple[Sample, Iterator[Sample]]] = []  # each shard with its next sample
    while True:
        while len(active) < ways and (shard := next(shards, None)) is not None:
            active += [(first, shard) for first in islice(shard, 1)]
        if not active:
            return
        yield from (sample for sample, _ in active)
        active = [(following, shard) for _, shard in active for following in islice(shard, 1)]
