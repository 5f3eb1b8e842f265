"""A helper process that sends requests to object stores for a forked child.

obstore's threads exist only in the process that started them. A child forked from it, such as a DataLoader
worker, would wait for them forever, so it starts one new interpreter and sends its requests there.
Requests are few and large: one round trip per megabyte. The helper exits when its client does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

from tarmac import environment
from tarmac.errors import TarmacError, TransferError
from tarmac.limits import MIB
from tarmac.storage.types import ObjectInfo, Source, StorageOptions

MAX_READ = 4 * MIB
_relay: Relay | None = None
_starting = threading.Lock()


class Relay:
    """One helper process and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        self._lock = threading.Lock()
        command = [sys.executable, "-m", "tarmac.storage.relay"]
        # The pipe is the helper's standard input: no other process inherits it, so it closes when we exit.
        pipe = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
        self._pid = os.posix_spawn(sys.executable, command, environment.environ_copy(), file_actions=pipe)
        theirs.close()

    def call(self, name: str, *args: Any) -> Any:
        """Run an operation in the helper; return its result or raise its error."""
        with self._lock:
            try:
                self._pipe.send((name, args))
                ok, value = self._pipe.recv()
            except (EOFError, OSError):
                self.stop()
                raise TransferError("the helper process for object stores has exited.") from None
        if ok:
            return value
        raise value

    @property
    def stopped(self) -> bool:
        """Whether the helper has exited."""
        return self._pipe.closed

    def close(self) -> None:
        """Close the pipe without waiting, as a forked child does: the helper belongs to its parent."""
        with contextlib.suppress(OSError):
            self._pipe.close()

    def stop(self) -> None:
        """Close the pipe, which stops the helper, and wait for it to exit."""
        self.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def call(name: str, *args: Any) -> Any:
    """Run an operation in the helper of this process; start the helper if needed."""
    global _relay
    with _starting:
        if _relay is None or _relay.stopped:
            _relay = Relay()
    return _relay.call(name, *args)


def _reset_in_child() -> None:
    """Reset the state in a forked child: helper and locks belong to its parent."""
    global _relay, _starting
    _starting = threading.Lock()
    if _relay is not None:
        _relay.close()
        _relay = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


def open_read(url: str, storage: StorageOptions) -> RelaySource:
    """Open an object in the helper."""
    return RelaySource(url, *call("open", url, storage))


def list_pages(url: str, storage: StorageOptions) -> Iterator[list[tuple[str, ObjectInfo]]]:
    """Yield the objects under a prefix, a page at a time."""
    number = call("open_list", url, storage)
    while page := call("next_page", number):
        yield page


def put(url: str, file: IO[bytes], size: int, storage: StorageOptions, *, only_new: bool) -> None:
    """Upload an open file in the helper, which opens it by the name of its descriptor."""
    call("put", url, f"/proc/{os.getpid()}/fd/{file.fileno()}", size, storage, only_new)


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
            with contextlib.suppress(TarmacError):  # a helper that has exited has closed it
                self._relay.call("close", self._handle)
        self._handle = None


class _Server:
    """The operations of the helper, by name; open streams and listings have numbers."""

    def __init__(self) -> None:
        from tarmac.storage import objects

        self._objects = objects
        self._streams: dict[int, Source] = {}
        self._listings: dict[int, Iterator[list[tuple[str, ObjectInfo]]]] = {}
        self._numbers = itertools.count(1)

    def open(self, url: str, storage: StorageOptions) -> tuple[int, int | None, str | None]:
        source = self._objects.open_read(url, storage)
        number = next(self._numbers)
        self._streams[number] = source
        return number, source.length, source.version

    def read(self, number: int, size: int) -> bytes:
        return self._streams[number].read(min(size, MAX_READ))

    def close(self, number: int) -> None:
        self._streams.pop(number).close()

    def stat(self, url: str, storage: StorageOptions) -> ObjectInfo:
        return self._objects.stat(url, storage)

    def read_range(
        self, url: str, start: int, stop: int, storage: StorageOptions, version: str | None = None
    ) -> bytes:
        return self._objects.read_range(url, start, stop, storage, version)

    def open_list(self, url: str, storage: StorageOptions) -> int:
        number = next(self._numbers)
        self._listings[number] = filter(None, self._objects.list_pages(url, storage))
        return number

    def next_page(self, number: int) -> list[tuple[str, ObjectInfo]]:
        page = next(self._listings[number], None)
        if page is None:
            del self._listings[number]
        return page or []

    def put(self, url: str, path: str, size: int, storage: StorageOptions, only_new: bool) -> None:
        with open(path, "rb") as file:
            self._objects.put(url, file, size, storage, only_new=only_new)


def _exit_with_client(fd: int) -> None:
    """Exit this process as soon as the client exits, even during a request."""
    watch = select.poll()
    watch.register(fd, 0)  # a hang-up of the other side is always reported
    watch.poll()
    os._exit(0)


def _serve(fd: int) -> None:
    """Answer requests until the client exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client handles Ctrl-C
    threading.Thread(target=_exit_with_client, args=(fd,), daemon=True).start()
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
    except Exception as error:  # other exceptions may not be picklable
        return False, TransferError(f"the helper process failed: {type(error).__name__}.")


if __name__ == "__main__":
    _serve(0)
