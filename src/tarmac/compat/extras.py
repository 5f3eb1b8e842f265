"""Small datasets and compositions around pipelines: mock data, epochs and lengths for any iterable."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

from tarmac.runtime.seeds import drawn_seed
from tarmac.steps.handlers import Handler
from tarmac.steps.stage import Epoch, as_stage
from tarmac.stream.epochs import StreamSource
from tarmac.stream.mix import RandomMix, RoundRobin
from tarmac.stream.shuffle import Rsample, Shuffle

__all__ = [
    "Composed",
    "MockDataset",
    "Repeated",
    "compose",
    "compose2",
    "guess_batchsize",
    "pipeline",
    "random_samples",
    "repeatedly",
    "round_robin_longest",
    "round_robin_shortest",
    "rsample_data",
    "shuffle_data",
    "with_epoch",
    "with_length",
]

Function = Callable[[Any], Any]


class MockDataset(StreamSource):
    """The same sample so many times, to time or to test what comes behind a dataset."""

    def __init__(self, sample: Any, length: int) -> None:
        super().__init__()
        self.sample, self.length = sample, length

    def __iter__(self) -> Iterator[Any]:
        return (self.sample for _ in range(self.length))


class with_length(StreamSource):  # noqa: N801 - the name it has in the library whose calls we accept
    """A dataset with a length for `len()`; how many items it has stays as it is."""

    def __init__(self, dataset: Iterable[Any], length: int) -> None:
        super().__init__()
        self.dataset, self.length = dataset, length

    def begin_epoch(self, epoch: Epoch) -> None:
        as_stage(self.dataset).begin_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def __len__(self) -> int:
        return self.length


class with_epoch(with_length):  # noqa: N801 - the name it has in the library whose calls we accept
    """A dataset cut into epochs of `length` items: each goes on where the one before stopped.

    When the dataset ends it is begun again. Copies in other processes begin at the front.
    """

    not_resumable = "an epoch begins where the one before has stopped, which a state does not say"

    def __init__(self, dataset: Iterable[Any], length: int) -> None:
        super().__init__(dataset, length)
        self._items: Iterator[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_items": None}

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.length):
            try:
                item = next(self._items) if self._items is not None else self._first()
            except StopIteration:
                try:
                    item = self._first()
                except StopIteration:
                    return  # there is nothing, and there will be nothing
            yield item

    def _first(self) -> Any:
        self._items = iter(self.dataset)
        return next(self._items)


def guess_batchsize(batch: Any) -> int:
    """Say how many samples a batch has: as many as its first column."""
    return len(batch[0])


def repeatedly(
    source: Iterable[Any],
    nepochs: int | None = None,
    nbatches: int | None = None,
    nsamples: int | None = None,
    batchsize: Callable[[Any], int] = guess_batchsize,
) -> Iterator[Any]:
    """Go through a dataset again and again: for so many passes, batches or samples, whichever is first.

    `batchsize(batch)` counts the samples. A pass without items ends it.
    """
    batches = samples = epochs = 0
    while nepochs is None or epochs < nepochs:
        before = batches
        for batch in source:
            batches += 1
            samples += batchsize(batch) if nsamples is not None else 0
            yield batch
            if (nbatches is not None and batches >= nbatches) or (
                nsamples is not None and samples >= nsamples
            ):
                return
        if batches == before:
            return
        epochs += 1


class Repeated(StreamSource):
    """A dataset gone through again and again, as a dataset; `length` is what `len()` says."""

    def __init__(
        self,
        source: Iterable[Any],
        nepochs: int | None = None,
        nbatches: int | None = None,
        length: int | None = None,
    ) -> None:
        super().__init__()
        self.source, self.nepochs, self.nbatches, self.length = source, nepochs, nbatches, length

    def begin_epoch(self, epoch: Epoch) -> None:
        as_stage(self.source).begin_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return repeatedly(self.source, self.nepochs, self.nbatches)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("this dataset has no length; give it one with length=")
        return self.length


class Composed:
    """Functions one after the other; picklable if they are."""

    def __init__(self, *functions: Function) -> None:
        self.functions = functions

    def __call__(self, value: Any) -> Any:
        return reduce(lambda result, f: f(result), self.functions, value)


def compose(*args: Function) -> Function:
    """Make one function, or stage, of several; the first is applied first."""
    if not args:
        raise ValueError("compose needs at least one function")
    return Composed(*args)


def compose2(f: Function, g: Function) -> Function:
    """Make the function that applies `f` and then `g`."""
    return Composed(f, g)


def pipeline(source: Any, *args: Function) -> Any:
    """Send a source through stages."""
    return Composed(*args)(source)


def shuffle_data(
    data: Iterable[Any],
    bufsize: float = 1000,
    initial: float = 100,
    rng: random.Random | None = None,
    seed: int | None = None,
    handler: Handler | None = None,
) -> Iterator[Any]:
    """Shuffle an iterator through a buffer, once. Without `rng` or `seed` each call gives another order."""
    if rng is not None and seed is not None:
        raise ValueError("give either rng or seed to a shuffle, not both")
    if rng is None:
        rng = random.Random(drawn_seed() if seed is None else seed)
    return Shuffle(bufsize, initial, rng, handler=handler).run(data)


def rsample_data(data: Iterable[Any], p: float = 0.5) -> Iterator[Any]:
    """Keep each item with probability `p`; other items in each call."""
    return Rsample(p, drawn_seed()).run(data)


def random_samples(
    sources: Iterable[Iterable[Any]], probs: Iterable[float] | None = None, longest: bool = False
) -> Iterator[Any]:
    """Take each item from a source chosen at random; other choices in each call."""
    return iter(RandomMix(sources, probs, longest, seed=drawn_seed()))


def round_robin_shortest(*sources: Iterable[Any]) -> Iterator[Any]:
    """Take one item of each source in turn until the first ends."""
    return iter(RoundRobin(sources))


def round_robin_longest(*sources: Iterable[Any]) -> Iterator[Any]:
    """Take one item of each source in turn until all have ended."""
    return iter(RoundRobin(sources, longest=True))
