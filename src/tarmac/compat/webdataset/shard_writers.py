"""The native writers with the arguments and attributes of the webdataset library."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from typing import IO, Any, cast

from tarmac.errors import UsageError
from tarmac.samples import shards, writer
from tarmac.samples.writer import SampleEncoder
from tarmac.tar.writer import TarFormat

__all__ = ["ShardWriter", "TarWriter"]

_FORMATS: dict[object, TarFormat] = {
    None: "auto",
    tarfile.USTAR_FORMAT: "ustar",
    tarfile.GNU_FORMAT: "gnu",
    tarfile.PAX_FORMAT: "pax",
    "USTAR_FORMAT": "ustar",
    "GNU_FORMAT": "gnu",
    "PAX_FORMAT": "pax",
}


class TarWriter(writer.TarWriter):
    """`tarmac.TarWriter` with the arguments of the webdataset library."""

    def __init__(
        self,
        fileobj: str | os.PathLike[str] | IO[bytes],
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        compress: bool | str | None = None,
        encoder: SampleEncoder | None = True,
        keep_meta: bool = False,
        mtime: float | None = None,
        format: str | int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            fileobj,
            user=user,
            group=group,
            mode=mode,
            compress=compress,
            encoder=False if encoder is None else encoder,
            keep_meta=keep_meta,
            mtime=mtime or 0,
            format=_FORMATS.get(format, cast("TarFormat", format)),
            **options,
        )


class ShardWriter(shards.ShardWriter):
    """`tarmac.ShardWriter` with the arguments and attributes of the webdataset library."""

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
        encoder: SampleEncoder | None = True,
        keep_meta: bool = False,
        mtime: float | None = None,
        format: str | int | None = None,
        **options: Any,
    ) -> None:
        if options.get("index") and opener is not None:
            raise UsageError("`index` and `opener` are mutually exclusive.", field="index")
        self.verbose, self.opener = verbose, opener
        super().__init__(
            pattern,
            max_samples=maxcount,
            max_bytes=maxsize,
            on_shard=post,
            start_shard=start_shard,
            user=user,
            group=group,
            mode=mode,
            compress=compress,
            encoder=False if encoder is None else encoder,
            keep_meta=keep_meta,
            mtime=mtime or 0,
            format=_FORMATS.get(format, cast("TarFormat", format)),
            **options,
        )

    def _open(self, name: str) -> writer.TarWriter:
        if self.opener is None:
            return super()._open(name)
        return writer.TarWriter(self.opener(name), **self._options, _name=name, _close=True)

    def _log_shard(self, name: str) -> None:
        if self.verbose:
            super()._log_shard(name)

    def next_stream(self) -> None:
        """Finish the current shard and start the next."""
        self.next_shard()

    def finish(self) -> None:
        """Publish the current shard, if there is one."""
        self.finish_shard()

    maxcount = property(lambda self: self.max_samples)
    maxsize = property(lambda self: self.max_bytes)
    post = property(lambda self: self.on_shard)
    total = property(lambda self: self.samples_written)
    shard = property(lambda self: self._number)
    fname = property(lambda self: self._name)
    tarstream = property(lambda self: self._writer)
    count = property(lambda self: self._samples)
    size = property(lambda self: self._bytes)
