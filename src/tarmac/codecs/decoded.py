"""Resize decoded images: arrays, tensors and Pillow images. They keep their type, layout and colours."""

from __future__ import annotations

from typing import Any

from tarmac.codecs.resize import Region, resize_array


def image_size(image: Any) -> tuple[int, int] | None:
    """Return width and height of an image, or None if the value is not an image."""
    if hasattr(image, "getbands"):  # a Pillow image
        width, height = image.size
    elif getattr(image, "ndim", 0) not in (2, 3):
        return None
    elif hasattr(image, "detach"):  # a tensor: channels come first, if there are any
        height, width = image.shape[-2:]
    else:
        height, width = image.shape[:2]
    return (int(width), int(height)) if width and height else None


def resize_image(image: Any, region: Region) -> Any:
    """Return a resized part of an image, of the same type."""
    if hasattr(image, "getbands"):
        return _resize_pillow(image, region)
    if hasattr(image, "detach"):
        return _resize_tensor(image, region)
    return resize_array(image, region)


def _resize_tensor(image: Any, region: Region) -> Any:
    import numpy as np
    import torch

    pixels = image.detach().cpu().numpy()
    if image.ndim == 2:
        resized = resize_array(pixels, region)
    else:
        resized = resize_array(pixels.transpose(1, 2, 0), region).transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(resized)).to(image.device)


def _resize_pillow(image: Any, region: Region) -> Any:
    from PIL.Image import Resampling, Transpose

    (left, right), (top, bottom) = region.across.edges, region.down.edges
    # Both average over the areas of pixels that shrink; at other sizes the box is less even.
    filtering = Resampling.BOX if region.shrinks else Resampling.BILINEAR
    size = region.across.wanted, region.down.wanted
    resized = image.resize(size, filtering, (left, top, right, bottom))
    return resized.transpose(Transpose.FLIP_LEFT_RIGHT) if region.mirrored else resized
