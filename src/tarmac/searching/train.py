"""Train the centroids of an index on a sample of the vectors."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tarmac.limits import MIB
from tarmac.searching.library import (
    Metric,
    Numbers,
    Vectors,
    check_finite,
    contiguous,
    import_faiss,
    metric_number,
)

SAMPLE_BYTES = 192 * MIB
"""Most bytes of the sample, whose numbers have 16 bits."""
POINTS, LEAST_POINTS = 64, 24
"""Vectors of the sample for each centroid, if there is room, and at the least."""
ROUNDS = 10
READ = 1 << 11


class Readable(Protocol):
    """Vectors that can be read by number, such as `Embeddings`."""

    @property
    def dimension(self) -> int: ...
    def __len__(self) -> int: ...
    def take(self, numbers: ArrayLike, /) -> Vectors: ...


def sample_numbers(total: int, count: int, seed: int = 0) -> Numbers:
    """Return that many different numbers below the total, sorted; always the same ones."""
    if count >= total:
        return np.arange(total)
    return np.sort(np.random.default_rng(seed).choice(total, count, replace=False, shuffle=False))


def training_sample(
    vectors: Readable, lists: int, *, seed: int = 0, without: Numbers | None = None
) -> NDArray[np.float16]:
    """Return vectors to train this number of centroids on, as 16-bit floats; those of `without` are not among them."""
    dimension = vectors.dimension
    fits = SAMPLE_BYTES // (2 * dimension)
    count = min(len(vectors), max(min(lists * POINTS, fits), lists * LEAST_POINTS))
    numbers = sample_numbers(len(vectors), count, seed)
    if without is not None and len(others := np.setdiff1d(numbers, without)) >= lists:
        numbers = others
    sample = np.empty((len(numbers), dimension), np.float16)
    for start in range(0, len(numbers), READ):
        block = vectors.take(numbers[start : start + READ])
        check_finite(block)  # the library would end the process
        sample[start : start + READ] = block
    return sample


def train_centroids(
    sample: NDArray[np.float16], lists: int, metric: Metric = "ip", *, seed: int = 0, rounds: int = ROUNDS
) -> Vectors:
    """Return centroids of the sample by k-means; those of the inner product have length 1.

    The result depends on the number of threads and the processor in its last digits.
    """
    faiss = import_faiss()
    dimension = sample.shape[1]
    settings = faiss.ClusteringParameters()
    settings.niter, settings.seed, settings.spherical = rounds, seed + 1, metric == "ip"
    settings.min_points_per_centroid, settings.max_points_per_centroid = 1, len(sample)
    clustering = faiss.Clustering(dimension, lists, settings)
    codec = faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_fp16)
    codec.train(np.zeros((1, dimension), np.float32))
    assignment = faiss.IndexFlat(dimension, metric_number(metric))
    codes = contiguous(sample, np.float16).view(np.uint8)
    clustering.train_encoded(codes, codec, assignment)
    centroids: Vectors = faiss.vector_to_array(clustering.centroids).reshape(lists, dimension)
    return centroids
