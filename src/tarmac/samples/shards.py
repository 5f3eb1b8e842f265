"""Write samples to numbered shards of limited size."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from tarmac.display import display_url
from tarmac.errors import UrlError, UsageError
from tarmac.samples.naming import Splitter, first_dot
from tarmac.samples.writer import SampleEncoder, TarWriter
from tarmac.storage import StorageOptions, WriteOptions
from tarmac.storage.types import DEFAULT_STORAGE, DEFAULT_WRITE
from tarmac.storage.unclosed import Watch
from tarmac.tar.writer import TarFormat

if TYPE_CHECKING:
    from tarmac.indexing.manifest import Shard

_log = logging.getLogger("tarmac")
_PERCENT = re.compile(r"%(?:0\d+)?d(?![0-9a-fA-F])")
"""`%d` and `%06d` are numbers; `%20`, `%6d` and `%d0` are escaped characters of a URL."""


class ShardWriter:
    """Writes samples to numbered shards, starting a new one when the current one is full.

    >>> with ShardWriter("train-{i:06d}.tar", max_samples=1000) as shards:
    ...     for sample in samples:
    ...         shards.write(sample)

    `{i:06d}` or `%06d` in the pattern is the number of the shard, from `start_shard` on. A shard is full at
    `max_samples` samples or `max_bytes` payload bytes. Each appears under its name when it is complete; then
    `on_shard(name)` is called. An exception inside `with` discards the current shard. A writer that is never
    closed is closed at the end of the program, with a warning, unless an exception terminated it.

    `index` also writes the index of each shard, and a manifest of all of them if it names one:
    `index="train.json"`. The other arguments are those of `TarWriter`.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        max_samples: int = 100_000,
        max_bytes: float = 3_000_000_000,
        start_shard: int = 0,
        on_shard: Callable[[str], object] | None = None,
        index: bool | str | os.PathLike[str] = False,
        encoder: SampleEncoder = True,
        compress: bool | str | None = None,
        format: TarFormat = "auto",
        mtime: float = 0,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        keep_meta: bool = False,
        split_name: Splitter = first_dot,
        storage: StorageOptions = DEFAULT_STORAGE,
        write: WriteOptions = DEFAULT_WRITE,
    ) -> None:
        for name, value in (("max_samples", max_samples), ("max_bytes", max_bytes)):
            if value < 1:
                raise UsageError(f"expected a positive number, got {value}.", field=name)
        self.pattern: str = os.fspath(pattern)
        if fill_pattern(self.pattern, 0) == fill_pattern(self.pattern, 1):
            raise UrlError(
                "every shard would have the same name.", url=self.pattern, hint="train-{i:06d}.tar"
            )
        self.max_samples: int = max_samples
        self.max_bytes: float = max_bytes
        self.on_shard = on_shard
        self.samples_written: int = 0
        self._number = start_shard
        self._name: str | None = None
        self._writer: TarWriter | None = None
        self._samples = self._bytes = 0
        self._options: dict[str, Any] = {
            "encoder": encoder,
            "compress": compress,
            "index": bool(index),
            "format": format,
            "mtime": mtime,
            "user": user,
            "group": group,
            "mode": mode,
            "keep_meta": keep_meta,
            "split_name": split_name,
            "storage": storage,
            "write": write,
        }
        self._manifest = None if isinstance(index, bool) else os.fspath(index)
        self._indexed: list[Shard] = []
        self._watch = Watch(self, self.pattern)

    def write(self, sample: Mapping[str, Any]) -> int:
        """Append a sample and return its payload size."""
        if self._writer is None or self._samples >= self.max_samples or self._bytes >= self.max_bytes:
            self.next_shard()
        assert self._writer is not None
        size = self._writer.write(sample)
        self._samples += 1
        self._bytes += size
        self.samples_written += 1
        return size

    def next_shard(self) -> None:
        """Finish the current shard and start the next."""
        self.finish_shard()
        self._name = fill_pattern(self.pattern, self._number)
        self._writer = self._open(self._name)
        self._watch.renew()
        self._number += 1
        self._samples = self._bytes = 0

    def _open(self, name: str) -> TarWriter:
        return TarWriter(name, **self._options)

    def finish_shard(self) -> None:
        """Publish the current shard, if there is one."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        writer.close()
        assert self._name is not None
        if self._manifest is not None:
            from tarmac.indexing.manifest import Shard
            from tarmac.indexing.sidecar import open_sidecar

            assert writer.sidecar is not None
            facts = open_sidecar(writer.sidecar, self._options["storage"]).facts
            self._indexed.append(Shard(self._name, facts.samples, facts.size, None, facts.fingerprint))
        self._log_shard(self._name)
        if self.on_shard is not None:
            self.on_shard(self._name)

    def _log_shard(self, name: str) -> None:
        _log.info("%s: %d samples, %d bytes", display_url(name), self._samples, self._bytes)

    def close(self) -> None:
        """Publish the last shard and the manifest; closing twice does nothing."""
        self._watch.done()
        self.finish_shard()
        if self._manifest is not None and self._indexed:
            from tarmac.indexing.manifest import Manifest, write_manifest

            name = os.path.basename(self._manifest).partition(".")[0]
            write_manifest(Manifest(self._indexed, name), self._manifest, self._options["storage"])
            self._indexed = []

    def abort(self) -> None:
        """Discard the current shard; earlier ones stay."""
        self._watch.done()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
            return
        if kind is GeneratorExit and self._holds_data():
            self._watch.abandoned()
        self.abort()

    def _holds_data(self) -> bool:
        return self._writer is not None or bool(self._indexed)

    def __del__(self) -> None:
        if hasattr(self, "_watch") and self._holds_data():
            self._watch.dropped(self)


def fill_pattern(pattern: str, number: int) -> str:
    """Return a shard name: the pattern with a number for `{i}` or `%d`."""
    try:
        if "{" not in pattern:
            return _PERCENT.sub(lambda match: match[0] % number, pattern)
        return pattern.format(number, i=number)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UrlError(
            f"invalid pattern ({type(error).__name__}: {error}).", url=pattern, hint="use {i:06d}."
        ) from None
