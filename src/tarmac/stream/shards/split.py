"""Split shards between readers (the workers of all ranks), each shard to exactly one reader.

If there are fewer shards than readers, several readers read one shard: a shard with `part=(index, count)` is
limited to the samples whose number modulo `count` is `index`. A part can be divided further. Only a stage that
understands parts may read them, so a pipeline asks for parts (`inside=True`) if all stages up to the one that reads
shards do. A splitter that is called directly assigns whole shards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from tarmac.errors import UsageError
from tarmac.runtime.worker_info import WorkerInfo, current_worker_info
from tarmac.steps.stage import as_stage

T = TypeVar("T")


def split_by_node(src: Iterable[T], group: Any = None, *, inside: bool = False) -> Iterator[T]:
    """Yield the shards of this rank; `inside` divides shards if there are fewer shards than ranks."""
    info = current_worker_info(group)
    return _split(src, info.rank, info.world_size, inside=inside)


def split_by_worker(src: Iterable[T], *, inside: bool = False) -> Iterator[T]:
    """Yield the shards of this worker; `inside` divides shards if there are fewer shards than workers."""
    info = current_worker_info()
    return _split(src, info.worker, info.workers, inside=inside)


def split_all(src: Iterable[T], info: WorkerInfo | None = None, *, inside: bool = False) -> Iterator[T]:
    """Yield the shards of this worker of this rank, split in one step: no reader gets two more than another."""
    info = current_worker_info() if info is None else info
    return _split(src, info.index, info.count, inside=inside)


def single_node_only(src: Iterable[T], group: Any = None) -> Iterator[T]:
    """Yield all shards; raise if there are several ranks, which would all read the same."""
    info = current_worker_info(group)
    if info.world_size > 1:
        raise UsageError(
            f"there are {info.world_size} ranks, and no `nodesplitter` splits the shards between them.",
            hint="nodesplitter=tarmac.webdataset.split_by_node",
        )
    yield from src


_SPLITTERS: tuple[Any, ...] = (single_node_only, split_by_node, split_by_worker, split_all)


def is_splitter(stage: object) -> bool:
    """Return whether a stage is known to split shards between readers."""
    stage = stage.func if isinstance(stage, functools.partial) else stage
    return any(stage is known for known in _SPLITTERS) or as_stage(stage).splits


def splits_nodes(stage: object) -> bool:
    """Return whether a stage is known to split shards between ranks."""
    stage = stage.func if isinstance(stage, functools.partial) else stage
    return stage is split_by_node or stage is split_all or as_stage(stage).splits_nodes


def is_foreseeable(stage: object) -> bool:
    """Return whether items may be taken from a stage before they are needed (see `PipelineStage.foreseeable`)."""
    stage = stage.func if isinstance(stage, functools.partial) else stage
    declared = "foreseeable" in vars(type(stage)) and as_stage(stage).foreseeable
    return declared or isinstance(stage, list | tuple) or any(stage is known for known in _SPLITTERS)


def is_foreign(stage: object) -> bool:
    """Return whether a stage was defined outside of tarmac, so that it may be a splitter."""
    while isinstance(stage, functools.partial):
        stage = stage.func
    stage = getattr(stage, "f", stage)  # the function of a stage made by pipelinefilter
    module = getattr(stage, "__module__", None) or type(stage).__module__
    return not str(module).startswith("tarmac.")


def with_parts(stage: Any, following: Sequence[object]) -> Callable[[Iterable[T]], Iterator[T]]:
    """Return a splitter that divides shards, if the stages after it can read parts of them.

    A splitter that has a value for `inside` is returned unchanged.
    """
    function = stage.func if isinstance(stage, functools.partial) else stage
    decided = isinstance(stage, functools.partial) and "inside" in stage.keywords
    if any(function is known for known in _SPLITTERS[1:]) and not decided and _parts_are_read(following):
        stage = functools.partial(stage, inside=True)
    return stage  # type: ignore[no-any-return]


def _parts_are_read(stages: Sequence[object]) -> bool:
    for stage in stages:
        if as_stage(stage).reads_parts:
            return True
        if not (is_splitter(stage) or as_stage(stage).keeps_parts):
            return False
    return False


def is_claimed(item: object) -> bool:
    """Return whether a shard belongs to this process alone, so that it must not be split or held back."""
    return isinstance(item, dict) and item.get("claimed") is True and _is_shard(item)


def _split(src: Iterable[T], index: int, count: int, *, inside: bool) -> Iterator[T]:
    """Yield every `count`-th item from number `index` on; a part of an item, if there are fewer than `count`."""
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
        readers = len(range(index % len(head), count, len(head)))  # of the shard of this reader
        yield from _part_of(head[index % len(head)], index // len(head), readers)
        return
    yield from islice(chain(head, items), index, None, count)


def _part_of(shard: Any, index: int, count: int) -> Iterator[Any]:
    """Yield one of `count` parts of a shard, or of a part."""
    if count == 1:
        yield shard
    elif shard["url"] == "-":  # standard input can be read only once
        if index == 0:
            yield shard
    else:
        first, step = shard.get("part", (0, 1))
        yield {**shard, "part": (first + index * step, step * count)}


def _is_shard(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("url"), str) and "__key__" not in item
