"""Write stages: a function is enough; a class can differ by epoch and take part in saved states."""

import json
import random

import tarmac
from tarmac.stream.epochs import EpochAware


def drop_short(samples):
    """A stage is a function from an iterator to an iterator."""
    for sample in samples:
        if len(sample["txt"]) > 5:
            yield sample


class SortedChunks(EpochAware):
    """Sort chunks of samples by length, as batches of similar lengths need, and shuffle the chunks.

    `run` makes the items of one epoch. `_next_epoch()` numbers the epochs, the same on all workers. The stage
    holds samples back, so `stateless` stays False, and a resumed pipeline runs it again up to the saved position.
    """

    def __init__(self, size, seed=None):
        super().__init__()
        self.size = size  # states are compared by the class of a stage and its `size`, `seed` and the like
        self._seed = random.randrange(1 << 32) if seed is None else seed

    def run(self, source):
        rng = random.Random(f"{self._seed} {self._next_epoch().number}")
        samples = sorted(source, key=lambda sample: len(sample["txt"]))
        chunks = [samples[start : start + self.size] for start in range(0, len(samples), self.size)]
        rng.shuffle(chunks)
        for chunk in chunks:
            yield from chunk

    def seeds(self):
        """A random seed is part of the state; everything else follows from the source and the epoch."""
        return self._seed

    def load_seeds(self, seeds):
        self._seed = seeds


def lengths(pipeline):
    return [len(sample["txt"]) for sample in pipeline]


with tarmac.ShardWriter("texts-%06d.tar") as writer:
    for number in range(20):
        writer.write({"__key__": f"{number:03d}", "txt": "word " * (number % 7)})


def make():
    return tarmac.WebDataset("texts-000000.tar").pipe(drop_short, SortedChunks(4)).decode()


dataset = make()
print("first epoch: ", lengths(dataset))
print("second epoch:", lengths(dataset))

items = iter(dataset)
for _ in range(5):
    next(items)
state = json.dumps(dataset.state_dict())

resumed = make()
resumed.load_state_dict(json.loads(state))
print("the rest:    ", lengths(items))
print("resumed:     ", lengths(resumed))
