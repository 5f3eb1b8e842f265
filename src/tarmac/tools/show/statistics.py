"""Summarise a dataset: samples, fields, sizes and image resolutions."""

from __future__ import annotations

import html
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from tarmac.codecs import kind_of
from tarmac.display import plural, visible
from tarmac.exact.dataset import Dataset
from tarmac.indexing.attributes import read_field
from tarmac.indexing.manifest import Manifest
from tarmac.storage.urls import Shards
from tarmac.tools.options import Access, bundle, verb
from tarmac.tools.plan import can_index, open_indexed
from tarmac.tools.select import Select
from tarmac.tools.show.rows import open_rows
from tarmac.tools.show.verb import SampleView, ShowArgs, show

BINS = 12
WIDTH = 40
MAX_RESOLUTIONS = 100_000
"""Different resolutions that are counted separately."""
_NUMBERS = ("min", "median", "mean", "max", "total")


@verb(ShowArgs, Select, Access)
def stats(
    sources: Shards | Manifest, n: int | None = None, *, images: bool = True, **options: Unpack[ShowArgs]
) -> Statistics:
    """Return statistics of the selected samples, or of the first `n` of them.

    Without `images` the index answers, if the shards can be indexed: no sample is read.
    """
    access, select = bundle(Access, options), bundle(Select, options)
    inputs = access.inputs(sources)
    if not images and n is None and select.rule is None and can_index(inputs.urls):
        indexed = open_rows(inputs.manifest, select, access) or open_indexed(inputs, select, access)
        return _from_index(indexed.dataset)
    return _from_samples(show(inputs, n, **options), images=images)  # type: ignore[arg-type]


@dataclass(slots=True)
class Statistics:
    """Numbers and sizes of samples and fields."""

    shards: Counter[str] = field(default_factory=Counter)
    """Number of samples of each shard."""
    samples: array[int] = field(default_factory=lambda: array("q"))
    """Bytes of each sample."""
    fields: dict[str, array[int]] = field(default_factory=dict)
    """Bytes of each field, of the samples that have it."""
    resolutions: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Width and height of images, from their headers."""
    widths: array[int] = field(default_factory=lambda: array("q"))
    heights: array[int] = field(default_factory=lambda: array("q"))
    unreadable: Counter[str] = field(default_factory=Counter)
    """Images whose header cannot be read, by field."""

    @property
    def bytes(self) -> int:
        """Return the payload of all samples."""
        return sum(self.samples)

    def to_dict(self, *, images: bool = True) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        numbers: dict[str, Any] = {
            "shards": len(self.shards),
            "samples": len(self.samples),
            "bytes": self.bytes,
            "per_shard": summary(list(self.shards.values())),
            "per_sample": summary(self.samples),
            "fields": {name: {"samples": len(sizes)} | summary(sizes) for name, sizes in self.fields.items()},
        }
        if images:
            numbers["images"] = self.image_shapes()
            common = self.resolutions.most_common(100)
            numbers["resolutions"] = {f"{width}x{height}": count for (width, height), count in common}
            numbers["unreadable"] = dict(self.unreadable)
        return numbers

    def image_shapes(self) -> dict[str, dict[str, float]]:
        """Return minimum, median, mean and maximum of the width, the height and the aspect ratio of images."""
        widths, heights = np.array(self.widths, np.int64), np.array(self.heights, np.int64)
        if not len(widths):
            return {}
        shapes = {"width": widths, "height": heights, "aspect": widths / np.maximum(heights, 1)}
        functions: dict[str, Callable[..., Any]] = {
            "min": np.min,
            "median": np.median,
            "mean": np.mean,
            "max": np.max,
        }
        return {
            name: {label: round(float(function(values)), 2) for label, function in functions.items()}
            for name, values in shapes.items()
        }

    def __str__(self) -> str:
        return "\n".join(_report_lines(self))

    def __repr__(self) -> str:
        names = ", ".join(self.fields)
        return f"<statistics of {len(self.samples)} samples in {len(self.shards)} shards: {names}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in _table(self)
        )
        return f"<table>{rows}</table>"


def summary(sizes: Iterable[int]) -> dict[str, float]:
    """Return minimum, median, mean, maximum and total."""
    values: NDArray[np.int64] = np.fromiter(sizes, np.int64)
    if not len(values):
        return dict.fromkeys(_NUMBERS, 0)
    return {
        "min": int(values.min()),
        "median": float(np.median(values)),
        "mean": round(float(values.mean()), 1),
        "max": int(values.max()),
        "total": int(values.sum()),
    }


def _from_samples(samples: Iterable[SampleView], *, images: bool) -> Statistics:
    result = Statistics()
    for sample in samples:
        for name, data in sample.fields.items():
            result.fields.setdefault(name, array("q")).append(len(data))
            if images and kind_of(name) == "image":
                _add_image(result, name, data)
        result.samples.append(sum(sample.sizes.values()))
        result.shards[sample.url] += 1
    return result


def _add_image(result: Statistics, name: str, data: bytes) -> None:
    try:
        lookup = read_field(name, data)
        resolution = lookup("width"), lookup("height")
    except Exception:  # libraries raise anything for damaged images
        result.unreadable[name] += 1
        return
    result.widths.append(resolution[0])
    result.heights.append(resolution[1])
    if resolution in result.resolutions or len(result.resolutions) < MAX_RESOLUTIONS:
        result.resolutions[resolution] += 1


def _from_index(dataset: Dataset) -> Statistics:
    result = Statistics()
    for part in dataset._parts:
        for number, sidecar, rows in part.indexes():
            selected = np.arange(len(sidecar)) if rows is None else rows.astype(np.int64)
            result.shards[part.shards.url(number)] += len(selected)
            result.samples.frombytes(sidecar.bytes_of(selected).astype(np.int64).tobytes())
            mask = np.zeros(len(sidecar), bool)
            mask[selected] = True
            members = np.repeat(mask, np.diff(sidecar.starts))
            for code, name in enumerate(sidecar.fields):
                sizes = sidecar.sizes[members & (sidecar.field_of == code)]
                if len(sizes):
                    result.fields.setdefault(name, array("q")).frombytes(sizes.astype(np.int64).tobytes())
    return result


def bars(sizes: Iterable[int], width: int = WIDTH) -> Iterator[str]:
    """Yield the lines of a histogram; bins grow exponentially where sizes differ much."""
    values: NDArray[np.int64] = np.fromiter(sizes, np.int64)
    if not len(values):
        return
    low, high = int(values.min()), int(values.max())
    if high - low < BINS:
        edges = np.arange(low, high + 2, dtype=np.int64)
    elif high > 16 * max(low, 1):
        edges = np.unique(np.geomspace(max(low, 1), high + 1, BINS + 1).astype(np.int64))
        edges[0], edges[-1] = low, high + 1
    else:
        edges = np.unique(np.linspace(low, high + 1, BINS + 1).astype(np.int64))
    counts, _ = np.histogram(values, edges)
    digits = len(str(high))
    for begin, end, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True):
        bar = "#" * -(-count * width // int(counts.max()))
        yield f"{begin:>{digits}} .. {end - 1:>{digits}}  {bar:<{width}} {count}".rstrip()


def _table(statistics: Statistics) -> list[list[str]]:
    facts = statistics.to_dict(images=False)
    rows = [["", "samples", *_NUMBERS]]
    numbers = {"samples per shard": facts["per_shard"] | {"samples": ""}}
    numbers |= {"bytes per sample": facts["per_sample"] | {"samples": facts["samples"]}}
    for label, each in (numbers | facts["fields"]).items():
        shown = [f"{each[name]:.1f}".removesuffix(".0") for name in _NUMBERS]
        rows.append([visible(label), str(each["samples"]), *shown])
    for label, shape in statistics.image_shapes().items():
        shown = [f"{shape[name]:.2f}".removesuffix("0").removesuffix(".0") for name in _NUMBERS[:-1]]
        rows.append([f"image {label}", str(len(statistics.widths)), *shown, ""])
    return rows


def _report_lines(statistics: Statistics) -> Iterator[str]:
    shards, samples = plural(len(statistics.shards), "shard"), plural(len(statistics.samples), "sample")
    yield f"{shards}, {samples}, {plural(statistics.bytes, 'byte')}"
    rows = _table(statistics)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield ""
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([row[0].ljust(len(first)), *others]).rstrip()
    yield ""
    yield "bytes per sample:"
    yield from bars(statistics.samples)
    yield from _resolution_lines(statistics.resolutions)
    for name, count in statistics.unreadable.items():
        yield f"{count} x {visible(name)}: unreadable image header"


def _resolution_lines(resolutions: Counter[tuple[int, int]]) -> Iterator[str]:
    """Yield the resolutions that several images have, most common first."""
    common = [(resolution, count) for resolution, count in resolutions.most_common(20) if count > 1]
    if not common:
        return
    yield ""
    yield "images (width x height):"
    for (width, height), count in common:
        bar = "#" * -(-count * WIDTH // common[0][1])
        yield f"{f'{width}x{height}':>12}  {bar:<{WIDTH}} {count}"
    if others := len(resolutions) - len(common):
        yield f"{'others':>12}  {plural(others, 'resolution')}"
