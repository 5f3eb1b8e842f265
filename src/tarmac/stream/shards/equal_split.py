"""Split samples, not shards, so that every reader gets the same number of them, whatever the sizes of the shards.

The samples of all shards form one sequence, which is cut into parts of equal length, one for each reader. A shard
with `range=(start, stop)` is limited to its samples from number `start` to `stop` - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Literal, get_args

from tarmac.errors import UsageError
from tarmac.runtime.worker_info import current_worker_info
from tarmac.steps.stage import PipelineStage

Tail = Literal["pad", "drop"]


@dataclass(frozen=True)
class EqualSplit(PipelineStage):
    """A splitter that gives every reader the same number of samples, a multiple of `batchsize`.

    With `tail="pad"`, a reader continues with the samples after its part: every sample is read, and fewer than
    readers · batchsize of them twice. With "drop", it stops before the end of its part: no sample is repeated, and
    fewer than that number are left out.
    """

    counts: Mapping[str, int]
    """The number of samples in each shard, by URL."""
    batchsize: int
    tail: Tail
    splits_nodes: bool
    """Whether ranks split the samples, or each rank reads all of them."""
    group: Any = None
    """The process group of torch.distributed that splits the samples, if it is not the default group."""

    splits = True
    keeps_parts = True
    foreseeable = True
    state_name: ClassVar[str | None] = "EqualShares"

    def __post_init__(self) -> None:
        if self.tail not in get_args(Tail):
            raise UsageError(f'expected "pad" or "drop", got {self.tail!r}.', field="tail")
        if self.batchsize < 1:
            raise UsageError(f"expected 1 or more, got {self.batchsize}.", field="batchsize")

    def batches(self, urls: Iterable[str]) -> int:
        """Return the number of batches that every reader gets."""
        total, readers = sum(self.counts[url] for url in urls), self._reader()[1]
        step = readers * self.batchsize
        batches = -(-total // step) if self.tail == "pad" else total // step
        if batches == 0:
            raise UsageError(
                f"{total} samples are too few for a batch of {self.batchsize} on each of {readers} readers.",
                field="batchsize",
            )
        return batches

    def run(self, source: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        shards = list(source)
        ends = list(accumulate(self.counts[shard["url"]] for shard in shards))
        reader, readers = self._reader()
        samples = self.batches(shard["url"] for shard in shards) * self.batchsize
        return _ranges(shards, ends, ends[-1] * reader // readers, samples)

    def _reader(self) -> tuple[int, int]:
        info = current_worker_info(self.group)
        return (info.index, info.count) if self.splits_nodes else (info.worker, info.workers)


def _ranges(
    shards: list[dict[str, Any]], ends: list[int], position: int, samples: int
) -> Iterator[dict[str, Any]]:
    """Yield shards, or ranges of them, that hold the next samples, wrapping around after the last shard."""
    while samples:
        begin = 0
        for shard, end in zip(shards, ends, strict=True):
            if begin <= position < end:
                taken = min(samples, end - position)
                whole = taken == end - begin
                yield shard if whole else {**shard, "range": (position - begin, position - begin + taken)}
                position, samples = position + taken, samples - taken
            begin = end
        position = 0
