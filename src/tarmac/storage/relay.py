"""A helper process that talks to object stores for a forked child.

obstore's threads exist only in the process that started them. A child forked from it (a DataLoader
worker, say) would wait for them for ever, so it starts one fresh interpreter and sends its requests
there. Requests are few and large: a round trip per megabyte. The helper ends with its client.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import sys
import threading
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

from tarmac import environment
from tarmac.errors import TarmacError, TransferError
from tarmac.limits import MIB
from tarmac.storage.types import ObjectInfo, Source, StorageOptions

__all__ = ["RelaySource", "call", "open_read", "put"]

LARGEST_READ = 4 * MIB
_relay: Relay | None = None
_starting = threading.Lock()


class Relay:
    """One helper process and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        self._lock = threading.Lock()
        command = [sys.executable, "-m", "tarmac.storage.relay"]
        # The pipe is the helper's standard input: no other process inherits it, so its end is our end.
        pipe = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
        self._pid = os.posix_spawn(sys.executable, command, environment.environ_copy(), file_actions=pipe)
        theirs.close()

    def call(self, name: str, *args: Any) -> Any:
        """Run one operation in the helper and return its result or raise its error."""
        with self._lock:
            try:
                self._pipe.send((name, args))
                ok, value = self._pipe.recv()
            except (EOFError, OSError):
                self.end()
                raise TransferError("the helper process for object stores has ended.") from None
        if ok:
            return value
        raise value

    @property
    def ended(self) -> bool:
        """Whether there is no helper any more."""
        return self._pipe.closed

    def forget(self) -> None:
        """Let go of the pipe, which belongs to the parent of this process."""
        with contextlib.suppress(OSError):
            self._pipe.close()

    def end(self) -> None:
        """Close the pipe, which ends the helper, and wait for that."""
        self.forget()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def call(name: str, *args: Any) -> Any:
    """Run one operation in this process's helper, starting it when there is none."""
    global _relay
    with _starting:
        if _relay is None or _relay.ended:
            _relay = Relay()
    return _relay.call(name, *args)


def _forget_relay() -> None:
    """Begin anew in a forked child: helper and locks are its parent's."""
    global _relay, _starting
    _starting = threading.Lock()
    if _relay is not None:
        _relay.forget()
        _relay = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_relay)


def open_read(url: str, options: StorageOptions) -> RelaySource:
    """Open an object in the helper."""
    return RelaySource(url, *call("open", url, options))


def put(url: str, file: IO[bytes], size: int, options: StorageOptions, *, new: bool) -> None:
    """Let the helper upload an open file, through the descriptor it can reach by name."""
    call("put", url, f"/proc/{os.getpid()}/fd/{file.fileno()}", size, options, new)


class RelaySource(Source):
    """A stream that the helper reads."""

    def __init__(self, url: str, handle: int, length: int | None, version: str | None) -> None:
        self._url = url
        self._relay = _relay
        self._handle: int | None = handle
        self.length = length
        self.version = version

    def read(self, size: int, /) -> bytes:
        if self._relay is None or self._relay is not _relay:
            raise TransferError("the stream was opened in another process.", url=self._url)
        data: bytes = self._relay.call("read", self._handle, size)
        return data

    def close(self) -> None:
        if self._handle is not None and self._relay is not None and self._relay is _relay:
            with contextlib.suppress(TarmacError):  # a helper that is gone has closed it
                self._relay.call("close", self._handle)
        self._handle = None


class _Server:
    """The other end: operations by name, open streams by number."""

    def __init__(self) -> None:
        from tarmac.storage import objects

        self._objects = objects
        self._streams: dict[int, Source] = {}
        self._numbers = itertools.count(1)

    def open(self, url: str, options: StorageOptions) -> tuple[int, int | None, str | None]:
        source = self._objects.open_read(url, options)
        number = next(self._numbers)
        self._streams[number] = source
        return number, source.length, source.version

    def read(self, number: int, size: int) -> bytes:
        return self._streams[number].read(min(size, LARGEST_READ))

    def close(self, number: int) -> None:
        self._streams.pop(number).close()

    def stat(self, url: str, options: StorageOptions) -> ObjectInfo:
        return self._objects.stat(url, options)

    def read_range(
        self, url: str, start: int, stop: int, options: StorageOptions, version: str | None = None
    ) -> bytes:
        return self._objects.read_range(url, start, stop, options, version)

    def list_infos(self, url: str, most: int, options: StorageOptions) -> list[tuple[str, ObjectInfo]]:
        return self._objects.list_infos(url, most, options)

    def list_objects(self, url: str, pattern: str, most: int, options: StorageOptions) -> list[str]:
        return self._objects.list_objects(url, pattern, most, options)

    def put(self, url: str, path: str, size: int, options: StorageOptions, new: bool) -> None:
        with open(path, "rb") as file:
            self._objects.put(url, file, size, options, new=new)


def _end_with(fd: int) -> None:
    """End this process as soon as the client is gone, also in the middle of a request."""
    watch = select.poll()
    watch.register(fd, 0)  # what is always reported: that the other side hung up
    watch.poll()
    os._exit(0)


def _serve(fd: int) -> None:
    """Answer requests until the client is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the client's to handle
    threading.Thread(target=_end_with, args=(fd,), daemon=True).start()
    pipe: Connection[Any, Any] = Connection(fd)
    server = _Server()
    while True:
        try:
            name, args = pipe.recv()
            pipe.send(_answer(server, name, args))
        except (EOFError, OSError):
            return


def _answer(server: _Server, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, getattr(server, name)(*args)
    except TarmacError as error:
        return False, error
    except Exception as error:  # anything else may not survive the way back
        return False, TransferError(f"the helper process failed: {type(error).__name__}.")


if __name__ == "__main__":
    _serve(0)
