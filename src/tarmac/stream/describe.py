"""Describe a pipeline in one line, and as a table for notebooks."""

from __future__ import annotations

import functools
import html
import sys
from typing import TYPE_CHECKING, Any

from tarmac.display import display_url, plural, visible
from tarmac.steps.stage import is_curried
from tarmac.stream.shuffle import MAX_LIST

if TYPE_CHECKING:
    from tarmac.stream.pipeline import DataPipeline

# fmt: off
_OPTIONS = ("bufsize", "size", "batchsize", "threads", "nshards", "n", "p", "tail", "probs", "longest", "seed")
# fmt: on
_UNLIMITED = (sys.maxsize, MAX_LIST)


def one_line(pipeline: DataPipeline) -> str:
    """Return `WebDataset(100 shards | split_by_worker | Shuffle(bufsize=1000) | …, epoch of 5000 items)`."""
    stages = " | ".join(_stage(stage) for stage in pipeline.pipeline)
    return f"{type(pipeline).__name__}({', '.join(filter(None, (stages, _epoch(pipeline))))})"


def html_table(pipeline: DataPipeline) -> str:
    """Return an HTML table of the stages."""
    title = ", ".join(filter(None, (type(pipeline).__name__, _epoch(pipeline))))
    cells = ((str(number), _name(stage), _details(stage)) for number, stage in enumerate(pipeline.pipeline))
    rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in cells)
    return f"<table><caption>{html.escape(title)}</caption><tr>{'</tr><tr>'.join(rows)}</tr></table>"


def _stage(stage: Any) -> str:
    if hasattr(stage, "urls"):
        return _count(stage)
    options = _details(stage)
    return f"{_name(stage)}({options})" if options else _name(stage)


def _name(stage: Any) -> str:
    while isinstance(stage, functools.partial):
        stage = stage.func
    stage = stage.f if is_curried(stage) else stage
    name = getattr(stage, "__name__", None)
    return name if isinstance(name, str) else type(stage).__name__


def _details(stage: Any) -> str:
    if hasattr(stage, "urls"):
        names = [visible(display_url(url)) for url in (*stage.urls[:1], *stage.urls[1:][-1:])]
        return f"{_count(stage)}: {' … '.join(names)}"
    if hasattr(stage, "loader"):
        return f"{stage.dataset!r}, num_workers={stage.loader.num_workers}"
    inner = getattr(stage, "pipeline", None) or getattr(stage, "datasets", None) or ()
    values = {name: getattr(stage, name, None) for name in _OPTIONS}
    shown = {name: value for name, value in values.items() if isinstance(value, int | float | str | list)}
    options = [f"{name}={value!r}" for name, value in shown.items() if value and value not in _UNLIMITED]
    return ", ".join([*map(_stage, inner), *options])


def _count(stage: Any) -> str:
    shards = plural(len(stage.urls), "shard")
    return f"{shards}, resampled" if getattr(stage, "per_reader", False) else shards


def _epoch(pipeline: DataPipeline) -> str:
    parts = []
    if pipeline.nsamples > 0:
        parts.append(f"epoch of {pipeline.nsamples} items")
    elif pipeline.repetitions == sys.maxsize:
        parts.append("repeated endlessly")
    elif pipeline.repetitions > 1:
        parts.append(f"repeated {pipeline.repetitions} times")
    if pipeline.length is not None:
        parts.append(f"length {pipeline.length}")
    return ", ".join(parts)
