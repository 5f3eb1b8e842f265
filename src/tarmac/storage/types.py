"""The types that all stores share: sources, sinks and options."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from tarmac.errors import TarmacError, UsageError
from tarmac.limits import GIB, Options


class Closing:
    """An object that a `with` block closes."""

    def close(self) -> None:
        """Release the connection, file or process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Source(Closing):
    """An open stream of bytes. `read` returns b"" only after every byte has arrived."""

    length: int | None = None
    """The total number of bytes, if the store reports it."""
    version: str | None = None
    """A string that changes when the bytes change, such as an ETag, if the store reports one."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes."""
        raise NotImplementedError

    def map(self) -> mmap.mmap | None:
        """Return the whole content as a memory map, or None if it cannot be mapped."""
        return None

    def content(self) -> bytes | None:
        """Return the whole content if it is already in memory."""
        return None

    def blame(self, error: TarmacError) -> None:
        """Handle a report that the bytes are damaged; a cached copy is removed and adds a hint to the error."""


class Sink(Protocol):
    """A target that stays invisible under its name until `commit`."""

    def write(self, data: bytes, /) -> None:
        """Append bytes."""

    def commit(self) -> None:
        """Publish all written bytes."""

    def abort(self) -> None:
        """Discard the written bytes and leave no trace."""


@runtime_checkable
class ReadableSink(Sink, Protocol):
    """A sink that can return what was written to it, before it is committed."""

    def tell(self) -> int:
        """Return the number of bytes written."""

    def read_back(self, start: int, size: int) -> bytes:
        """Return up to `size` written bytes from `start`; fewer only at the end."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The size of a file or object, and its version: a string that changes when the bytes change."""

    size: int
    version: str | None


@dataclass(frozen=True, slots=True, repr=False)
class StorageOptions(Options):
    """Timeouts, retries and credentials for remote stores. Times are in seconds."""

    connect_timeout: float = 10.0
    """Time to establish a connection."""
    idle_timeout: float = 30.0
    """Time for which a server may send nothing."""
    total_timeout: float = 6 * 3600.0
    """Time for one whole request."""
    command_timeout: float = 600.0
    """Time for which the command of a `pipe:` URL may print nothing or read nothing."""
    retries: int = 10
    """Number of times a failed request is sent again."""
    retry_timeout: float = 180.0
    """Time after which a failed request is no longer retried."""
    backoff: float = 0.1
    """First pause between retries. Pauses double, with jitter, up to `max_backoff`."""
    max_backoff: float = 15.0
    """Longest pause between retries."""
    max_unsized_bytes: int = 64 * GIB
    """Largest response that is accepted without a Content-Length."""
    config: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Store configuration in the terms of obstore: endpoint, access_key_id, account_name, …"""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Additional HTTP headers, such as Authorization."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "retries" and value < 0:
                raise UsageError(f"expected 0 or more, got {value}.", field=each.name)
            if each.name not in ("retries", "config", "headers") and value <= 0:
                raise UsageError(f"expected a positive number, got {value}.", field=each.name)
        # Options are the keys of cached clients, so they hold copies that the caller cannot change. The two
        # mappings take part in equality but not in the hash.
        object.__setattr__(self, "config", dict(self.config))
        object.__setattr__(self, "headers", dict(self.headers))


@dataclass(frozen=True, slots=True, repr=False)
class WriteOptions(Options):
    """How a finished file or object is published under its name."""

    overwrite: bool | None = None
    """True replaces an existing target, False raises `CommitFailed`. None replaces the target that existed
    when writing began, but not one that another writer has published since, unless it has the same bytes."""
    durable: bool = True
    """Flush to disk before publishing, so that a power failure leaves either the old file or the new one."""
    private: bool = False
    """Create a local file that only its owner can read, for contents with credentials."""


DEFAULT_STORAGE = StorageOptions()
DEFAULT_WRITE = WriteOptions()
