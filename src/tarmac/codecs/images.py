"""Images to bytes, through Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tarmac.errors import EncodeFailed

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["image_encoder"]

_OPTIONS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 100},
    "TIFF": {"compression": "raw"},
    "WEBP": {"lossless": True},
}
_TOLERANCE = 1e-3


def image_encoder(form: str, mode: str | None = None) -> Callable[[Any], bytes]:
    """Make an encoder for one image format.

    It takes Pillow images and arrays: HxW, HxWx1, HxWx3 or HxWx4, uint8, or floats from 0 to 1.
    """

    def encode(value: Any) -> bytes:
        image = _image(value)
        if mode is not None:
            image = image.convert(mode)
        if form == "JPEG" and image.mode not in ("L", "RGB", "CMYK", "YCbCr"):
            raise EncodeFailed(f"JPEG cannot hold {image.mode} images.", hint='png, or image.convert("RGB").')
        stream = io.BytesIO()
        image.save(stream, format=form, **_OPTIONS.get(form, {}))
        return stream.getvalue()

    return encode


def _image(value: Any) -> Image:
    import numpy as np
    from PIL import Image

    if isinstance(value, Image.Image):
        return value
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise EncodeFailed(f"an image is HxW, HxWx1, HxWx3 or HxWx4, got shape {array.shape}.")
    if array.dtype.kind == "f":
        low, high = float(array.min(initial=0)), float(array.max(initial=0))
        if low <= -_TOLERANCE or high >= 1 + _TOLERANCE:
            raise EncodeFailed(f"float images range from 0 to 1, this one from {low:g} to {high:g}.")
        array = (np.clip(array, 0, 1) * 255).astype(np.uint8)
    if array.dtype != np.uint8 and not (array.dtype == np.uint16 and array.ndim == 2):
        raise EncodeFailed(f"an image is uint8 or float (or uint16 in grey), got {array.dtype}.")
    return Image.fromarray(np.ascontiguousarray(array))
