"""Draw small pictures of a few kinds: the same number always gives the same picture.

A picture is a field of values from 0 to 1, one for each pixel, coloured by a ramp that runs from the
colour of the ground to the colour of the ink.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import simplejpeg
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

__all__ = ["KINDS", "draw"]

Field = NDArray[np.float32]

COLOURS = {
    "white": (240, 240, 232),
    "black": (24, 24, 32),
    "red": (200, 40, 48),
    "orange": (240, 140, 40),
    "yellow": (244, 212, 72),
    "green": (56, 152, 80),
    "teal": (24, 128, 136),
    "blue": (40, 80, 184),
    "purple": (112, 56, 144),
}


def _circle(x: Field, y: Field, rng: Generator) -> Field:
    radius = rng.uniform(0.3, 0.7)
    return _inside(radius - np.hypot(x - rng.uniform(-0.4, 0.4), y - rng.uniform(-0.2, 0.2)))


def _square(x: Field, y: Field, rng: Generator) -> Field:
    across, along = _turned(x, y, rng.uniform(0, np.pi / 2))
    return _inside(rng.uniform(0.3, 0.6) - np.maximum(np.abs(across), np.abs(along)))


def _stripes(x: Field, y: Field, rng: Generator) -> Field:
    across, _ = _turned(x, y, rng.uniform(0, np.pi))
    return _inside(np.sin(across * rng.uniform(6, 24)), edge=0.3)


def _checker(x: Field, y: Field, rng: Generator) -> Field:
    across, along = _turned(x, y, rng.uniform(0, np.pi / 2))
    pitch = rng.uniform(6, 16)
    return _inside(np.sin(across * pitch) * np.sin(along * pitch), edge=0.2)


def _clouds(x: Field, y: Field, rng: Generator) -> Field:
    layers = [
        _stretched(_stretched(rng.random((cells, cells), np.float32), y.size).T, x.size).T / share
        for cells, share in ((4, 2), (9, 4), (19, 8), (40, 8))
    ]
    return np.clip(np.sum(layers, axis=0) * 2 - 0.5, 0, 1)


def _sunset(x: Field, y: Field, rng: Generator) -> Field:
    horizon, middle = rng.uniform(0.1, 0.6), rng.uniform(-0.6, 0.6)
    glow = np.exp(-np.hypot(x - middle, y - horizon))
    sun = _inside(rng.uniform(0.15, 0.3) - np.hypot(x - middle, y - horizon + 0.1))
    sea = 0.5 * glow * (1 + 0.5 * np.sin(60 * y / (1.05 - horizon + y.clip(horizon))))
    return np.where(y < horizon, np.maximum(0.8 * glow, sun), sea)


KINDS: dict[str, Callable[[Field, Field, Generator], Field]] = {
    "circle": _circle,
    "square": _square,
    "stripes": _stripes,
    "checker": _checker,
    "clouds": _clouds,
    "sunset": _sunset,
}


def draw(number: int, seed: int = 0) -> dict[str, Any]:
    """Return sample `number`: its picture as a JPEG, a caption, a class, and facts about it."""
    rng = default_rng((seed, number))
    label = int(rng.integers(len(KINDS)))
    kind = list(KINDS)[label]
    ground, ink = (str(name) for name in rng.choice(list(COLOURS), 2, replace=False))
    width, height = int(rng.integers(320, 501)), int(rng.integers(240, 376))
    x = np.linspace(-width / height, width / height, width, dtype=np.float32)[None, :]
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    grain = rng.normal(0, 5, (64, 64)).astype(np.float32)
    field = 255 * KINDS[kind](x, y, rng) + np.tile(grain, (6, 8))[:height, :width]
    ramp = np.linspace(COLOURS[ground], COLOURS[ink], 256).astype(np.uint8)
    pixels = ramp.take(field.clip(0, 255).astype(np.uint8), axis=0)
    return {
        "__key__": f"{number:06d}",
        "jpg": simplejpeg.encode_jpeg(pixels, quality=85),
        "txt": f"{kind} in {ink} on {ground}",
        "cls": label,
        "json": {"width": width, "height": height, "kind": kind, "ink": ink, "ground": ground},
    }


def _inside(depth: Field, edge: float = 0.02) -> Field:
    """Turn a distance from an outline into 1 within it and 0 outside, softly at the edge."""
    return np.clip(depth / edge + 0.5, 0, 1)


def _turned(x: Field, y: Field, angle: float) -> tuple[Field, Field]:
    cos, sin = math.cos(angle), math.sin(angle)
    return x * cos + y * sin, y * cos - x * sin


def _stretched(grid: Field, rows: int) -> Field:
    """Spread the rows of a grid over more rows, linearly."""
    location = np.linspace(0, len(grid) - 1, rows, dtype=np.float32)[:, None]
    above = location.astype(int).ravel().clip(max=len(grid) - 2)
    share = location - above[:, None].astype(np.float32)
    return grid[above] * (1 - share) + grid[above + 1] * share
