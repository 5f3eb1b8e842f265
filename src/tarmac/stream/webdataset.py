"""WebDataset: from shard URLs to samples, with the arguments of the library whose name it carries."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from tarmac import environment
from tarmac.samples.counting import count_samples
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.steps.stage import Each
from tarmac.storage import Cache, is_local
from tarmac.stream import shuffle
from tarmac.stream.batch import Batched
from tarmac.stream.epochs import EpochAware
from tarmac.stream.fluent import FluidInterface
from tarmac.stream.pipeline import DataPipeline
from tarmac.stream.read_shards import TarSamples, check_empty
from tarmac.stream.shards.equal_split import EqualShares, Tail
from tarmac.stream.shards.lists import DirectoryShardList, MultiShardSample, ResampledShards, SimpleShardList
from tarmac.stream.shards.split import is_splitter, single_node_only, split_by_worker, splits_nodes
from tarmac.stream.shuffle import Redeal, ShardShuffle
from tarmac.tar import TarOptions

__all__ = ["FluidWrapper", "WebDataset"]

ShardStage = Callable[[Iterable[Any]], Iterable[Any]]


class WebDataset(DataPipeline, FluidInterface):
    """Stream samples from shards: list, shuffle and split them, then read them one after the other.

    >>> dataset = WebDataset("train-{000000..000099}.tar", shardshuffle=100).shuffle(1000).decode("rgb8")

    `nodesplitter` and `workersplitter` deal out the shards, and `shardshuffle` shuffles the share of each
    reader, differently on each pass. Which shards a reader gets follows from the list alone, so that every
    sample comes once however often each reader has begun; `set_epoch` makes it another share in each epoch.
    With fewer shards than readers, these share shards. `resampled` draws shards with replacement for ever.
    `cache_dir` keeps remote shards on disk, up to `cache_size` bytes. `handler` decides about damaged shards,
    `tar` how strictly they are read. `seed` makes all of it repeatable; without one, WDS_SEED or 0 is used.
    """

    def __init__(
        self,
        urls: Any,
        handler: Handler = reraise_exception,
        mode: str | None = None,
        resampled: bool = False,
        repeat: bool = False,
        shardshuffle: bool | int | None = None,
        cache_size: int = -1,
        cache_dir: str | os.PathLike[str] | None = None,
        url_to_name: Callable[[str], str] | None = None,
        detshuffle: bool = False,
        nodesplitter: ShardStage | None = single_node_only,
        workersplitter: ShardStage | None = split_by_worker,
        select_files: Callable[[str], bool] | None = None,
        rename_files: Callable[[str], str] | None = None,
        empty_check: bool = True,
        verbose: bool = False,
        seed: int | None = None,
        *,
        tar: TarOptions | None = None,
    ) -> None:
        super().__init__()
        self.seed = environment.default_seed() if seed is None else seed
        resampled = resampled or mode == "resampled"
        self.append(_shard_source(urls, mode, resampled, self.seed, deterministic=seed is not None))
        shuffled = bool(shardshuffle) and not resampled
        if shuffled:
            self.append(Redeal())
        splitters = [stage for stage in (nodesplitter, workersplitter) if stage is not None]
        self.pipeline += splitters
        self._front = len(self.pipeline)
        if shuffled:
            size = 100 if shardshuffle is True else int(shardshuffle or 0)  # as the webdataset library has it
            stage = shuffle.detshuffle(size, seed=self.seed)
            self.append(stage if detshuffle else ShardShuffle(shardshuffle, self.seed))
        cache = _cache(cache_dir, cache_size, url_to_name)
        self.append(TarSamples(handler, select_files, rename_files, cache=cache, verbose=verbose, tar=tar))
        if empty_check:
            self.append(check_empty)
        if repeat:
            self.repetitions = sys.maxsize

    def with_equal_batches(self, batchsize: int | None = None, tail: Tail = "pad") -> Self:
        """Give every rank and worker the same number of items in an epoch, whatever the sizes of the shards.

        The samples of all shards are counted now, once, from the headers of local shards without reading
        payload; then readers get equal shares, if need be parts of shards. `tail="pad"` gives every sample,
        and fewer than readers · batchsize of them twice; `tail="drop"` gives none twice, and fewer than that
        many not at all. Put it at the end of the pipeline; the batch size is that of its last `batched`
        stage.
        """
        source, splitters = self.pipeline[0], self.pipeline[1 : self._front]
        if not isinstance(source, SimpleShardList):
            raise ValueError(
                f"{type(source).__name__} has no fixed set of shards to count; with_epoch(n) sets the same "
                "number everywhere"
            )
        if not all(isinstance(stage, Redeal) or is_splitter(stage) for stage in splitters):
            raise ValueError("with_equal_batches() splits by itself and cannot follow splitters of your own")
        size = _batch_size(self.pipeline, batchsize)
        counts: dict[str, int] = {url: count_samples([url]) for url in dict.fromkeys(source.urls)}
        group = next((s.keywords.get("group") for s in splitters if isinstance(s, functools.partial)), None)
        shares = EqualShares(counts, size, tail, nodes=any(map(splits_nodes, splitters)), group=group)
        made = self.compose()
        kept = [s for s in made.pipeline[1 : self._front] if isinstance(s, Redeal) or s is single_node_only]
        made.pipeline[1 : self._front] = [*kept, shares]
        made._front = 2 + len(kept)
        return made._changed(_equal=shares)

    _equal: EqualShares | None = None

    def _limits(self) -> tuple[int, int]:
        repetitions, most = super()._limits()
        if self._equal is None or repetitions != 1 or most > 0:  # a length that was set counts
            return repetitions, most
        samples = self._equal.batches(self.pipeline[0].urls) * self._equal.batchsize
        items = _items_of(self.pipeline[self._front :], samples)
        # A pass may be short of samples that handlers or stages have dropped: it goes on with the next.
        return (1, -1) if items is None else (sys.maxsize, items)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FluidWrapper(DataPipeline, FluidInterface):
    """Give any iterable the fluent interface."""

    def __init__(self, initial: Any) -> None:
        super().__init__(initial)


def _items_of(stages: list[Any], samples: int) -> int | None:
    """How many items stages make of so many samples if they drop none; None if that cannot be known."""
    for stage in stages:
        if isinstance(stage, Batched):
            samples = -(-samples // stage.batchsize) if stage.partial else samples // stage.batchsize
        elif not (isinstance(stage, Each | EpochAware | TarSamples) or stage is check_empty):
            return None
    return samples


def _batch_size(stages: list[Any], given: int | None) -> int:
    """The batch size of the last `batched` stage, which one that was given must agree with."""
    sizes = [stage.batchsize for stage in stages if isinstance(stage, Batched)]
    found = sizes[-1] if sizes else None
    if given is not None and found is not None and given != found:
        raise ValueError(f"the pipeline has batches of {found}, with_equal_batches() was given {given}")
    return given or found or 1


def _shard_source(urls: Any, mode: str | None, resampled: bool, seed: int, *, deterministic: bool) -> Any:
    """Choose the first stage by what the user wrote."""
    if isinstance(urls, dict) or (
        isinstance(urls, str | os.PathLike) and _name(urls).endswith((".yaml", ".yml"))
    ):
        return MultiShardSample(urls if isinstance(urls, dict) else os.fspath(urls), seed=seed)
    if isinstance(urls, str) and urls.endswith("/") and is_local(urls):
        return DirectoryShardList(urls, mode=mode)
    if mode not in (None, "resampled"):
        raise ValueError(
            f'mode must be "resampled", or for a directory resample, unlink or keep; got {mode!r}'
        )
    if resampled:
        return ResampledShards(urls, seed=seed, deterministic=deterministic)
    return SimpleShardList(urls)


def _name(urls: str | os.PathLike[str]) -> str:
    return os.fspath(urls).lower()


def _cache(
    directory: str | os.PathLike[str] | None, size: int, name: Callable[[str], str] | None
) -> Cache | None:
    directory = environment.cache_dir() if directory is None else directory
    size = environment.cache_size() if size < 0 else size
    if directory is None or size == 0:
        return None
    return Cache(directory, max_bytes=size if size > 0 else None, readable=name)
