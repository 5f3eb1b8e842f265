"""Shuffle shards and samples: in a different order in each epoch, but the same in each run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, ClassVar, TypeVar

from tarmac.errors import UsageError
from tarmac.runtime.seeds import is_given, make_seed, seed_or_default
from tarmac.runtime.worker_info import WorkerInfo, current_worker_info
from tarmac.steps.handlers import Handler
from tarmac.steps.stage import Epoch
from tarmac.stream.epochs import EpochAware, NumberedEpochs
from tarmac.stream.shards.split import is_claimed

T = TypeVar("T")

MAX_LIST = 10_000_000
"""The longest list of shards that is permuted as a whole, in memory."""


def buffer_shuffle(
    data: Iterable[T], bufsize: float, initial: float, rng: random.Random, max_bytes: int | None = None
) -> Iterator[T]:
    """Yield items in random order from a buffer.

    The first item is yielded when `initial` items are buffered. Then two items are read for each one yielded, until the
    buffer holds `bufsize` items. A buffer that holds `max_bytes` bytes of samples is full, too.
    """
    source = iter(data)
    head = list(islice(source, 1))
    source = chain(head, source)
    if head and is_claimed(head[0]):
        yield from source  # a claimed shard must be read at once
    elif max_bytes is None:
        yield from _by_count(source, bufsize, min(initial, bufsize), rng)
    else:
        yield from _by_bytes(source, bufsize, min(initial, bufsize), rng, max_bytes)


def _by_count(source: Iterator[T], bufsize: float, initial: float, rng: random.Random) -> Iterator[T]:
    buffer: list[T] = []
    for item in source:
        buffer.append(item)
        if len(buffer) < bufsize:
            buffer.extend(islice(source, 1))
        if len(buffer) >= initial:
            yield _pick(buffer, rng)
    while buffer:
        yield _pick(buffer, rng)


def _by_bytes(
    source: Iterator[T], bufsize: float, initial: float, rng: random.Random, limit: int
) -> Iterator[T]:
    """Shuffle as `_by_count` does, with a buffer that is full at `limit` bytes, too."""
    buffer: list[T] = []
    held = 0
    for item in source:
        buffer.append(item)
        held += sample_bytes(item)
        if len(buffer) < bufsize and held < limit:
            for second in islice(source, 1):
                buffer.append(second)
                held += sample_bytes(second)
        full = len(buffer) >= initial or held >= limit
        while full:
            picked = _pick(buffer, rng)
            held -= sample_bytes(picked)
            yield picked
            full = held > limit
    while buffer:
        yield _pick(buffer, rng)


def _pick(buffer: list[T], rng: random.Random) -> T:
    # rng.randrange(len(buffer)), without the argument checks that take most of its time.
    bits = len(buffer).bit_length()
    index = rng.getrandbits(bits)
    while index >= len(buffer):
        index = rng.getrandbits(bits)
    picked = buffer[index]
    buffer[index] = buffer[-1]
    del buffer[-1]
    return picked


def sample_bytes(sample: object) -> int:
    """Return the size of the bytes, strings, arrays and tensors of a sample."""
    if isinstance(sample, dict):
        return sum(map(sample_bytes, sample.values()))
    if isinstance(sample, list | tuple):
        return sum(map(sample_bytes, sample))
    if isinstance(sample, bytes | bytearray | str):
        return len(sample)
    size = getattr(sample, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _rng(purpose: str, seed: int, epoch: Epoch) -> random.Random:
    """Return random numbers for one purpose and epoch; for this reader, unless a split follows."""
    info = _reader(epoch)
    return random.Random(make_seed(purpose, seed, epoch.number, info.rank, info.worker))


def _reader(epoch: Epoch) -> WorkerInfo:
    return WorkerInfo() if epoch.shared else current_worker_info()


class Shuffle(EpochAware):
    """Shuffle with a buffer of `bufsize` samples, or `max_bytes` bytes of them.

    The order depends on the seed, the epoch, the rank and the worker; before a split, where all readers need the
    same order, on the first two. Epoch 0 of a given `seed` has the order that the webdataset library produces, which
    depends on the seed alone. Without a seed it is `WDS_SEED`, or 0. With `rng` the order depends on that generator
    alone.

    If the source raises and there is a `handler`, the handler is called with the error. The buffered samples come in
    any case. If the handler returns True, reading continues.
    """

    keeps_parts = True

    def __init__(
        self,
        bufsize: float = 1000,
        initial: float = 100,
        rng: random.Random | None = None,
        seed: int | None = None,
        handler: Handler | None = None,
        max_bytes: int | None = None,
    ) -> None:
        super().__init__()
        if rng is not None and seed is not None:
            raise UsageError("`rng` and `seed` are mutually exclusive.", field="rng")
        _check_sizes(bufsize, initial)
        if max_bytes is not None and max_bytes < 1:
            raise UsageError(f"expected 1 or more, got {max_bytes}.", field="max_bytes")
        self.bufsize = bufsize
        self.initial = initial
        self.rng = rng
        self.seeded: bool = is_given(seed)
        # Before a split all readers must agree, however often each has iterated, so take the current state of `rng`.
        self.seed: int = seed_or_default(seed) if rng is None else make_seed("rng", repr(rng.getstate()))
        self.handler = handler
        self.max_bytes = max_bytes

    @property
    def foreseeable(self) -> bool:  # type: ignore[override]
        """Whether items may be taken early: not if the program has the generator, or a handler, to itself."""
        return self.rng is None and self.handler is None

    def run(self, source: Iterable[T]) -> Iterator[T]:
        epoch = self._next_epoch()
        rng = self._generator(epoch) if self.rng is None or epoch.shared else self.rng
        data = source if self.handler is None else _handled(source, self.handler)
        return buffer_shuffle(data, self.bufsize, self.initial, rng, self.max_bytes)

    def _generator(self, epoch: Epoch) -> random.Random:
        # Ranks that all read the whole dataset must not read it in the same order, unless the program gave a seed.
        if epoch.number == 0 and (self.seeded or _reader(epoch).index == 0):
            return random.Random(self.seed)
        return _rng("shuffle", self.seed, epoch)

    def seeds(self) -> Any:
        if self.rng is None:
            return None
        version, words, gauss = self.rng.getstate()
        return [version, list(words), gauss]

    def load_seeds(self, seeds: Any) -> None:
        if self.rng is not None:
            version, words, gauss = seeds
            self.rng.setstate((version, tuple(words), gauss))


class detshuffle(NumberedEpochs):  # noqa: N801 - the name it has in the library whose calls we accept
    """Shuffle with a buffer, in the same order on all ranks and workers, as shards need before they are split.

    The order depends on `seed` and the epoch, and is the one that the webdataset library produces. `epoch` is the
    number of the last epoch, and may be set.
    """

    keeps_parts = True
    foreseeable = True

    def __init__(self, bufsize: float = 1000, initial: float = 100, seed: int = 0, epoch: int = -1) -> None:
        super().__init__(epoch + 1)
        _check_sizes(bufsize, initial)
        self.bufsize = bufsize
        self.initial = initial
        self.seed = seed

    def run(self, source: Iterable[T]) -> Iterator[T]:
        rng = random.Random(self.seed + self._next_number())
        return buffer_shuffle(source, self.bufsize, self.initial, rng)


class PermuteShards(EpochAware):
    """Permute shards before they are split, so that readers get different shards in each epoch.

    The order depends on nothing but an epoch that all readers agree on: their seeds may differ. Epoch 0 keeps the
    order. A single reader needs no permutation.
    """

    keeps_parts = True
    foreseeable = True
    state_name: ClassVar[str | None] = "Redeal"

    def run(self, source: Iterable[T]) -> Iterator[T]:
        epoch = self._next_epoch().number
        if epoch == 0 or current_worker_info().count == 1:
            return iter(source)
        return _permuted(iter(source), MAX_LIST, random.Random(make_seed("deal", epoch)))


class ShardShuffle(EpochAware):
    """Shuffle the shards of a reader, after they were split.

    A list of up to `size` shards is permuted as a whole, and one of any length if `size` is True. A longer list is
    shuffled with a buffer of `size` shards. 0, False or None keeps the order. Epoch 0 of a given `seed` has the order
    that the webdataset library produces, which always uses a buffer: of 100 shards if `size` is True.
    """

    keeps_parts = True
    foreseeable = True

    def __init__(self, size: int | bool | None, seed: int | None = None) -> None:
        super().__init__()
        self.size: int = MAX_LIST if size is True else int(size or 0)
        self._buffer: int = 100 if size is True else self.size
        if self.size < 0:
            raise UsageError(f"expected 0 or more, got {size}.", field="shardshuffle")
        self.seed: int = seed_or_default(seed)
        self.seeded: bool = is_given(seed)

    def run(self, source: Iterable[T]) -> Iterator[T]:
        epoch = self._next_epoch().number
        if epoch == 0 and self.seeded:
            return buffer_shuffle(source, self._buffer, 100, random.Random(self.seed))
        rng = random.Random(make_seed("shards", self.seed, epoch))
        return _permuted(iter(source), self.size, rng) if self.size else iter(source)


def _permuted(src: Iterator[T], size: int, rng: random.Random) -> Iterator[T]:
    """Permute up to `size` shards as a whole, and shuffle more with a buffer. Claimed shards keep their order."""
    head = list(islice(src, 1))
    if head and is_claimed(head[0]):
        yield from chain(head, src)
        return
    head += islice(src, size)
    if len(head) <= size:
        rng.shuffle(head)
        yield from head
    else:
        yield from buffer_shuffle(chain(head, src), size, size, rng)


class Rsample(EpochAware):
    """Keep each sample with probability `p`: different samples in each epoch, the same in each run."""

    def __init__(self, p: float = 0.5, seed: int | None = None) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise UsageError(f"expected a probability from 0 to 1, got {p}.", field="p")
        self.p = p
        self.seed: int = seed_or_default(seed)

    def run(self, source: Iterable[T]) -> Iterator[T]:
        rng = _rng("rsample", self.seed, self._next_epoch())
        return (item for item in source if rng.random() < self.p)


def _handled(src: Iterable[T], handler: Handler) -> Iterator[T]:
    """Call the handler with errors of the source, so that samples read before them are not lost."""
    source = iter(src)
    while True:
        try:
            item = next(source)
        except StopIteration:
            return
        except Exception as error:
            if not handler(error):
                return
        else:
            yield item


def _check_sizes(bufsize: float, initial: float) -> None:
    for name, size in (("bufsize", bufsize), ("initial", initial)):
        if size < 0:
            raise UsageError(f"expected 0 or more, got {size}.", field=name)
