"""Orders as pictures: a stream, the exact order and an ideal shuffle side by side."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarmac.codecs.handlers import library
from tarmac.errors import IndexingError
from tarmac.exact.dataset import Dataset
from tarmac.indexing.where import resolve
from tarmac.runtime.types import Integers
from tarmac.storage import open_write
from tarmac.tools.audit.audit import OrderAudit
from tarmac.tools.audit.quality import ideal_order, shuffle_quality

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["class_shares", "classes_of", "plot_order"]


FORMATS = ("png", "svg", "pdf")
CLASSES = 10
_POINTS, _BATCHES = 8_000, 120
_AT_ONCE = 1 << 14


class _Panel(NamedTuple):
    title: str
    numbers: Integers
    """The samples of the epoch, in its order."""


def plot_order(
    audit: OrderAudit, path: str | os.PathLike[str], *, buffer: int = 1000, label: str = ""
) -> None:
    """Draw where in the dataset the samples of an epoch come from, and which classes its batches have.

    Three orders are drawn: that of a stream with a shuffle buffer, the exact one, and an ideal one. Classes
    are the values of the metadata column `label`; without it, ten equal parts of the dataset in its order.
    """
    form = os.fspath(path).rpartition(".")[2].lower()
    if form not in FORMATS:
        raise ValueError(f"a plot is a file that ends in .{', .'.join(FORMATS)}; got {os.fspath(path)!r}")
    library("matplotlib", "plot", "plots")
    from matplotlib.figure import Figure

    options, samples = audit.options, audit.samples
    if not samples:
        raise ValueError("there are no samples to plot")
    panels = [
        _Panel(f"stream, buffer of {buffer}", audit.stream(buffer)),
        _Panel("exact order", _exact(audit)),
        _Panel("ideal", ideal_order(samples, options.seed, options.epoch)),
    ]
    classes = classes_of(audit.together, label)
    figure = Figure(figsize=(13, 7), layout="constrained")
    axes = figure.subplots(2, len(panels), height_ratios=(2, 1), sharey="row", squeeze=False)
    for column, panel in enumerate(panels):
        _draw_places(axes[0, column], panel, options.global_batch)
        _draw_classes(axes[1, column], class_shares(classes[panel.numbers], options.global_batch))
    axes[0, 0].set_ylabel("position in the dataset")
    axes[1, 0].set_ylabel(f"share of each {label or 'tenth of the dataset'}")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=form, dpi=110)
    _write(os.fspath(path), drawn.getvalue())


def _exact(audit: OrderAudit) -> Integers:
    # In pieces, because working out a position takes more memory than its answer.
    pieces = np.array_split(np.arange(audit.samples), -(-audit.samples // _AT_ONCE))
    return np.concatenate([audit.order.at(audit.options.epoch, piece) for piece in pieces])


def classes_of(dataset: Dataset, label: str = "") -> Integers:
    """Return the class of each sample, numbered from 0. Of more than ten, neighbours are taken together."""
    samples = len(dataset)
    if not label:
        return np.arange(samples) * CLASSES // max(samples, 1)
    values = [value for part in dataset.parts for value in _column(part, label)]
    # Types may differ between shards, and there may be none; each kind is sorted in its own way.
    known = sorted(set(values), key=lambda value: (type(value).__name__, value))
    number = {value: place * min(CLASSES, len(known)) // len(known) for place, value in enumerate(known)}
    return np.array([number[value] for value in values], np.int64)


def _column(part: Any, label: str) -> list[Any]:
    found: list[Any] = []
    for shard, rows in zip(part.numbers.tolist(), part.rows, strict=True):
        sidecar = part.shards.sidecar(shard)
        try:
            column = sidecar.column(resolve(label, sidecar.metadata))
        except IndexingError as error:
            error.at(url=part.shards.url(shard))
            raise
        found += (column if rows is None else column.take(rows)).to_pylist()
    return found


def class_shares(classes: Integers, batch: int) -> NDArray[np.float64]:
    """Return for some batches, spread over the epoch, the share of each class: a row for each class."""
    size = min(batch, len(classes))
    batches = len(classes) // size
    chosen = np.unique(np.linspace(0, batches - 1, min(batches, _BATCHES)).astype(np.int64))
    rows = classes[chosen[:, None] * size + np.arange(size)]
    return np.stack([(rows == each).mean(axis=1) for each in range(int(classes.max()) + 1)])


def _draw_places(axes: Axes, panel: _Panel, batch: int) -> None:
    samples = len(panel.numbers)
    # Every n-th position could beat with the streams, so some are drawn at random, the same each time.
    shown = np.random.default_rng(0).choice(samples, min(samples, _POINTS), replace=False)
    axes.scatter(shown, panel.numbers[shown], s=1, linewidths=0, rasterized=True)
    quality = shuffle_quality(panel.numbers.__getitem__, samples, batch)
    axes.set_title(f"{panel.title}: quality {quality:.2f}")
    axes.set_xlabel("position in the epoch")


def _draw_classes(axes: Axes, shares: NDArray[np.float64]) -> None:
    batches = np.linspace(0, 1, shares.shape[1])
    axes.stackplot(batches, shares, step="mid")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel(f"{shares.shape[1]} batches, from the first to the last")
    axes.set_xticks([])


def _write(path: str, content: bytes) -> None:
    sink = open_write(path)
    try:
        sink.write(content)
    except BaseException:
        sink.abort()
        raise
    sink.commit()
