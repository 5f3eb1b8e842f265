"""Samples to as many shards as they fill."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from tarmac.display import display_url
from tarmac.errors import UrlError
from tarmac.samples.naming import Splitter, first_dot
from tarmac.samples.writer import SampleEncoder, TarWriter
from tarmac.storage import StorageOptions, WriteOptions
from tarmac.storage.types import DEFAULT_STORAGE, DEFAULT_WRITE
from tarmac.storage.unclosed import Watch

if TYPE_CHECKING:
    from tarmac.indexing.manifest import Shard

__all__ = ["ShardWriter", "shard_name"]

_log = logging.getLogger("tarmac")
_PERCENT = re.compile(r"%0?\d*d")


def shard_name(pattern: str, number: int) -> str:
    """Fill the shard's number into `train-%06d.tar` or `train-{i:06d}.tar`."""
    if _PERCENT.search(pattern):
        return pattern % number
    try:
        name = pattern.format(number, i=number)
    except (KeyError, IndexError, ValueError) as error:
        raise UrlError(f"the pattern cannot be filled in ({error}).", url=pattern) from None
    if name == pattern:
        raise UrlError("every shard would get the same name.", url=pattern, hint="train-{i:06d}.tar")
    return name


class ShardWriter:
    """Write samples to numbered shards, beginning a new one when the last is full.

    >>> with ShardWriter("train-%06d.tar", maxcount=1000) as shards:
    ...     for sample in samples:
    ...         shards.write(sample)

    A shard is full at `maxcount` samples or `maxsize` payload bytes. Each appears under its name when it
    is whole, and then `post(name)` is called. An exception inside `with` drops the shard being written.
    A writer that is never closed is closed at the end of the program, with a warning, unless an exception
    ended it.
    `verbose` logs each shard to the logger "tarmac"; `opener(name)` opens targets instead of tarmac. `index`
    writes the index of each shard too, and a manifest of all of them if it names one: `index="train.json"`.
    """

    def __init__(
        self,
        pattern: str,
        maxcount: int = 100_000,
        maxsize: float = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], IO[bytes]] | None = None,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        compress: bool | str | None = None,
        encoder: SampleEncoder = True,
        keep_meta: bool = False,
        mtime: float | None = None,
        format: str | int | None = None,
        *,
        split: Splitter = first_dot,
        storage: StorageOptions = DEFAULT_STORAGE,
        write: WriteOptions = DEFAULT_WRITE,
        index: bool | str | os.PathLike[str] = False,
    ) -> None:
        if maxcount < 1 or maxsize < 1:
            raise ValueError(f"maxcount and maxsize must be positive, got {maxcount} and {maxsize}")
        if index and opener is not None:
            raise ValueError("index= goes with shards that tarmac opens itself, not with an opener")
        shard_name(pattern, start_shard)
        self.pattern = pattern
        self.maxcount = maxcount
        self.maxsize = maxsize
        self.post = post
        self.verbose = verbose
        self.opener = opener
        self.shard = start_shard
        self.total = self.count = self.size = 0
        self.fname: str | None = None
        self.tarstream: TarWriter | None = None
        self._options: dict[str, Any] = {
            "user": user,
            "group": group,
            "mode": mode,
            "compress": compress,
            "encoder": encoder,
            "keep_meta": keep_meta,
            "mtime": mtime,
            "format": format,
            "split": split,
            "storage": storage,
            "write": write,
            "index": bool(index),
        }
        self._manifest = None if isinstance(index, bool) else os.fspath(index)
        self._indexed: list[Shard] = []
        self._watch = Watch(self, pattern)

    def write(self, sample: Mapping[str, Any]) -> int:
        """Append a sample and return its payload size."""
        if self.tarstream is None or self.count >= self.maxcount or self.size >= self.maxsize:
            self.next_stream()
        assert self.tarstream is not None
        size = self.tarstream.write(sample)
        self.count += 1
        self.total += 1
        self.size += size
        return size

    def next_stream(self) -> None:
        """Finish the current shard and begin the next."""
        self.finish()
        name = shard_name(self.pattern, self.shard)
        if self.opener is None:
            self.tarstream = TarWriter(name, **self._options)
        else:
            self.tarstream = TarWriter(self.opener(name), **self._options, _name=name, _close=True)
        self._watch.renew()
        self.fname = name
        self.shard += 1
        self.count = self.size = 0

    def finish(self) -> None:
        """Publish the current shard, if there is one."""
        if self.tarstream is None:
            return
        stream, self.tarstream = self.tarstream, None
        stream.close()
        assert self.fname is not None
        if self._manifest is not None:
            from tarmac.indexing.manifest import Shard
            from tarmac.indexing.sidecar import open_sidecar

            assert stream.sidecar is not None
            facts = open_sidecar(stream.sidecar, self._options["storage"]).facts
            self._indexed.append(Shard(self.fname, facts.samples, facts.size, None, facts.fingerprint))
        if self.verbose:
            _log.info("%s: %d samples, %d bytes", display_url(self.fname), self.count, self.size)
        if self.post is not None:
            self.post(self.fname)

    def close(self) -> None:
        """Publish the last shard, and the manifest; closing twice does nothing."""
        self._watch.done()
        self.finish()
        if self._manifest is not None and self._indexed:
            from tarmac.indexing.manifest import Manifest, write_manifest

            name = os.path.basename(self._manifest).partition(".")[0]
            write_manifest(Manifest(self._indexed, name), self._manifest, self._options["storage"])
            self._indexed = []

    def abort(self) -> None:
        """Drop the shard being written; earlier ones stay."""
        self._watch.done()
        if self.tarstream is not None:
            stream, self.tarstream = self.tarstream, None
            stream.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        if kind is GeneratorExit and self._holds_data():
            self._watch.abandoned()
        self.abort()

    def _holds_data(self) -> bool:
        return self.tarstream is not None or bool(self._indexed)

    def __del__(self) -> None:
        if hasattr(self, "_watch") and self._holds_data():
            self._watch.dropped(self)
