"""Turn what a query gives into vectors: text and pictures with the model that made the embeddings, or a file."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

from tarmac.embedding.encode import encode_images, encode_texts
from tarmac.embedding.layout import Facts
from tarmac.embedding.models.load import has_changed, load_model, set_up
from tarmac.errors import CodecError, NotFound, TarmacWarning, UsageError
from tarmac.runtime.device import assign_device
from tarmac.searching.library import Vectors
from tarmac.storage import read_all

_loaded: dict[tuple[str, str, str], Any] = {}
"""The last model that was used, since loading one takes longer than many searches."""


def encode_text(origin: Facts, text: str, device: str | None, url: str) -> Vectors:
    """Return the vector of a text, by the model that made the embeddings."""
    return encode_texts(_ready(origin, "texts", device, url), [text])


def encode_image(
    origin: Facts, image: str | os.PathLike[str] | bytes, device: str | None, url: str
) -> Vectors:
    """Return the vector of a picture: a file, a URL, or its bytes."""
    ready = _ready(origin, "images", device, url)
    data = image if isinstance(image, bytes) else bytes(read_all(os.fspath(image)))
    try:
        return encode_images(ready, [data])
    except CodecError as error:
        raise error if isinstance(image, bytes) else error.at(url=os.fspath(image)) from None


def _ready(origin: Facts, kind: str, device: str | None, url: str) -> Any:
    """Return the model, ready to encode texts or images."""
    name = origin.model
    if not name:
        what = "the model that made the embeddings is unknown."
        raise UsageError(what, url=url, field="vectors", hint="`vectors`, made by the same model.")
    where = assign_device(device, 0) or "cpu"
    if (name, kind, where) not in _loaded:
        _loaded.clear()
        model = set_up(load_model(name), where, (kind,))
        if has_changed(origin.info.get("fingerprint", ""), name):
            warnings.warn(
                f"{url}: {name} has changed since it made the embeddings.", TarmacWarning, stacklevel=4
            )
        _loaded[name, kind, where] = model
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
    except (OSError, ValueError, EOFError):  # whose text recommends to load pickles
        what = "this is not an array of vectors, as numpy.save writes them."
        raise UsageError(what, field="vectors", url=name) from None
