"""Read the samples of shards, as a stage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from tarmac.display import display_url
from tarmac.errors import NoSamples, SampleError, TarmacError
from tarmac.samples.naming import Splitter, first_dot
from tarmac.samples.reader import SampleReader, read_shard
from tarmac.steps.handlers import Drops, Handler, reraise_exception
from tarmac.steps.stage import PipelineStage
from tarmac.storage import Cache, StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.stream.shards.directory import put_back
from tarmac.tar import TarOptions
from tarmac.tar.reader import DEFAULT_OPTIONS

_log = logging.getLogger("tarmac")


class TarSamples(PipelineStage):
    """Read the samples of each shard, which is a dictionary with a `url`, or a plain URL.

    A shard with `part: (index, count)` is limited to every `count`-th sample from number `index` on, so that several
    workers can read it. A shard with `range: (start, stop)` is limited to these samples.

    `rename_files(name)` and then `select_files(name)` are called with the name of each member. `tar` sets how
    strictly archives are read and their limits, `storage` timeouts and credentials, and `split_name` which part
    of a name is the key.

    If `handler` accepts an error of the archive or the transfer, the rest of that shard is dropped, and counts as one
    drop. A sample whose members are not contiguous is dropped whole from a plain local shard. In a stream, its first
    members have already been yielded when the others are read, and the rest of the shard is dropped.
    """

    reads_parts = True
    default_tar = DEFAULT_OPTIONS

    def __init__(
        self,
        handler: Handler = reraise_exception,
        select_files: Callable[[str], bool] | None = None,
        rename_files: Callable[[str], str] | None = None,
        *,
        cache: Cache | None = None,
        verbose: bool = False,
        tar: TarOptions | None = None,
        storage: StorageOptions | None = None,
        split_name: Splitter = first_dot,
    ) -> None:
        self.handler: Handler = handler
        self.verbose: bool = verbose
        self.drops: Drops = Drops()
        self.reader: SampleReader = SampleReader(
            (),
            split_name=split_name,
            tar=self.default_tar if tar is None else tar,
            storage=DEFAULT_STORAGE if storage is None else storage,
            cache=cache,
            rename=rename_files,
            select=select_files,
        )

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        shard: Any = None
        try:
            for shard in source:
                try:
                    yield from self._samples({"url": shard} if isinstance(shard, str) else shard)
                except _Stop:
                    return
                except (TarmacError, OSError) as error:
                    if not self._ask(error):
                        return
            shard = None
        finally:
            put_back(shard)  # if it was not read to its end

    def _samples(self, shard: dict[str, Any]) -> Iterator[Any]:
        url = shard["url"]
        if self.verbose:
            _log.info("reading %s", display_url(url))
        on_error = None if self.handler is reraise_exception else self._on_error
        samples: Iterable[Any] = read_shard(self.reader, url, on_error=on_error)
        if "part" in shard:
            index, count = shard["part"]
            samples = islice(samples, index, None, count)
        if "range" in shard:
            samples = islice(samples, *shard["range"])
        samples = iter(samples)
        first = list(islice(samples, 1))  # opens the shard: it is in the cache now, unless it is too large
        samples, path = chain(first, samples), self._local_path(url)
        if path is None:
            yield from samples
            return
        for sample in samples:
            sample["__local_path__"] = path
            yield sample

    def _local_path(self, url: str) -> str | None:
        if is_local(url):
            return local_path(url)
        cached = None if self.reader.cache is None else self.reader.cache.path_of(url)
        return str(cached) if cached is not None and cached.exists() else None

    def _on_error(self, error: SampleError) -> None:
        if not self._ask(error):
            raise _Stop

    def _ask(self, error: Exception) -> bool:
        """Return whether the handler accepts an error of a shard."""
        return self.drops.ask(self.handler, error)


class _Stop(Exception):
    """A handler ended the stream."""


def tarfile_samples(
    src: Iterable[Any],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    *,
    tar: TarOptions | None = None,
) -> Iterator[Any]:
    """Yield the samples of shards."""
    return TarSamples(handler, select_files, rename_files, tar=tar).run(src)


def check_empty(source: Iterable[Any]) -> Iterator[Any]:
    """Yield all samples, and raise if there are none."""
    empty = True
    for sample in source:
        empty = False
        yield sample
    if empty:
        raise NoSamples("this process read no samples; there may be fewer samples than workers.")
