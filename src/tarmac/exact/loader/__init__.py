"""Batches for training: threads and processes, collation, state."""

from tarmac.exact.loader.builder import BadSample
from tarmac.exact.loader.loader import Loader
from tarmac.exact.loader.sampler import BatchSampler
from tarmac.exact.loader.stats import Stats
from tarmac.exact.loader.targets import To

__all__ = ["BadSample", "BatchSampler", "Loader", "Stats", "To"]
