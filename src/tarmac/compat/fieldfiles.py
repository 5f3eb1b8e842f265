"""Decoding samples whose keys are extensions with their dot and whose values are open files, as in wids."""

from __future__ import annotations

import importlib
import io
from functools import partial
from typing import Any

from tarmac.codecs import find_codec
from tarmac.codecs.compression import gunzip
from tarmac.codecs.handlers import SAFE, DecodeOptions, extension_of
from tarmac.codecs.images import FORMATS, open_image
from tarmac.errors import CodecError, DecodeFailed, TarmacError
from tarmac.samples.grouping import Sample

__all__ = [
    "check_keys",
    "decode_all_gz",
    "decode_basic",
    "decode_images_to_numpy",
    "decode_images_to_pil",
    "default_decoder",
    "interpret_transformations",
]

_BASIC = frozenset(["txt", "text", "cls", "cls2", "json", "npy", "mp", "pt", "pth", "pickle", "pkl"])
_IMAGES = frozenset(["jpg", "png", "ppm", "pgm", "pbm", "pnm"])
_PICKLES = DecodeOptions(allow_pickle=True)


def check_keys(sample: Sample) -> None:
    """Raise unless all keys are extensions with their dot, or of the form `__key__`."""
    for key in sample:
        if not key.startswith((".", "__")):
            raise ValueError(f"the keys of such a sample begin with a dot, {key!r} does not")


def decode_all_gz(sample: Sample, format: Any = True, update_key: bool = True) -> Sample:
    """Decompress the fields that end in `.gz`, in place; `update_key` takes the `.gz` off their names."""
    del format
    for key in [key for key in sample if key.lower().endswith(".gz") and key.count(".") > 1]:
        data = io.BytesIO(_decoded(gunzip, key, sample))
        if update_key:
            del sample[key]
        sample[key[:-3] if update_key else key] = data
    return sample


def decode_basic(sample: Sample, format: Any = True, *, allow_pickle: bool = False) -> Sample:
    """Decode text, classes, JSON, arrays and tensors, in place; pickles only if that is allowed."""
    del format
    check_keys(sample)
    for key in sample:
        name = extension_of(key.lower().removesuffix(".gz"))
        if key.startswith("__") or not _is_file(sample[key]):
            continue
        if name == "safetensors":
            sample[key] = _decoded(_safetensors, key, sample)
        elif name in _BASIC and (codec := find_codec(name)) is not None:
            options = _PICKLES if allow_pickle and name in ("pickle", "pkl") else SAFE
            sample[key] = _decoded(codec.decoder(options), key, sample)
    return sample


def decode_images_to_pil(sample: Sample, format: Any = True) -> Sample:
    """Open images with Pillow, in place, in the mode in which they are stored."""
    del format
    check_keys(sample)
    for key in sample:
        if extension_of(key.lower()) in _IMAGES and not key.startswith("__") and _is_file(sample[key]):
            sample[key] = _decoded(_image, key, sample)
    return sample


def decode_images_to_numpy(sample: Sample, format: Any = True) -> Sample:
    """Decode images to arrays, in place, with the channels that they are stored with."""
    del format
    import numpy as np

    check_keys(sample)
    for key in sample:
        if extension_of(key.lower()) in _IMAGES and not key.startswith("__") and _is_file(sample[key]):
            sample[key] = _decoded(lambda data: np.asarray(_image(data)), key, sample)
    return sample


def default_decoder(
    sample: Sample, format: Any = "PIL", gz_update_key: bool = False, *, allow_pickle: bool = False
) -> Sample:
    """Return a sample with its fields decoded by their extensions, images as `format` says: PIL or numpy."""
    images = {"pil": decode_images_to_pil, "numpy": decode_images_to_numpy}.get(str(format).lower())
    if images is None:
        raise ValueError(f"images are decoded to 'PIL' or 'numpy', not to {format!r}")
    found = decode_all_gz(dict(sample), update_key=gz_update_key)
    return images(decode_basic(found, allow_pickle=allow_pickle))


def interpret_transformations(transformations: Any) -> list[Any]:
    """The functions that `transformations=` stands for: one or several, "PIL", "numpy", or None for none."""
    if transformations is None:
        return []
    several = transformations if isinstance(transformations, list | tuple) else [transformations]
    found = [partial(default_decoder, format=one) if one in ("PIL", "numpy") else one for one in several]
    for one in found:
        if not callable(one):
            raise ValueError(f"a transformation is a function, 'PIL' or 'numpy', not {one!r}")
    return found


def _is_file(value: Any) -> bool:
    return isinstance(value, bytes) or hasattr(value, "read")


def _decoded(decode: Any, key: str, sample: Sample) -> Any:
    value = sample[key]
    try:
        return decode(value if isinstance(value, bytes) else value.read())
    except TarmacError as error:
        error.at(key=sample.get("__key__"))
        if isinstance(error, CodecError):
            error.field = key
        raise
    except (ValueError, TypeError, OSError, EOFError) as error:
        what = f'the field "{key}" cannot be decoded: {" ".join(str(error).split())[:200]}.'
        raise DecodeFailed(what, key=sample.get("__key__")) from error


def _image(data: bytes) -> Any:
    return open_image(data, FORMATS, SAFE.limits.pixels)


def _safetensors(data: bytes) -> Any:
    safetensors = importlib.import_module("safetensors.torch")
    return safetensors.load(data)
