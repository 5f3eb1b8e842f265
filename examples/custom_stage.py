"""Write stages: a function is enough; a class can differ by epoch and take part in saved states."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

import tarmac
from tarmac.steps.stage import Epoch, PipelineStage


def drop_short(samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Drop samples with short texts. A stage is a function from an iterator to an iterator."""
    for sample in samples:
        if len(sample["txt"]) > 5:
            yield sample


class SortedChunks(PipelineStage):
    """Sort samples by length and shuffle chunks of them, so that batches hold texts of similar lengths.

    The stage holds samples back, so `stateless` stays False: a resumed pipeline runs it again up to the saved position.
    """

    def __init__(self, size: int) -> None:
        self.size = size  # states are compared by the class of a stage and its `size`, `seed` and the like
        self._seed = random.randrange(1 << 32)
        self._epoch = 0

    def begin_epoch(self, epoch: Epoch) -> None:
        """Remember the number of the epoch, on which the order depends."""
        self._epoch = epoch.number

    def run(self, source: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the samples of one epoch."""
        rng = random.Random(f"{self._seed} {self._epoch}")
        samples = sorted(source, key=lambda sample: len(sample["txt"]))
        chunks = [samples[start : start + self.size] for start in range(0, len(samples), self.size)]
        rng.shuffle(chunks)
        for chunk in chunks:
            yield from chunk

    def seeds(self) -> int:
        """Save the random seed in states; everything else depends on the source and the epoch."""
        return self._seed

    def load_seeds(self, seeds: int) -> None:
        """Restore the random seed."""
        self._seed = seeds


def make_dataset() -> tarmac.WebDataset:
    """Build the pipeline."""
    return tarmac.WebDataset("texts-000000.tar").pipe(drop_short, SortedChunks(4)).decode()


def lengths(samples: Iterable[dict[str, Any]]) -> list[int]:
    """Return the lengths of texts."""
    return [len(sample["txt"]) for sample in samples]


def main() -> None:
    """Write a shard, read two epochs of it, and resume in the middle of the third."""
    with tarmac.ShardWriter("texts-%06d.tar") as writer:
        for number in range(20):
            writer.write({"__key__": f"{number:03d}", "txt": "word " * (number % 7)})

    dataset = make_dataset()
    print("first epoch: ", lengths(dataset))
    print("second epoch:", lengths(dataset))

    samples = iter(dataset)
    for _ in range(5):
        next(samples)
    state = json.dumps(dataset.state_dict())
    rest = lengths(samples)

    resumed = make_dataset()
    resumed.load_state_dict(json.loads(state))
    print("third epoch, resumed after 5 samples:", lengths(resumed), "expected:", rest)


if __name__ == "__main__":
    main()
