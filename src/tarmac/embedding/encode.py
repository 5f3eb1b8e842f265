"""Turn images and texts into vectors of length 1, as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tarmac.embedding.models.contract import EmbeddingModel
from tarmac.errors import TransformFailed, UsageError

Vectors = NDArray[np.float32]


def encode_images(model: EmbeddingModel, images: Sequence[bytes]) -> Vectors:
    """Return the vectors of encoded images; `setup` of the model was called."""
    return unit_vectors(
        model, model.encode_images([model.prepare_image(bytes(each)) for each in images]), len(images)
    )


def encode_texts(model: EmbeddingModel, texts: Sequence[str]) -> Vectors:
    """Return the vectors of texts."""
    return unit_vectors(model, model.encode_texts(list(model.prepare_texts(list(texts)))), len(texts))


def unit_vectors(model: EmbeddingModel, result: Any, count: int) -> Vectors:
    """Return what a model returned for a batch as float32, each vector with length 1.

    Another shape than the model says is not the fault of a sample. A vector without a direction is.
    """
    if hasattr(result, "detach"):
        result = result.detach().float().cpu().numpy()
    vectors = np.asarray(result, np.float32)
    if vectors.shape != (count, model.dimension):
        what = f"the model returned an array of shape {vectors.shape}, expected {(count, model.dimension)}."
        raise UsageError(what, field="model")
    # The largest number first: squares of large ones would overflow.
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    if not (np.isfinite(largest) & (largest > 0)).all():
        raise TransformFailed("the model returned a vector that is zero, or has a number that is not finite.")
    vectors = vectors / largest
    vectors /= np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    return vectors  # type: ignore[no-any-return]
