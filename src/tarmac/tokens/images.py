"""Tokenize images with a model: any object that turns a batch of pixels into rows of codes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from tarmac.errors import TransformFailed, UsageError
from tarmac.steps.pictures import ResizeCenterCrop
from tarmac.tools.mappers.loading import load_object, set_up

Array = np.ndarray[Any, Any]


class ImageTokenizer:
    """A model that tokenizes images, loaded from `module:Class` or given as an object.

    It has `vocab_size`, and `encode(images)` or is callable: `images` is an array of uint8, NxHxWx3, and the result has
    N rows of codes, of any shape. It may have `setup(device)` and `close()`.
    """

    def __init__(self, source: Any, vocab_size: int | None = None) -> None:
        self._model = load_object(source, "image_tokenizer")
        encode = getattr(self._model, "encode", self._model)
        if not callable(encode):
            what = f"expected a model with a method `encode`, got {type(self._model).__name__}."
            raise UsageError(what, field="image_tokenizer")
        self._encode = encode
        size = vocab_size or getattr(self._model, "vocab_size", None)
        if not isinstance(size, int) or size < 1:
            what = "the image tokenizer does not tell the size of its vocabulary."
            raise UsageError(what, field="image_tokenizer", hint="`image_vocab_size` with that number.")
        self.vocab_size: int = size

    def setup(self, device: str) -> None:
        """Have the model load what it needs."""
        set_up(self._model, device, "image_tokenizer")

    def close(self) -> None:
        """Have the model release it."""
        close = getattr(self._model, "close", None)
        if callable(close):
            close()

    def encode(self, images: list[Array]) -> Array:
        """Return the codes of images of the same size, a row for each."""
        codes = self._encode(np.stack(images))
        if hasattr(codes, "detach"):
            codes = codes.detach().cpu().numpy()
        rows = np.asarray(codes)
        if rows.ndim < 1 or len(rows) != len(images) or rows.dtype.kind not in "iu":
            raise TransformFailed(
                f"the image tokenizer returned {rows.dtype} of shape {rows.shape} for {len(images)} images."
            )
        return rows.reshape(len(images), -1)


def pixels(data: bytes, resolution: int) -> Array:
    """Decode an image, make its shorter side as long as the resolution, and keep the square in its middle."""
    crop = ResizeCenterCrop(resolution, shorter=resolution)
    return crop.transform(data, Random(0))  # type: ignore[no-any-return]
