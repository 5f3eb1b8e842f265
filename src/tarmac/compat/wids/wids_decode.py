"""`wids.wids_decode`: fields by their extensions."""

from __future__ import annotations

from tarmac.compat.fieldfiles import (
    check_keys,
    decode_all_gz,
    decode_basic,
    decode_images_to_numpy,
    decode_images_to_pil,
    default_decoder,
)

__all__ = [
    "check_keys",
    "decode_all_gz",
    "decode_basic",
    "decode_images_to_numpy",
    "decode_images_to_pil",
    "default_decoder",
]
