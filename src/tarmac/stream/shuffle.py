"""Shuffles that are new in each pass and the same in each run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeVar

from tarmac.runtime.seeds import Seed, chosen_seed, make_seed
from tarmac.runtime.worker_info import WorkerInfo, current_worker_info
from tarmac.stream.epochs import EpochAware, EpochCounter
from tarmac.stream.shards.split import is_claimed

__all__ = ["buffer_shuffle", "detshuffle", "Redeal", "Rsample", "sample_bytes", "ShardShuffle", "Shuffle"]

T = TypeVar("T")

Handler = Callable[[Exception], bool]

LARGEST_LIST = 10_000_000
"""Shards that are held in memory to be permuted as a whole."""


def buffer_shuffle(
    data: Iterable[T], bufsize: float, initial: float, rng: random.Random, max_bytes: int | None = None
) -> Iterator[T]:
    """Yield items in random order out of a buffer that the source refills.

    The first item comes when `initial` items are buffered; then two are read for each one handed out,
    until the buffer holds `bufsize`. It stops growing, and starts, at `max_bytes` bytes of samples.
    """
    source = iter(data)
    head = list(islice(source, 1))
    source = chain(head, source)
    if head and is_claimed(head[0]):
        yield from source  # held back, a shard could be gone before it is read
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
    """As `_by_count`, but a buffer of `limit` bytes is full too."""
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
    # What rng.randrange(len(buffer)) does, without the checks that take most of its time.
    bits = len(buffer).bit_length()
    place = rng.getrandbits(bits)
    while place >= len(buffer):
        place = rng.getrandbits(bits)
    picked = buffer[place]
    buffer[place] = buffer[-1]
    del buffer[-1]
    return picked


def sample_bytes(sample: object) -> int:
    """Say how many bytes the fields of a sample hold: of bytes, texts, arrays and tensors."""
    if isinstance(sample, dict):
        return sum(map(sample_bytes, sample.values()))
    if isinstance(sample, list | tuple):
        return sum(map(sample_bytes, sample))
    if isinstance(sample, bytes | bytearray | str):
        return len(sample)
    size = getattr(sample, "nbytes", 0)
    return size if isinstance(size, int) else 0


class _Placed(EpochAware):
    """Base of stages whose random numbers differ by reader, except before a split."""

    def _rng(self, purpose: str, seed: int, epoch: int) -> random.Random:
        """Random numbers of one purpose, pass, rank and worker."""
        place = WorkerInfo() if self.shared else current_worker_info()
        return random.Random(make_seed(purpose, seed, epoch, place.rank, place.worker))


class Shuffle(_Placed):
    """A stage that shuffles with a buffer of `bufsize` samples, or `max_bytes` bytes of them.

    The order follows from the seed, the number of the pass, the rank and the worker; before a split, where
    all readers need the same order, from the first two. Without a seed `WDS_SEED` is taken, or 0. With `rng`
    the order follows from that generator alone.

    When the source fails and there is a `handler`, it is called with the error, and what was buffered is
    handed out whatever it answers; if it answers yes, the source is asked again.
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
            raise ValueError("give either rng or seed to a shuffle, not both")
        _check_sizes(bufsize, initial)
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes must be positive, got {max_bytes}")
        self.bufsize = bufsize
        self.initial = initial
        self.rng = rng
        # Before a split, readers must agree however often each has read: the generator's state now counts.
        self.seed = chosen_seed(seed) if rng is None else make_seed("rng", repr(rng.getstate()))
        self.handler = handler
        self.max_bytes = max_bytes

    def __call__(self, src: Iterable[T]) -> Iterator[T]:
        epoch = self._begin()
        given = None if self.shared else self.rng
        rng = self._rng("shuffle", self.seed, epoch) if given is None else given
        data = src if self.handler is None else _handled(src, self.handler)
        return buffer_shuffle(data, self.bufsize, self.initial, rng, self.max_bytes)

    def seeds(self) -> Any:
        """Return the state of `rng`, if there is one, so that a resumed pipeline has the same."""
        if self.rng is None:
            return None
        version, words, gauss = self.rng.getstate()
        return [version, list(words), gauss]

    def load_seeds(self, seeds: Any) -> None:
        """Take over the state of a generator."""
        if self.rng is not None:
            version, words, gauss = seeds
            self.rng.setstate((version, tuple(words), gauss))


class detshuffle(EpochAware):  # noqa: N801 - the name it has in the library whose calls we accept
    """A stage that shuffles with a buffer, in the same way on all ranks and workers.

    The order follows from `seed` and `epoch`, the number of the last run, which advances with each run.
    It is for shards before they are split; epoch 0 has the order that the webdataset library gives.
    """

    keeps_parts = True

    def __init__(self, bufsize: float = 1000, initial: float = 100, seed: int = 0, epoch: int = -1) -> None:
        super().__init__()
        _check_sizes(bufsize, initial)
        self.bufsize = bufsize
        self.initial = initial
        self.seed = seed
        self._epochs = EpochCounter(epoch + 1)

    @property
    def epoch(self) -> int:
        """The number of the last run; -1 before the first."""
        return self._epochs.last

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch + 1)

    def run(self, src: Iterable[T]) -> Iterator[T]:
        """Begin a run over what the source gives."""
        epoch = self._begin()
        seed = self.seed if epoch == 0 else make_seed("detshuffle", self.seed, epoch)
        return buffer_shuffle(src, self.bufsize, self.initial, random.Random(seed))

    __call__ = run


class Redeal(EpochAware):
    """The stage before the splitters: another list for each epoch that all readers agree on.

    It makes readers get other shards in each epoch. The order follows from nothing but the epoch, so that
    seeds may differ between readers, and epoch 0 has the list as it is. A single reader needs no other deal.
    """

    keeps_parts = True

    def __call__(self, src: Iterable[T]) -> Iterator[T]:
        epoch = self._begin()
        if epoch == 0 or current_worker_info().count == 1:
            return iter(src)
        return _permuted(iter(src), LARGEST_LIST, random.Random(make_seed("deal", epoch)))


class ShardShuffle(EpochAware):
    """The stage behind the splitters that orders the shards of a reader, differently in each pass.

    A list of up to `size` shards is permuted as a whole, of any length if `size` is True; of a longer
    one, or one without end, `size` shards at a time are mixed. 0, False or None leaves the order.
    """

    keeps_parts = True

    def __init__(self, size: int | bool | None, seed: Seed = 0) -> None:
        super().__init__()
        self.size = LARGEST_LIST if size is True else int(size or 0)
        if self.size < 0:
            raise ValueError(f"the number of shards to shuffle must not be negative, got {size}")
        self.seed = seed

    def __call__(self, src: Iterable[T]) -> Iterator[T]:
        epoch = self._begin()
        rng = random.Random(make_seed("shards", self.seed, epoch))
        return _permuted(iter(src), self.size, rng) if self.size else iter(src)


def _permuted(src: Iterator[T], size: int, rng: random.Random) -> Iterator[T]:
    """Permute up to `size` shards as a whole, and mix a longer list. Claimed shards stay in place."""
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


class Rsample(_Placed):
    """A stage that keeps each sample with probability `p`: others in each pass, the same in each run."""

    def __init__(self, p: float = 0.5, seed: int | None = None) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p must be a probability from 0 to 1, got {p}")
        self.p = p
        self.seed = chosen_seed(seed)

    def __call__(self, src: Iterable[T]) -> Iterator[T]:
        rng = self._rng("rsample", self.seed, self._begin())
        return (item for item in src if rng.random() < self.p)


def _handled(src: Iterable[T], handler: Handler) -> Iterator[T]:
    """Ask the handler about errors of the source, instead of losing what was read before them."""
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


def _check_sizes(bufsize: Any, initial: Any) -> None:
    if bufsize < 0 or initial < 0:
        raise ValueError(f"the sizes of a shuffle must not be negative, got {bufsize} and {initial}")
