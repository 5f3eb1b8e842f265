"""Who reads what: shards dealt out among ranks and workers, each to exactly one.

When there are fewer shards than readers, a pipeline lets readers share shards: a shard with
`part=(index, count)` stands for those of its samples whose number modulo `count` is `index`. Parts of parts
are parts. Only a stage that knows about parts may read them, so the pipeline asks for them (`inside=True`)
where nothing but such stages follows, and a splitter that is called by hand deals out whole shards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from tarmac.runtime.worker_info import WorkerInfo, current_worker_info

__all__ = [
    "is_claimed",
    "is_foreign",
    "is_splitter",
    "single_node_only",
    "split_all",
    "split_by_node",
    "split_by_worker",
    "splits_nodes",
    "with_parts",
]

T = TypeVar("T")


def split_by_node(src: Iterable[T], group: Any = None, *, inside: bool = False) -> Iterator[T]:
    """Take the share of this rank; `inside` divides shards when there are fewer shards than ranks."""
    place = current_worker_info(group)
    return _share(src, place.rank, place.world_size, inside=inside)


def split_by_worker(src: Iterable[T], *, inside: bool = False) -> Iterator[T]:
    """Take the share of this worker; `inside` divides shards when there are fewer shards than workers."""
    place = current_worker_info()
    return _share(src, place.worker, place.workers, inside=inside)


def split_all(src: Iterable[T], place: WorkerInfo | None = None, *, inside: bool = False) -> Iterator[T]:
    """Take the share of this worker of this rank, in one step, so that shares are as equal as can be."""
    place = current_worker_info() if place is None else place
    return _share(src, place.index, place.count, inside=inside)


def single_node_only(src: Iterable[T], group: Any = None) -> Iterator[T]:
    """Pass everything on, but refuse to run on several nodes, where each would read the same."""
    place = current_worker_info(group)
    if place.world_size > 1:
        raise ValueError(
            f"there are {place.world_size} ranks and nothing says how shards are split between them: "
            "add an explicit nodesplitter, such as nodesplitter=tarmac.split_by_node"
        )
    yield from src


def is_splitter(stage: object) -> bool:
    """Whether a stage deals out shards among readers, as far as tarmac can tell."""
    stage = stage.func if isinstance(stage, functools.partial) else stage
    return any(stage is known for known in _SPLITTERS) or bool(getattr(stage, "splits", False))


def is_foreign(stage: object) -> bool:
    """Whether a stage is a function or an object of the user's, of which nothing is known."""
    while isinstance(stage, functools.partial):
        stage = stage.func
    stage = getattr(stage, "f", stage)  # of a stage that was made with pipelinefilter
    module = getattr(stage, "__module__", None) or type(stage).__module__
    return not str(module).startswith("tarmac.")


def splits_nodes(stage: object) -> bool:
    """Whether a stage deals out shards among ranks."""
    stage = stage.func if isinstance(stage, functools.partial) else stage
    return stage is split_by_node or stage is split_all or bool(getattr(stage, "nodes", False))


def with_parts(stage: Any, following: Sequence[object]) -> Callable[[Iterable[T]], Iterator[T]]:
    """Let a splitter divide shards if the stages behind it know how to read parts of them.

    A stage says so with `reads_parts`, or with `keeps_parts` if it hands shards on as they are. A caller who
    gave `inside` to the splitter has decided already.
    """
    function = stage.func if isinstance(stage, functools.partial) else stage
    decided = isinstance(stage, functools.partial) and "inside" in stage.keywords
    if any(function is known for known in _SPLITTERS[1:]) and not decided and _parts_are_read(following):
        stage = functools.partial(stage, inside=True)
    return stage  # type: ignore[no-any-return]


def _parts_are_read(stages: Sequence[object]) -> bool:
    for stage in stages:
        if getattr(stage, "reads_parts", False):
            return True
        if not (is_splitter(stage) or getattr(stage, "keeps_parts", False)):
            return False
    return False


def is_claimed(item: object) -> bool:
    """Whether a shard belongs to this process alone, so that it must not be dealt out or held back."""
    return isinstance(item, dict) and item.get("claimed") is True and _is_shard(item)


_SPLITTERS: tuple[Any, ...] = (single_node_only, split_by_node, split_by_worker, split_all)


def _share(src: Iterable[T], index: int, count: int, *, inside: bool) -> Iterator[T]:
    """Take every `count`-th item, or a part of one if there are fewer than `count`."""
    if count == 1:
        yield from src
        return
    items = iter(src)
    head = list(islice(items, 1))
    if head and is_claimed(head[0]):
        yield from chain(head, items)
        return
    head += islice(items, count - 1)
    if len(head) < count and inside and head and all(map(_is_shard, head)):
        yield from _part_of(head[index % len(head)], index // len(head), _sharers(index, count, len(head)))
        return
    yield from islice(chain(head, items), index, None, count)


def _sharers(index: int, count: int, shards: int) -> int:
    """How many of `count` readers share the shard of reader `index`, when they are dealt out in turn."""
    return len(range(index % shards, count, shards))


def _part_of(shard: Any, index: int, count: int) -> Iterator[Any]:
    """Narrow a shard to one of `count` parts of what it stands for."""
    if count == 1:
        yield shard
    elif shard["url"] == "-":  # standard input can be read only once
        if index == 0:
            yield shard
    else:
        first, step = shard.get("part", (0, 1))
        yield {**shard, "part": (first + index * step, step * count)}


def _is_shard(item: object) -> bool:
    """Whether an item is a shard and not a sample, as samples cannot be divided further."""
    return isinstance(item, dict) and isinstance(item.get("url"), str) and "__key__" not in item
