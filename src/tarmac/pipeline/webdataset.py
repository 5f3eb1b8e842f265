"""WebDataset: from shard URLs to samples, with the arguments of the library whose name it carries."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from tarmac import environment
from tarmac.order import shuffling
from tarmac.order.shardlists import DirectoryShardList, MultiShardSample, ResampledShards, SimpleShardList
from tarmac.order.shuffling import ShardShuffle
from tarmac.order.splitting import single_node_only, split_by_worker
from tarmac.order.workers import current_place
from tarmac.pipeline.datapipeline import DataPipeline
from tarmac.pipeline.expanding import TarSamples, check_empty
from tarmac.pipeline.fluid import FluidInterface
from tarmac.pipeline.handlers import Handler, reraise_exception
from tarmac.samples.counting import count_samples
from tarmac.storage import Cache, is_local
from tarmac.tar import TarOptions

__all__ = ["FluidWrapper", "WebDataset"]

ShardStage = Callable[[Iterable[Any]], Iterable[Any]]


class WebDataset(DataPipeline, FluidInterface):
    """Stream samples from shards: list, shuffle and split them, then read them one after the other.

    >>> dataset = WebDataset("train-{000000..000099}.tar", shardshuffle=100).shuffle(1000).decode("rgb8")

    `shardshuffle` shuffles the shards, differently on each pass and alike on every rank and worker, before
    `nodesplitter` and `workersplitter` deal them out; with fewer shards than workers, these share shards.
    `resampled` draws shards with replacement for ever. `cache_dir` keeps remote shards on disk, up to
    `cache_size` bytes. `handler` decides about damaged shards, `tar` how strictly they are read. `seed`
    makes all of it repeatable; without one, WDS_SEED or 0 is used.
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
        if shardshuffle and not resampled:
            size = 100 if shardshuffle is True else shardshuffle  # as the webdataset library has it
            stage = shuffling.detshuffle(size, seed=self.seed)
            self.append(stage if detshuffle else ShardShuffle(shardshuffle, self.seed))
        if nodesplitter is not None:
            self.append(nodesplitter)
        if workersplitter is not None:
            self.append(workersplitter)
        cache = _cache(cache_dir, cache_size, url_to_name)
        self.append(TarSamples(handler, select_files, rename_files, cache=cache, verbose=verbose, tar=tar))
        if empty_check:
            self.append(check_empty)
        if repeat:
            self.repetitions = sys.maxsize

    def with_equal_batches(self, batchsize: int = 1, tail: str = "pad") -> Self:
        """Give every rank and worker the same number of items in an epoch.

        The samples of all shards are counted now, once, from the headers of local shards without reading
        payload. `tail="pad"` goes through the data again for the last batches, `tail="drop"` leaves the
        remainder out. Put it at the end of the pipeline, with the batch size of the stage before it.
        """
        if tail not in ("pad", "drop"):
            raise ValueError(f'tail must be "pad" or "drop", got {tail!r}')
        source = self.pipeline[0]
        if not isinstance(source, SimpleShardList):
            raise ValueError(
                f"{type(source).__name__} has no fixed set of shards to count; with_epoch(n) sets the same "
                "number everywhere"
            )
        return self.compose()._changed(_equal=(count_samples(source.urls), batchsize, tail))

    _equal: tuple[int, int, str] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._equal is not None:
            total, batchsize, tail = self._equal
            readers = current_place().count
            share = readers * batchsize
            self.repetitions = sys.maxsize
            self.nsamples = -(-total // share) if tail == "pad" else total // share
            if self.nsamples == 0:
                raise ValueError(
                    f"{total} samples are too few for a batch of {batchsize} on each of {readers} readers"
                )
        return super().__iter__()

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
