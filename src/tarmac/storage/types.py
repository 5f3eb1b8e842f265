"""The few types that all storage leaves share."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from tarmac.errors import TarmacError
from tarmac.limits import GIB

__all__ = ["DEFAULT_STORAGE", "ObjectInfo", "Sink", "Source", "StorageOptions", "WriteOptions"]


class Source:
    """An open stream of bytes. `read` gives b"" only when every byte has arrived."""

    length: int | None = None
    """How many bytes there are in all, where the store says so."""
    version: str | None = None
    """What changes when the bytes do (an ETag), where the store says so."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the connection, file or process."""

    def map(self) -> mmap.mmap | None:
        """Return the whole content as a memory map where that is possible."""
        return None

    def content(self) -> bytes | None:
        """Return the whole content if it is in memory already."""
        return None

    def blame(self, error: TarmacError) -> None:
        """Hear that the bytes are not what they must be; a copy that was kept adds so to the error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sink(Protocol):
    """A target that shows nothing under its name until `commit`."""

    def write(self, data: bytes, /) -> None:
        """Take in bytes."""

    def commit(self) -> None:
        """Publish what was written, whole."""

    def abort(self) -> None:
        """Leave no trace."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What is known about a file or object without reading it. `version` changes when the bytes do."""

    size: int
    version: str | None


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Patience and credentials for remote stores. Times are in seconds."""

    connect: float = 10.0
    idle: float = 30.0
    """How long a server may send nothing."""
    total: float = 6 * 3600.0
    """How long one request may take altogether."""
    unannounced_bytes: int = 64 * GIB
    """How many bytes a web server may send that does not say how many there are."""
    retries: int = 10
    retry_time: float = 180.0
    """How long retrying may go on before the error is raised."""
    backoff: float = 0.1
    """First pause between retries; pauses double, with jitter, up to `max_backoff`."""
    max_backoff: float = 15.0
    command_idle: float = 600.0
    """How long the command of a `pipe:` URL may print nothing."""
    config: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Store configuration as obstore names it: endpoint, access_key_id, account_name, …"""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Extra HTTP headers, such as Authorization."""

    def __post_init__(self) -> None:
        for name in ("connect", "idle", "total", "retry_time", "backoff", "max_backoff", "command_idle"):
            if getattr(self, name) <= 0:
                raise ValueError(f"StorageOptions.{name} must be positive, got {getattr(self, name)}")
        if self.unannounced_bytes < 1:
            raise ValueError(
                f"StorageOptions.unannounced_bytes must be positive, got {self.unannounced_bytes}"
            )
        if self.retries < 0:
            raise ValueError(f"StorageOptions.retries must not be negative, got {self.retries}")
        # Options are keys of the clients made from them, so they hold copies that nobody changes. The two
        # mappings take part in equality but not in the hash.
        object.__setattr__(self, "config", dict(self.config))
        object.__setattr__(self, "headers", dict(self.headers))


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a finished target is put in place."""

    overwrite: bool | None = None
    """True replaces whatever is there, False refuses. None replaces what was there when writing began,
    but not what another writer has put there meanwhile."""
    durable: bool = True
    """Flush to the disk before publishing, so that a power loss leaves the old file or the new one."""
    private: bool = False
    """Make a local file that only its owner can read, for what holds credentials."""


DEFAULT_STORAGE = StorageOptions()
DEFAULT_WRITE = WriteOptions()
