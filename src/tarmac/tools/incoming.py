"""Hand the samples of a unit to what changes them: one after the other, or many together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from tarmac.samples.grouping import Sample
from tarmac.tools.content import Content
from tarmac.tools.plan import IndexedSamples, OutputShard, SampleSource
from tarmac.tools.reading import plain, with_plain_keys
from tarmac.tools.tally import Tally


class Incoming(Iterator[Sample]):
    """The samples of a unit with plain keys, which adds them to a digest.

    `take` returns many of them, for less time each. Use either that or the iterator.
    """

    def __init__(
        self,
        samples: Iterator[Sample],
        content: Content,
        batches: Callable[[int], Iterator[list[Sample]]] | None = None,
    ) -> None:
        self._each = with_plain_keys(content.over(samples))
        self._content, self._batches = content, batches
        self._together: Iterator[list[Sample]] | None = None

    @classmethod
    def of(cls, source: SampleSource, shard: OutputShard, tally: Tally, content: Content) -> Incoming:
        """Return the samples of a shard of a source."""
        batches = partial(source.batches, shard, tally=tally) if isinstance(source, IndexedSamples) else None
        return cls(source.samples(shard, tally), content, batches)

    def __iter__(self) -> Iterator[Sample]:
        return self._each  # which saves a call for each sample

    def __next__(self) -> Sample:
        return next(self._each)

    def take(self, size: int) -> list[Sample]:
        """Return the next samples: `size` of them, or those that remain. The size is the same in every call."""
        if self._batches is None:
            return list(islice(self._each, size))
        if self._together is None:
            self._together = self._batches(size)
        batch = next(self._together, [])
        if batch:
            self._content.add_all(batch)
        return [sample if sample["__key__"][:2] != "./" else plain(sample) for sample in batch]
