"""Transforms of images that are never made."""

import enum


class InterpolationMode(enum.Enum):
    BICUBIC = "bicubic"
    BILINEAR = "bilinear"
    NEAREST = "nearest"


class Normalize: ...


class Compose: ...


class RandomResizedCrop: ...


class ToTensor: ...


class Resize: ...


class CenterCrop: ...


class ColorJitter: ...


class Grayscale: ...
