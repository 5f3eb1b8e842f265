"""`wids.wids_decode`: decode samples whose keys are extensions with their dot and whose values are open files."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from functools import partial
from typing import Any

from tarmac import environment
from tarmac.codecs import find_codec
from tarmac.codecs.compression import gunzip
from tarmac.codecs.decode import raise_located
from tarmac.codecs.handlers import SAFE, DecodeOptions, extension_of
from tarmac.codecs.images import FORMATS, open_image
from tarmac.samples.grouping import Sample

_BASIC = frozenset(["txt", "text", "cls", "cls2", "json", "npy", "mp", "pt", "pth", "pickle", "pkl"])
_IMAGES = frozenset(["jpg", "png", "ppm", "pgm", "pbm", "pnm"])
_PICKLES = DecodeOptions(allow_pickle=True)


def check_keys(sample: Sample) -> None:
    """Raise unless all keys start with a dot or with `__`."""
    for key in sample:
        if not key.startswith((".", "__")):
            raise ValueError(f"expected keys that start with a dot, got {key!r}")


def decode_all_gz(sample: Sample, format: Any = True, update_key: bool = True) -> Sample:
    """Decompress the fields that end in `.gz`, in place. `update_key` removes the `.gz` from their keys."""
    del format
    for key in [key for key in sample if key.lower().endswith(".gz") and key.count(".") > 1]:
        data = io.BytesIO(_decode(gunzip, key, sample))
        if update_key:
            del sample[key]
        sample[key[:-3] if update_key else key] = data
    return sample


def decode_basic(sample: Sample, format: Any = True, *, allow_pickle: bool = False) -> Sample:
    """Decode text, classes, JSON, arrays and tensors, in place; pickles only with `allow_pickle`."""
    del format
    allowed = allow_pickle or environment.allows_pickle()
    for key in _encoded_keys(sample):
        name = extension_of(key.lower().removesuffix(".gz"))
        codec = find_codec(name) if name in _BASIC else None
        options = _PICKLES if allowed and name in ("pickle", "pkl") else SAFE
        decode = _safetensors if name == "safetensors" else None if codec is None else codec.decoder(options)
        if decode is not None:
            sample[key] = _decode(decode, key, sample)
    return sample


def decode_images_to_pil(sample: Sample, format: Any = True) -> Sample:
    """Open images with Pillow, in place, in the mode in which they are stored."""
    del format
    return _decode_images(_image, sample)


def decode_images_to_numpy(sample: Sample, format: Any = True) -> Sample:
    """Decode images to arrays, in place, with the channels that they are stored with."""
    del format
    import numpy as np

    return _decode_images(lambda data: np.asarray(_image(data)), sample)


def default_decoder(
    sample: Sample, format: Any = "PIL", gz_update_key: bool = False, *, allow_pickle: bool = False
) -> Sample:
    """Return a sample with its fields decoded by extension, and images decoded to `format`: PIL or numpy."""
    decode_images = {"pil": decode_images_to_pil, "numpy": decode_images_to_numpy}.get(str(format).lower())
    if decode_images is None:
        raise ValueError(f"`format` must be 'PIL' or 'numpy', got {format!r}")
    decompressed = decode_all_gz(dict(sample), update_key=gz_update_key)
    return decode_images(decode_basic(decompressed, allow_pickle=allow_pickle))


def interpret_transformations(transformations: Any) -> list[Any]:
    """Return a list of functions for `transformations`: one or several functions, "PIL" or "numpy"; None is none."""
    if transformations is None:
        return []
    several = transformations if isinstance(transformations, list | tuple) else [transformations]
    functions = [partial(default_decoder, format=one) if one in ("PIL", "numpy") else one for one in several]
    for function in functions:
        if not callable(function):
            raise ValueError(f"a transformation must be a function, 'PIL' or 'numpy', got {function!r}")
    return functions


def _encoded_keys(sample: Sample) -> list[str]:
    check_keys(sample)
    return [
        key
        for key, value in sample.items()
        if not key.startswith("__") and (isinstance(value, bytes) or hasattr(value, "read"))
    ]


def _decode_images(decode: Callable[[bytes], Any], sample: Sample) -> Sample:
    for key in _encoded_keys(sample):
        if extension_of(key.lower()) in _IMAGES:
            sample[key] = _decode(decode, key, sample)
    return sample


def _decode(decode: Callable[[bytes], Any], key: str, sample: Sample) -> Any:
    value = sample[key]
    try:
        return decode(value if isinstance(value, bytes) else value.read())
    except Exception as error:
        raise_located(error, key, sample.get("__key__"), None)


def _image(data: bytes) -> Any:
    return open_image(data, FORMATS, SAFE.limits.pixels)


def _safetensors(data: bytes) -> Any:
    safetensors = importlib.import_module("safetensors.torch")
    return safetensors.load(data)
