"""A helper process that talks to object stores for a forked child.

obstore's threads exist only in the process that started them. A child forked from it (a DataLoader
worker, say) would wait for them for ever, so it starts one fresh interpreter and sends its requests
there. Requests are few and large: a round trip per megabyte.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

from tarmac.errors import TransferError
from tarmac.limits import MIB
from tarmac.storage.types import Source, StorageOptions

__all__ = ["RelaySource", "call", "open_read", "upload"]

_relays: dict[int, Relay] = {}
_starting = threading.Lock()


class Relay:
    """One helper process and the pipe to it."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        self._pipe = ours
        self._lock = threading.Lock()
        command = [sys.executable, "-m", "tarmac.storage.relay", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def call(self, name: str, *args: Any) -> Any:
        """Run one operation in the helper and return its result or raise its error."""
        with self._lock:
            try:
                self._pipe.send((name, args))
                ok, value = self._pipe.recv()
            except (EOFError, OSError):
                status = self._process.wait()
                raise TransferError(
                    f"the helper process for object stores ended (status {status})."
                ) from None
        if ok:
            return value
        raise value


def call(name: str, *args: Any) -> Any:
    """Run one operation in this process's helper, starting it when there is none."""
    pid = os.getpid()
    with _starting:
        if pid not in _relays:
            _relays.clear()  # what is there belongs to the parent
            _relays[pid] = Relay()
    return _relays[pid].call(name, *args)


def open_read(url: str, options: StorageOptions) -> RelaySource:
    """Open an object in the helper."""
    return RelaySource(call("open", url, options))


def upload(url: str, file: IO[bytes], size: int, options: StorageOptions) -> None:
    """Let the helper upload an open file, through the descriptor it can reach by name."""
    call("upload", url, f"/proc/{os.getpid()}/fd/{file.fileno()}", size, options)


class RelaySource(Source):
    """A stream that the helper reads."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def read(self, size: int, /) -> bytes:
        data: bytes = call("read", self._handle, size)
        return data

    def close(self) -> None:
        if self._handle is not None:
            call("close", self._handle)
            self._handle = None


class _Server:
    """The other end: operations by name, open streams by number."""

    def __init__(self) -> None:
        self._streams: dict[int, Source] = {}
        self._numbers = itertools.count(1)

    def open(self, url: str, options: StorageOptions) -> int:
        from tarmac.storage import objects

        number = next(self._numbers)
        self._streams[number] = objects.open_read(url, options)
        return number

    def read(self, number: int, size: int) -> bytes:
        return self._streams[number].read(min(size, 4 * MIB))

    def close(self, number: int) -> None:
        self._streams.pop(number).close()

    def stat(self, url: str, options: StorageOptions) -> Any:
        from tarmac.storage import objects

        return objects.stat(url, options)

    def read_range(self, url: str, start: int, stop: int, options: StorageOptions) -> bytes:
        from tarmac.storage import objects

        return objects.read_range(url, start, stop, options)

    def list_objects(self, url: str, options: StorageOptions) -> list[str]:
        from tarmac.storage import objects

        return objects.list_objects(url, options)

    def upload(self, url: str, path: str, size: int, options: StorageOptions) -> None:
        from tarmac.storage import objects

        with open(path, "rb") as file:
            objects.upload(url, file, size, options)


def _serve(fd: int) -> None:
    """Answer requests until the other side is gone."""
    pipe: Connection[Any, Any] = Connection(fd)
    server = _Server()
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        try:
            answer = True, getattr(server, name)(*args)
        except Exception as error:
            answer = False, error
        pipe.send(answer)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
