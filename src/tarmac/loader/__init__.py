"""Batches for a training loop: threads and processes, collation, state."""

from tarmac.loader.loader import Loader
from tarmac.loader.maker import BadSample
from tarmac.loader.sampler import BatchSampler
from tarmac.loader.stats import Stats

__all__ = ["BadSample", "BatchSampler", "Loader", "Stats"]
