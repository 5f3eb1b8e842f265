"""Equal shares: every reader gets as many samples as every other, whatever the sizes of the shards.

The samples of all shards are laid end to end and cut into pieces of equal length, one for each reader. A
shard with `range=(start, stop)` stands for those of its samples whose number is from `start` to before
`stop`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, get_args

from tarmac.runtime.worker_info import WorkerInfo, current_worker_info

__all__ = ["EqualShares", "Tail"]

Tail = Literal["pad", "drop"]


@dataclass(frozen=True, slots=True)
class EqualShares:
    """A stage in place of the splitters that gives every reader the same number of samples.

    That number is a multiple of `batchsize`. With `tail="pad"` a reader goes on with the samples behind its
    share until it is reached, so that all samples come, and fewer than readers · batchsize of them twice;
    with "drop" it stops before its share ends, so that no sample comes twice, and fewer than that many do not
    come at all.
    """

    counts: Mapping[str, int]
    """How many samples each shard has, by URL."""
    batchsize: int
    tail: Tail
    nodes: bool
    """Whether ranks share the data, or each of them reads all of it."""
    group: Any = None
    """The process group of torch.distributed whose ranks share it, if that is not the whole world."""

    splits = True
    keeps_parts = True

    def __post_init__(self) -> None:
        if self.tail not in get_args(Tail):
            raise ValueError(f'tail must be "pad" or "drop", got {self.tail!r}')
        if self.batchsize < 1:
            raise ValueError(f"a batch holds at least one sample, got {self.batchsize}")

    def batches(self, urls: Iterable[str]) -> int:
        """Return how many batches every reader gets."""
        total, readers = (
            sum(self.counts[url] for url in urls),
            self._reader(current_worker_info(self.group))[1],
        )
        whole = readers * self.batchsize
        batches = -(-total // whole) if self.tail == "pad" else total // whole
        if batches == 0:
            raise ValueError(
                f"{total} samples are too few for a batch of {self.batchsize} on each of {readers} readers"
            )
        return batches

    def __call__(self, src: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        shards = list(src)
        ends = list(accumulate(self.counts[shard["url"]] for shard in shards))
        reader, readers = self._reader(current_worker_info(self.group))
        wanted = self.batches(shard["url"] for shard in shards) * self.batchsize
        return _pieces(shards, ends, ends[-1] * reader // readers, wanted)

    def _reader(self, place: WorkerInfo) -> tuple[int, int]:
        return (place.index, place.count) if self.nodes else (place.worker, place.workers)


def _pieces(
    shards: list[dict[str, Any]], ends: list[int], first: int, wanted: int
) -> Iterator[dict[str, Any]]:
    """Yield the parts of shards that hold so many samples in a row, going on at the front behind the last."""
    position = first
    while wanted:
        begin = 0
        for shard, end in zip(shards, ends, strict=True):
            if begin <= position < end:
                taken = min(wanted, end - position)
                whole = taken == end - begin
                yield shard if whole else {**shard, "range": (position - begin, position - begin + taken)}
                position, wanted = position + taken, wanted - taken
            begin = end
        position = 0
