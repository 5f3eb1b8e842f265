"""Recognising copies of pictures while they are downloaded: how many are found, how many others are, and what it costs.

The pictures have the spectrum of natural ones.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np

from bench.registry import Done, Site, Work, case

SIDE, WIDTH, HEIGHT, SHARD = 2048, 500, 375, 500
COUNT, COPIES, FALSE = 2000, 0.95, 0.001
"""How many pictures; the least share of copies, and the greatest share of other pictures, that may be recognised."""


def spectrum(height: int, width: int, random: np.random.Generator) -> np.ndarray:
    """Return noise whose amplitude falls with the frequency, as in natural pictures."""
    down, across = np.meshgrid(np.fft.fftfreq(height), np.fft.rfftfreq(width), indexing="ij")
    falls = 1 / np.maximum(np.hypot(down, across), 1 / width) ** 1.5
    values = np.fft.irfft2(falls * np.exp(2j * np.pi * random.random(falls.shape)), (height, width))
    return ((values - values.mean()) / values.std()).astype(np.float32)


@lru_cache(maxsize=1)
def details() -> np.ndarray:
    """Return a large plane, of which each picture has a part."""
    return spectrum(SIDE, SIDE, np.random.default_rng(1))


def views(count: int) -> Iterator[bytes]:
    """Yield JPEGs of pictures that look natural: what is large in them is their own, and only details are shared."""
    import simplejpeg
    from PIL import Image

    random = np.random.default_rng(2)
    for _ in range(count):
        coarse = Image.fromarray(spectrum(48, 64, random)).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        tops, lefts = random.integers(0, SIDE - HEIGHT, 2), random.integers(0, SIDE - WIDTH, 2)
        fine, hue = (
            details()[top : top + HEIGHT, left : left + WIDTH] for top, left in zip(tops, lefts, strict=True)
        )
        grey = np.asarray(coarse) + 0.2 * fine
        colours = np.stack([grey, grey + 0.2 * hue, grey - 0.2 * hue], 2)
        yield simplejpeg.encode_jpeg(np.clip(128 + 45 * colours, 0, 255).astype(np.uint8), 90)


def copy_of(data: bytes, number: int) -> bytes:
    """Return a version of a picture: encoded again, made smaller, or larger and of another format."""
    from PIL import Image

    stream = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        kind = number % 3
        if kind == 1:
            image.resize((WIDTH * 3 // 5, HEIGHT * 3 // 5), Image.Resampling.LANCZOS).save(
                stream, "JPEG", quality=75
            )
        elif kind == 2:
            image.resize((WIDTH * 3 // 2, HEIGHT * 3 // 2), Image.Resampling.BICUBIC).save(
                stream, "WEBP", method=0
            )
        else:
            image.save(stream, "JPEG", quality=50)
    return stream.getvalue()


@dataclass
class Recognised:
    """How many copies and how many other pictures were recognised, and the CPU seconds of that and of preparing all."""

    copies: int = 0
    others: int = 0
    of: int = 0
    seconds: float = 0.0
    all_seconds: float = 0.0

    def __str__(self) -> str:
        share = self.seconds / self.all_seconds
        shares = f"{self.copies / self.of:.2%} of copies, {self.others / self.of:.3%} of others"
        return f"{shares}, {share:.1%} of the CPU time of preparing them"

    @property
    def fault(self) -> str:
        good = self.copies >= COPIES * self.of and self.others <= FALSE * self.of
        return "" if good else f"recognised {self}; {COPIES:.0%} and at most {FALSE:.1%} are required"


def recognise(count: int) -> Recognised:
    """Prepare pictures and a copy of each, and look for them among those before, shard by shard as `download` does."""
    from tarmac.downloading.hashes import bytes_hash, perceptual_hash
    from tarmac.downloading.images import Pictures, prepare
    from tarmac.downloading.seen import Seen

    how, result, pictures = Pictures(size=256), Recognised(of=count), views(count)

    def hashed(data: bytes) -> tuple[int, int]:
        begin = time.thread_time()
        pixels = prepare(data, how).pixels
        assert pixels is not None
        prepared = time.thread_time()
        hashes = bytes_hash(data), perceptual_hash(pixels)
        end = time.thread_time()
        result.seconds, result.all_seconds = result.seconds + end - prepared, result.all_seconds + end - begin
        return hashes

    with Seen(near=True) as seen:
        while shard := [(data, copy_of(data, each)) for each, data in enumerate(islice(pictures, SHARD))]:
            pairs = [(hashed(data), hashed(copy)) for data, copy in shard]
            begin = time.thread_time()
            seen.forget()
            for first, _ in pairs:
                result.others += seen.has(*first)
                seen.add(*first)
            result.copies += sum(seen.has(*second) for _, second in pairs)
            seen.forget()
            seen.keep(first for first, _ in pairs)
            seconds = time.thread_time() - begin
            result.seconds, result.all_seconds = result.seconds + seconds, result.all_seconds + seconds
    return result


@case("download: recognise copies of 500x375 pictures", sides=("tarmac",))
def setup(site: Site, side: str) -> Work:
    def run() -> Done:
        result = recognise(min(site.small // 5, COUNT))
        return Done(result.of, result.seconds, str(result), result.fault)

    return run
