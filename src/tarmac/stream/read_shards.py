"""Shards to samples, as a stage: open, read, group, with handlers, a cache and parts of shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from tarmac.display import display_url
from tarmac.errors import NoSamples, SampleError, TarmacError
from tarmac.samples.reader import SampleReader, read_shard
from tarmac.steps.handlers import Drops, Handler, reraise_exception
from tarmac.steps.stage import PipelineStage
from tarmac.storage import Cache, is_local
from tarmac.storage.local import local_path
from tarmac.tar import TarOptions
from tarmac.tar.reader import DEFAULT_OPTIONS

__all__ = ["TarSamples", "check_empty", "tarfile_samples", "tarfile_to_samples"]

_log = logging.getLogger("tarmac")


class TarSamples(PipelineStage):
    """Read the samples of each shard, a dictionary with `url` (or a plain URL).

    A shard with `part: (index, count)` gives only every `count`-th sample, from number `index` on; that is
    how more workers than shards share the work. One with `range: (start, stop)` gives these samples only.
    `rename_files(name)` and then `select_files(name)` see each member's name. `tar` says how strictly to
    read. When a handler drops an error of the archive or the transfer, the rest of that shard is lost and
    counted as one; the next shard starts clean. A sample whose files are not next to each other is dropped
    whole from a plain local shard; in a stream, its first piece has gone out when the second comes, and the
    rest of the shard is dropped.
    """

    reads_parts = True

    def __init__(
        self,
        handler: Handler = reraise_exception,
        select_files: Callable[[str], bool] | None = None,
        rename_files: Callable[[str], str] | None = None,
        *,
        cache: Cache | None = None,
        verbose: bool = False,
        tar: TarOptions | None = None,
    ) -> None:
        self.handler, self.select_files, self.rename_files = handler, select_files, rename_files
        self.cache, self.verbose = cache, verbose
        self.tar = DEFAULT_OPTIONS if tar is None else tar
        self.drops = Drops()

    def run(self, *args: Any) -> Iterator[Any]:
        (shards,) = args
        for shard in shards:
            shard = {"url": shard} if isinstance(shard, str) else shard
            try:
                yield from self._samples(shard)
            except _Stop:
                return
            except (TarmacError, OSError) as exn:
                if not self.drops.ask(self.handler, exn):
                    return

    def _samples(self, shard: dict[str, Any]) -> Iterator[Any]:
        url = shard["url"]
        reader = SampleReader(
            [url], tar=self.tar, cache=self.cache, rename=self.rename_files, select=self.select_files
        )
        if self.verbose:
            _log.info("reading %s", display_url(url))
        on_error = None if self.handler is reraise_exception else self._on_error
        samples: Iterable[Any] = read_shard(reader, url, on_error=on_error)
        if "part" in shard:
            index, count = shard["part"]
            samples = islice(samples, index, None, count)
        if "range" in shard:
            samples = islice(samples, *shard["range"])
        if not is_local(url):
            yield from samples
            return
        path = local_path(url)
        for sample in samples:
            sample["__local_path__"] = path
            yield sample

    def _on_error(self, error: SampleError) -> None:
        if not self.drops.ask(self.handler, error):
            raise _Stop


class _Stop(Exception):
    """A handler wished the stream to end."""


def tarfile_samples(
    src: Iterable[Any],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    *,
    tar: TarOptions | None = None,
) -> Iterator[Any]:
    """Read the samples of shards."""
    return TarSamples(handler, select_files, rename_files, tar=tar).run(src)


def tarfile_to_samples(
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    *,
    tar: TarOptions | None = None,
) -> TarSamples:
    """Make the stage that reads the samples of shards; `tar` says how strictly."""
    return TarSamples(handler, select_files, rename_files, tar=tar)


def check_empty(source: Iterable[Any]) -> Iterator[Any]:
    """Raise if a pass has no samples at all."""
    empty = True
    for sample in source:
        empty = False
        yield sample
    if empty:
        raise NoSamples("no samples were found in this process; there may be fewer samples than workers.")
