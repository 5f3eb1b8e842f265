"""Turn what a query gives into vectors: text and pictures with the model that made the embeddings, or a file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from tarmac.errors import NotFound, UsageError
from tarmac.runtime.device import assign_device
from tarmac.searching.library import Vectors
from tarmac.storage import read_all

_loaded: dict[tuple[str, str, str], Any] = {}
"""The last model that was used, since loading one takes longer than many searches."""


def encode_text(model: str, text: str, device: str | None, url: str) -> Vectors:
    """Return the vector of a text."""
    ready = _ready(model, "texts", device, url)
    from tarmac.embedding.encode import encode_texts  # type: ignore[import-not-found, unused-ignore]

    return encode_texts(ready, [text])  # type: ignore[no-any-return, unused-ignore]


def encode_image(model: str, image: str | os.PathLike[str] | bytes, device: str | None, url: str) -> Vectors:
    """Return the vector of a picture: a file, a URL, or its bytes."""
    ready = _ready(model, "images", device, url)
    from tarmac.embedding.encode import encode_images  # type: ignore[import-not-found, unused-ignore]

    data = image if isinstance(image, bytes) else bytes(read_all(os.fspath(image)))
    return encode_images(ready, [data])  # type: ignore[no-any-return, unused-ignore]


def _ready(name: str, kind: str, device: str | None, url: str) -> Any:
    """Return the model, ready to encode texts or images."""
    if not name:
        what = "the model that made the embeddings is unknown."
        raise UsageError(what, url=url, field="vectors", hint="`vectors`, made by the same model.")
    from tarmac.embedding.models import load_model  # type: ignore[import-not-found, unused-ignore]
    from tarmac.embedding.models.load import set_up  # type: ignore[import-not-found, unused-ignore]

    where = assign_device(device, 0) or "cpu"
    if (name, kind, where) not in _loaded:
        _loaded.clear()
        _loaded[name, kind, where] = set_up(load_model(name), where, (kind,))
    return _loaded[name, kind, where]


def read_vectors(vectors: Any) -> Any:
    """Return vectors, those of a .npy file if they are a path."""
    if not isinstance(vectors, str | os.PathLike):
        return vectors
    name = os.fspath(vectors)
    try:
        return np.load(name, allow_pickle=False)
    except FileNotFoundError:
        raise NotFound("no such file.", url=name) from None
    except (OSError, ValueError, EOFError) as error:
        what = f"this is not an array of vectors: {error}."
        raise UsageError(what, field="vectors", url=name) from None
