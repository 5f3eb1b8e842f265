"""Shards to measure with: the same bytes on every machine, made when first asked for, then kept.

Sizes vary by an eighth around their mean, as in real data, so that nothing is gained by remembering one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.registry import Site

VERSION = 2  # count up when the content changes, so that old files are not taken for new ones
TEXT_BYTES = 800
IMAGE_BYTES = 80_000
SEED = 7
SIDECAR = ".arrow"


def small_samples(site: Site) -> Iterator[dict[str, Any]]:
    """Short texts with a class."""
    rng = random.Random(SEED)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(2000)]
    pool = " ".join(rng.choices(words, k=200_000))
    for number in range(site.small):
        start = rng.randrange(len(pool) - 2 * TEXT_BYTES)
        yield {
            "__key__": f"{number:08d}",
            "cls": rng.randrange(1000),
            "txt": pool[start : start + _around(TEXT_BYTES, rng)],
        }


def big_samples(site: Site) -> Iterator[dict[str, Any]]:
    """Bytes as incompressible as a JPEG, with facts about them."""
    rng = random.Random(SEED)
    pool = rng.randbytes(4 * IMAGE_BYTES)
    for number in range(site.big):
        start = rng.randrange(2 * IMAGE_BYTES)
        yield {
            "__key__": f"{number:08d}",
            "jpg": b"\xff\xd8" + pool[start : start + _around(IMAGE_BYTES, rng)],
            "json": {"width": rng.randint(320, 640), "height": rng.randint(240, 480), "label": "bench"},
        }


def photo_samples(site: Site) -> Iterator[dict[str, Any]]:
    """JPEG pictures of 500x375 with a class; a hundred different ones, over and over.

    Coloured at half resolution, as cameras and the web do, and 108 KB large, as pictures of ImageNet are.
    """
    import numpy as np
    import simplejpeg

    rng = np.random.default_rng(SEED)
    pictures = []
    for _ in range(100):
        coarse = rng.integers(0, 256, (24, 32, 3)).astype(np.float32)
        smooth = np.kron(coarse, np.ones((16, 16, 1), np.float32))[:375, :500]
        noisy = smooth + rng.normal(0, 12, smooth.shape)
        pixels = noisy.clip(0, 255).astype(np.uint8)
        pictures.append(simplejpeg.encode_jpeg(pixels, quality=95, colorsubsampling="420"))
    for number in range(site.big):
        yield {"__key__": f"{number:08d}", "jpg": pictures[number % 100], "cls": number % 1000}


def natural_picture(rng: Any, width: int = 1024, height: int = 768) -> Any:
    """Return pixels like those of a photo: 1/f noise, a gradient of light, edges of shapes, noise of a sensor."""
    import numpy as np

    frequencies = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequencies[0, 0] = 1

    def clouds(power: float) -> Any:
        parts = rng.normal(size=(2, *frequencies.shape))
        field = np.fft.irfft2((parts[0] + 1j * parts[1]) / frequencies**power, (height, width))
        return field / field.std()

    y, x = np.mgrid[:height, :width].astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    light = 128 + 40 * ((x / width - 0.5) * np.cos(angle) + (y / height - 0.5) * np.sin(angle))
    light += 30 * clouds(1.2)
    colours = np.stack([12 * clouds(1.5), 0 * light, 12 * clouds(1.5)], 2)  # smoother than the light
    for _ in range(12):  # ellipses with soft edges
        (across, down), turn = rng.uniform(0, (width, height)), rng.uniform(0, np.pi)
        long = rng.uniform(0.04, 0.3) * width
        short = long * rng.uniform(0.3, 1)
        u = (x - across) * np.cos(turn) + (y - down) * np.sin(turn)
        v = (y - down) * np.cos(turn) - (x - across) * np.sin(turn)
        inside = np.clip((1 - np.hypot(u / long, v / short)) * short / 2 + 0.5, 0, 1)
        light += inside * rng.uniform(-60, 60)
        colours += inside[..., None] * rng.uniform(-25, 25, 3)
    pixels = light[..., None] + colours + rng.normal(0, 1.5, colours.shape)
    return pixels.clip(0, 255).astype(np.uint8)


def natural_jpegs(count: int, width: int = 1024, height: int = 768) -> list[bytes]:
    """Return natural-looking JPEGs with colours at half resolution, of quality 90 and 95 in turn."""
    import numpy as np
    import simplejpeg

    return [
        simplejpeg.encode_jpeg(
            natural_picture(np.random.default_rng(number), width, height),
            quality=(90, 95)[number % 2],
            colorsubsampling="420",
        )
        for number in range(count)
    ]


def large_samples(site: Site) -> Iterator[dict[str, Any]]:
    """JPEG pictures of 1024x768, of 260 and 390 KB; 24 different ones, over and over."""
    pictures = natural_jpegs(min(24, large_count(site)))
    for number in range(large_count(site)):
        yield {"__key__": f"{number:08d}", "jpg": pictures[number % len(pictures)]}


def large_count(site: Site) -> int:
    return max(1, site.big // 12)


def fact_samples(site: Site) -> Iterator[dict[str, Any]]:
    """Fields that are decoded and are not images: a class, some JSON, a small array."""
    import numpy as np

    rng = random.Random(SEED)
    for number in range(site.small // 5):
        facts = {f"field{i}": rng.random() if i % 2 else "word" * rng.randint(1, 9) for i in range(20)}
        array = np.full(64, number, np.float32)
        yield {"__key__": f"{number:08d}", "cls": rng.randrange(1000), "json": facts, "npy": array}


def _around(mean: int, rng: random.Random) -> int:
    return rng.randint(mean - mean // 8, mean + mean // 8)


def small_shard(site: Site, suffix: str = "tar") -> Path:
    return _shard(site, f"small-{site.small}-v{VERSION}.{suffix}", small_samples)


def gigabyte(site: Site) -> Site:
    """The same with enough 80 KB images for a gigabyte, at full size."""
    return replace(site, big=site.big * 25 // 6)


def big_shard(site: Site) -> Path:
    return _shard(site, f"big-{site.big}-v{VERSION}.tar", big_samples)


def photo_shard(site: Site) -> Path:
    return _shard(site, f"photo-{site.big}-v{VERSION}.tar", photo_samples)


def photo_shards(site: Site, count: int = 4) -> list[Path]:
    """The pictures in several shards, so that workers can share them."""
    import itertools

    def part(number: int):
        return lambda _: itertools.islice(photo_samples(site), number, None, count)

    return [
        _shard(site, f"photo-{site.big}-{number}of{count}-v{VERSION}.tar", part(number))
        for number in range(count)
    ]


def linked_photos(site: Site, count: int, *, index: bool = False) -> list[str]:
    """The pictures in `count` shards of the same size, if there are enough; return their names below `site.data`.

    The shards are hard links to the first, so that thousands of them need the room of one. With `index`, so are their
    indexes.
    """
    import tarmac

    count = min(count, site.big)
    each = site.big // count
    folder = site.data / f"photo-{each}x{count}-v{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number:06d}.tar" for number in range(count)]
    first = folder / names[0]
    if not first.exists():
        with tarmac.TarWriter(first) as writer:
            for sample in photo_samples(replace(site, big=each)):
                writer.write(sample)
    if index and not (folder / f"{names[0]}{SIDECAR}").exists():
        tarmac.index(str(first), progress=False)
    for suffix in ("", SIDECAR)[: 1 + index]:
        for name in names[1:]:
            if not (folder / f"{name}{suffix}").exists():
                os.link(folder / f"{names[0]}{suffix}", folder / f"{name}{suffix}")
    return [f"{folder.name}/{name}" for name in names]


def photo_manifest(site: Site, count: int) -> str:
    """The same shards, indexed, in a manifest; return its name below `site.data`."""
    import tarmac

    names = linked_photos(site, count, index=True)
    manifest = f"{names[0].rpartition('/')[0]}/m.json"
    if not (site.data / manifest).exists():
        tarmac.index([str(site.data / name) for name in names], str(site.data / manifest), progress=False)
    return manifest


def large_shard(site: Site) -> Path:
    return _shard(site, f"large-{site.big}-v{VERSION}.tar", large_samples)


def fact_shard(site: Site) -> Path:
    return _shard(site, f"fact-{site.small}-v{VERSION}.tar", fact_samples)


def small_shard_of_webdataset(site: Site) -> Path:
    """The small shard as the webdataset library writes it, with extended headers for every member."""
    path = site.data / f"small-{site.small}-v{VERSION}-webdataset.tar"
    if not path.exists():
        import webdataset

        site.data.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with webdataset.TarWriter(str(part), mtime=1.5) as writer:
            for sample in small_samples(site):
                writer.write(sample)
        os.replace(part, path)
    return path


def _shard(site: Site, name: str, samples) -> Path:
    path = site.data / name
    if not path.exists():
        from tarmac import TarWriter

        site.data.mkdir(parents=True, exist_ok=True)
        with TarWriter(path) as writer:  # a name on disk is a whole shard
            for sample in samples(site):
                writer.write(sample)
    return path


def link_rows(count: int, seed: int) -> Any:
    """Return rows like those of LAION: links, captions, sizes and scores, a hundredth of them missing."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(seed)
    words = np.array(
        ["a", "the", "of", "with", "red", "blue", "old", "new", "cat", "house", "river", "photo"]
    )
    texts = [" ".join(row) for row in words[rng.integers(0, len(words), (count, 8))]]
    ids, hosts = rng.integers(0, 1 << 62, count), rng.zipf(1.3, count) % 5000
    urls = [f"https://img{host}.example.com/{number}.jpg" for host, number in zip(hosts, ids, strict=True)]

    def score() -> Any:
        return pa.array(rng.random(count, np.float32), mask=rng.random(count) < 0.01)

    return pa.table(
        {
            "SAMPLE_ID": ids,
            "URL": urls,
            "TEXT": texts,
            "HEIGHT": rng.integers(64, 2400, count, np.int32),
            "WIDTH": rng.integers(64, 2400, count, np.int32),
            "LANGUAGE": pa.array(np.array(["en", "de", "fr"])[rng.integers(0, 3, count)]),
            "similarity": rng.random(count),
            "punsafe": score(),
            "pwatermark": score(),
        }
    )
