"""What a dataset is like: how many samples, which fields they have, how large those are, and their images."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tarmac.codecs import kind_of
from tarmac.display import visible
from tarmac.exact.dataset import Dataset
from tarmac.indexing.attributes import read_field
from tarmac.samples.grouping import Sample

__all__ = ["bars", "collect", "from_index", "report_lines", "Statistics", "summary"]

BINS = 12
WIDTH = 40
MOST_RESOLUTIONS = 100_000
"""Different resolutions that are told apart."""


@dataclass(slots=True)
class Statistics:
    """Sizes of everything, as they were met."""

    shards: Counter[str] = field(default_factory=Counter)
    """Samples of each shard."""
    samples: array[int] = field(default_factory=lambda: array("q"))
    """Bytes of each sample."""
    fields: dict[str, array[int]] = field(default_factory=dict)
    """Bytes of each field, of the samples that have it."""
    resolutions: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Width and height of images, as stored, from their headers."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """Images whose header cannot be read, by field."""

    def facts(self, *, images: bool = True) -> dict[str, Any]:
        """The numbers, for JSON."""
        made: dict[str, Any] = {
            "shards": len(self.shards),
            "samples": len(self.samples),
            "bytes": sum(self.samples),
            "per_shard": summary(list(self.shards.values())),
            "per_sample": summary(self.samples),
            "fields": {name: {"samples": len(sizes)} | summary(sizes) for name, sizes in self.fields.items()},
        }
        if images:
            common = self.resolutions.most_common(100)
            made["resolutions"] = {f"{width}x{height}": count for (width, height), count in common}
            made["unreadable"] = dict(self.unreadable)
        return made


def summary(sizes: Iterable[int]) -> dict[str, float]:
    """The least, the middle, the mean, the most and the sum of some sizes."""
    found: NDArray[np.int64] = np.fromiter(sizes, np.int64)
    if not len(found):
        return {"min": 0, "median": 0, "mean": 0, "max": 0, "total": 0}
    return {
        "min": int(found.min()),
        "median": float(np.median(found)),
        "mean": round(float(found.mean()), 1),
        "max": int(found.max()),
        "total": int(found.sum()),
    }


def collect(samples: Iterable[Sample]) -> Statistics:
    """Look at samples one by one, and at the headers of their images."""
    found = Statistics()
    for sample in samples:
        size = 0
        for name, data in sample.items():
            if name[:2] == "__":
                continue
            size += len(data)
            found.fields.setdefault(name, array("q")).append(len(data))
            if kind_of(name) == "image":
                _look_at_image(found, name, data)
        found.samples.append(size)
        found.shards[sample.get("__url__", "")] += 1
    return found


def _look_at_image(found: Statistics, name: str, data: bytes) -> None:
    try:
        lookup = read_field(name, data)
        place = lookup("width"), lookup("height")
    except Exception:  # whatever a library says of damaged images
        found.unreadable[name] += 1
        return
    if place in found.resolutions or len(found.resolutions) < MOST_RESOLUTIONS:
        found.resolutions[place] += 1


def from_index(dataset: Dataset) -> Statistics:
    """The same from the index, without reading samples; it knows nothing of images."""
    found = Statistics()
    for part in dataset.parts:
        numbers = part.numbers.tolist()
        for number, sidecar, rows in zip(numbers, part.shards.sidecars(numbers), part.rows, strict=True):
            chosen = np.arange(len(sidecar)) if rows is None else rows.astype(np.int64)
            found.shards[part.shards.url(number)] += len(chosen)
            found.samples.frombytes(sidecar.bytes_of(chosen).astype(np.int64).tobytes())
            wanted = np.zeros(len(sidecar), bool)
            wanted[chosen] = True
            mine = np.repeat(wanted, np.diff(sidecar.starts))
            for code, name in enumerate(sidecar.fields):
                sizes = sidecar.sizes[mine & (sidecar.field_of == code)]
                if len(sizes):
                    found.fields.setdefault(name, array("q")).frombytes(sizes.astype(np.int64).tobytes())
    return found


def bars(sizes: Iterable[int], width: int = WIDTH) -> Iterator[str]:
    """A histogram in letters; each bin reaches twice as far as the one before, where sizes differ much."""
    found: NDArray[np.int64] = np.fromiter(sizes, np.int64)
    if not len(found):
        return
    low, high = int(found.min()), int(found.max())
    if high - low < BINS:
        edges = np.arange(low, high + 2, dtype=np.int64)
    elif high > 16 * max(low, 1):
        edges = np.unique(np.geomspace(max(low, 1), high + 1, BINS + 1).astype(np.int64))
        edges[0], edges[-1] = low, high + 1
    else:
        edges = np.unique(np.linspace(low, high + 1, BINS + 1).astype(np.int64))
    counts, _ = np.histogram(found, edges)
    digits = len(str(high))
    for begin, end, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True):
        bar = "#" * -(-count * width // int(counts.max()))
        yield f"{begin:>{digits}} .. {end - 1:>{digits}}  {bar:<{width}} {count}".rstrip()


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def report_lines(found: Statistics) -> Iterator[str]:
    """Everything, for people."""
    facts = found.facts()
    yield f"{facts['shards']} shards, {facts['samples']} samples, {facts['bytes']} bytes"
    names = ("min", "median", "mean", "max", "total")
    rows = [["", "samples", *names]]
    told = {"samples per shard": facts["per_shard"] | {"samples": ""}}
    told |= {"bytes per sample": facts["per_sample"] | {"samples": facts["samples"]}}
    for label, numbers in (told | facts["fields"]).items():
        rows.append([visible(label), str(numbers["samples"]), *(_short(numbers[name]) for name in names)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield ""
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([row[0].ljust(len(first)), *others])
    yield ""
    yield "bytes per sample:"
    yield from bars(found.samples)
    if facts["resolutions"]:
        yield ""
        yield "images (width x height):"
        most = max(facts["resolutions"].values())
        for resolution, count in list(facts["resolutions"].items())[:20]:
            yield f"{resolution:>12}  {'#' * -(-count * WIDTH // most):<{WIDTH}} {count}"
        if len(found.resolutions) > 20:
            yield f"{'others':>12}  {len(found.resolutions) - 20} resolutions"
    for name, count in found.unreadable.items():
        yield f"{count} x {visible(name)} cannot be read"
