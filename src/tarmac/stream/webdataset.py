"""WebDataset: the usual pipeline from shard URLs to samples, with the arguments of the webdataset library."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from tarmac import environment
from tarmac.errors import UsageError
from tarmac.limits import Limits
from tarmac.samples.naming import Splitter, first_dot
from tarmac.samples.reader import count_samples
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.steps.stage import Each
from tarmac.storage import Cache, StorageOptions, is_local
from tarmac.storage.cache import as_cache
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards
from tarmac.stream import shuffle
from tarmac.stream.batch import Batched
from tarmac.stream.epochs import EpochAware, StreamSource
from tarmac.stream.fluent import FluidInterface
from tarmac.stream.pipeline import DataPipeline
from tarmac.stream.read_shards import TarSamples, check_empty
from tarmac.stream.shards.directory import DirectoryShardList
from tarmac.stream.shards.equal_split import EqualSplit, Tail
from tarmac.stream.shards.lists import ResampledShards, SimpleShardList
from tarmac.stream.shards.specs import MultiShardSample
from tarmac.stream.shards.split import is_splitter, single_node_only, split_by_worker, splits_nodes
from tarmac.stream.shuffle import PermuteShards, ShardShuffle
from tarmac.tar import Repeated, TarOptions

ShardStage = Callable[[Iterable[Any]], Iterable[Any]]


class WebDataset(DataPipeline, FluidInterface):
    """Stream samples from shards: list, split and shuffle the shards, then read them one after the other.

    >>> dataset = WebDataset("train-{000000..000099}.tar", shardshuffle=100).shuffle(1000).decode("rgb8")

    - `nodesplitter` and `workersplitter` split the shards between readers. The split depends on the list alone, so
      every sample is read once, however often each reader has iterated; with `set_epoch` it changes every epoch.
      If there are fewer shards than readers, several readers read one shard.
    - `shardshuffle` shuffles the shards of each reader, in a different order each epoch; `resampled` draws shards with
      replacement, endlessly. `seed` makes both repeatable, and the first epoch that of the webdataset library; without
      one it is `WDS_SEED`, or 0.
    - `handler` decides about errors of shards; `tar` sets how strictly they are read, and `limits` bounds what they may
      contain (also in `decode`). `storage` holds timeouts and credentials.
    - `split_name` is the naming rule, such as `tarmac.last_dot`. `repeated="keep"` reads whole samples whose key occurs
      again in a shard, which by default is an error.
    - `cache_dir` keeps remote shards on disk, up to `cache_size` bytes; `cache`, a `tarmac.Cache` or a
      directory, takes their place.
    """

    _reader_stage = TarSamples

    def __init__(
        self,
        urls: Shards | Mapping[str, Any],
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
        storage: StorageOptions | None = None,
        limits: Limits | None = None,
        tar: TarOptions | None = None,
        split_name: Splitter = first_dot,
        repeated: Repeated | None = None,
        cache: Cache | str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self.seed: int = environment.default_seed() if seed is None else seed
        tar = (self._reader_stage.default_tar if tar is None else tar).override(limits, repeated)
        self.limits: Limits = tar.limits
        storage = DEFAULT_STORAGE if storage is None else storage
        resampled = resampled or mode == "resampled"
        self._append_shards(urls, mode, resampled, seed is not None, tar.limits, storage)
        shuffled = bool(shardshuffle) and not resampled
        if shuffled:
            self.append(PermuteShards())
        self.pipeline.extend(stage for stage in (nodesplitter, workersplitter) if stage is not None)
        self._front = len(self.pipeline)
        if shuffled and detshuffle:
            # The webdataset library takes True for a buffer of 100 shards.
            size = 100 if shardshuffle is True else int(shardshuffle or 0)
            self.append(shuffle.detshuffle(size, seed=self.seed))
        elif shuffled:
            self.append(ShardShuffle(shardshuffle, seed))
        self.append(
            self._reader_stage(
                handler,
                select_files,
                rename_files,
                cache=_cache(cache, cache_dir, cache_size, url_to_name),
                verbose=verbose,
                tar=tar,
                storage=storage,
                split_name=split_name,
            )
        )
        if empty_check:
            self.append(check_empty)
        if repeat:
            self.repeat()

    def _append_shards(
        self,
        urls: Shards | Mapping[str, Any],
        mode: str | None,
        resampled: bool,
        deterministic: bool,
        limits: Limits,
        storage: StorageOptions,
    ) -> None:
        """Append the stage that lists the shards."""
        if isinstance(urls, str) and urls.endswith("/") and is_local(urls):
            self.append(DirectoryShardList(urls, mode=mode))
        elif mode not in (None, "resampled"):
            raise UsageError(
                f'expected "resampled", or "resample", "unlink" or "keep" for a directory, got {mode!r}.',
                field="mode",
            )
        else:
            self.append(_shard_list(urls, resampled, self.seed, deterministic, limits, storage))

    def with_equal_batches(self, batchsize: int | None = None, tail: Tail = "pad") -> Self:
        """Give every rank and worker the same number of items in an epoch, whatever the sizes of the shards.

        The samples of all shards are counted now, once; for local shards only headers are read. Then every reader gets
        the same number of samples, if necessary parts of shards. With `tail="pad"` every sample is read, and fewer than
        readers · batchsize of them twice. With `tail="drop"` no sample is repeated, and fewer than that number are
        left out. Call it at the end of the pipeline; the batch size is that of its last `batched` stage.
        """
        source, splitters = self.pipeline[0], self.pipeline[1 : self._front]
        if not isinstance(source, SimpleShardList):
            raise UsageError(
                f"{type(source).__name__} has no fixed set of shards to count.",
                hint="with_epoch(n), which sets the same number everywhere.",
            )
        if not all(isinstance(stage, PermuteShards) or is_splitter(stage) for stage in splitters):
            raise UsageError(
                "with_equal_batches() replaces the splitters and cannot be combined with custom ones.",
                field="nodesplitter",
            )
        size = _batch_size(self.pipeline, batchsize)
        reader = next(stage.reader for stage in self.pipeline if isinstance(stage, TarSamples))
        counts: dict[str, int] = {url: count_samples(reader, url) for url in dict.fromkeys(source.urls)}
        group = next((s.keywords.get("group") for s in splitters if isinstance(s, functools.partial)), None)
        split = EqualSplit(counts, size, tail, any(map(splits_nodes, splitters)), group)
        result = self.compose()
        front = result.pipeline[1 : self._front]
        kept = [stage for stage in front if isinstance(stage, PermuteShards) or stage is single_node_only]
        result.pipeline[1 : self._front] = [*kept, split]
        result._front = 2 + len(kept)
        return result._changed(_equal=split)

    _equal: EqualSplit | None = None

    def _limits(self) -> tuple[int, int]:
        repetitions, max_items = super()._limits()
        if self._equal is None or repetitions != 1 or max_items > 0:  # an explicit length takes precedence
            return repetitions, max_items
        samples = self._equal.batches(self.pipeline[0].urls) * self._equal.batchsize
        items = _count_items(self.pipeline[self._front :], samples)
        # If handlers or stages drop samples, a reader continues with the next epoch until it has enough.
        return (1, -1) if items is None else (sys.maxsize, items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FluidWrapper(DataPipeline, FluidInterface):
    """Give any iterable the fluent interface."""

    def __init__(self, initial: Any) -> None:
        super().__init__()
        self.append(initial)  # a list is the data, not a list of stages


def _count_items(stages: list[Any], samples: int) -> int | None:
    """Return the number of items that stages make of samples if they drop none; None if it is unknown."""
    for stage in stages:
        if isinstance(stage, Batched):
            samples = -(-samples // stage.batchsize) if stage.partial else samples // stage.batchsize
        elif not (isinstance(stage, Each | EpochAware | TarSamples) or stage is check_empty):
            return None
    return samples


def _batch_size(stages: list[Any], given: int | None) -> int:
    """Return the size of the last `batched` stage; raise if a given size differs."""
    sizes = [stage.batchsize for stage in stages if isinstance(stage, Batched)]
    last = sizes[-1] if sizes else None
    if given is not None and last is not None and given != last:
        raise UsageError(
            f"expected {last}, the size of the last `batched` stage, got {given}.", field="batchsize"
        )
    return given or last or 1


def _shard_list(
    urls: Any, resampled: bool, seed: int, deterministic: bool, limits: Limits, storage: StorageOptions
) -> StreamSource:
    name = os.fspath(urls).lower() if isinstance(urls, str | os.PathLike) else ""
    if isinstance(urls, Mapping) or name.endswith((".yaml", ".yml")):
        return MultiShardSample(urls, seed=seed, limits=limits, storage=storage)
    if resampled:
        return ResampledShards(urls, seed=seed, deterministic=deterministic, limits=limits, storage=storage)
    return SimpleShardList(urls, limits=limits, storage=storage)


def _cache(
    cache: Cache | str | os.PathLike[str] | None,
    directory: str | os.PathLike[str] | None,
    size: int,
    name: Callable[[str], str] | None,
) -> Cache | None:
    if cache is not None:
        if directory is not None:
            raise UsageError("`cache` and `cache_dir` are mutually exclusive.", field="cache")
        return as_cache(cache)
    directory = environment.cache_dir() if directory is None else directory
    size = environment.cache_size() if size < 0 else size
    if directory is None or size == 0:
        return None
    return Cache(directory, max_bytes=size if size > 0 else None, readable=name)
