"""The contract of an embedding model: what `embed` and searches need to know about it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tarmac.steps.pictures import ResizeCenterCrop


class EmbeddingModel:
    """Turns images, texts or both into vectors. Subclass it, or write a class with the same names.

    >>> class Colours(tarmac.EmbeddingModel):
    ...     version = "1"
    ...     dimension = 3
    ...     resolution = 64
    ...     def encode_images(self, images):
    ...         return np.stack(images).mean((1, 2))

    A job makes one object in each process and calls `setup(device)` before anything else, and `close` at the end. The
    vectors may have any length; what is stored has length 1. `prepare_image` may run in several threads.
    """

    version: str = "1"
    """Part of the fingerprint of a job, besides the source: change it when results change."""
    dimension: int = 0
    """The number of numbers of a vector. It may be set in `setup`."""
    resolution: int = 224
    """Width and height of the images that `prepare_image` returns."""

    def setup(self, device: str) -> None:
        """Load what stays loaded, on this device: `cpu` or `cuda:0`."""

    def prepare_image(self, data: bytes) -> Any:
        """Return what the model needs of an image; by default the pixels of the square in its middle, as uint8."""
        crop = ResizeCenterCrop(self.resolution, shorter=self.resolution)
        return crop.transform(data, Random(0))

    def prepare_texts(self, texts: list[str]) -> Sequence[Any]:
        """Return what the model needs of each text, such as its tokens. Batches have items of similar `len`."""
        return texts

    def encode_images(self, images: list[Any]) -> Any:
        """Return a vector for each prepared image, as an array or a tensor."""
        raise NotImplementedError

    def encode_texts(self, texts: list[Any]) -> Any:
        """Return a vector for each prepared text."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what `setup` has loaded."""


class GivenModel(EmbeddingModel):
    """An object with some of the names of the contract; the contract has the others."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.resolution = getattr(inner, "resolution", EmbeddingModel.resolution)
        for name in ("prepare_image", "prepare_texts", "encode_images", "encode_texts", "close"):
            if callable(method := getattr(inner, name, None)):
                setattr(self, name, method)

    def setup(self, device: str) -> None:
        if callable(method := getattr(self._inner, "setup", None)):
            method(device)
        self.dimension = getattr(self._inner, "dimension", 0)


def encodes(model: Any, kind: str) -> bool:
    """Return whether a model has a method of its own to encode `images` or `texts`."""
    name = f"encode_{kind}"
    inner = model._inner if isinstance(model, GivenModel) else model
    own = getattr(type(inner), name, None) or getattr(inner, name, None)
    return own is not None and own is not getattr(EmbeddingModel, name)
