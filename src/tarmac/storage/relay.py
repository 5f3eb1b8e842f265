"""A helper process that sends requests to object stores for a forked child.

obstore's threads exist only in the process that started them. A child forked from it, such as a DataLoader
worker, would wait for them forever, so it starts one new interpreter and sends its requests there.
Each thread of the client has a connection of its own while it waits, so requests run at the same time. The helper exits
when its client does.
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
from multiprocessing.reduction import recv_handle, send_handle
from typing import IO, Any

from tarmac import environment
from tarmac.errors import TarmacError, TransferError
from tarmac.extras import MissingExtra
from tarmac.limits import MIB
from tarmac.runtime.preemption import INTERRUPTS
from tarmac.storage.types import ObjectInfo, Source, StorageOptions

Listing = list[tuple[str, ObjectInfo]]
MAX_READ = 4 * MIB
CONNECT = "connect"
_relay: Relay | None = None
_starting = threading.Lock()


class Relay:
    """One helper process, and connections to it."""

    def __init__(self) -> None:
        self.control, theirs = Pipe()
        self._lock = threading.Lock()
        self._idle: list[Connection[Any, Any]] = []
        command = [sys.executable, "-m", "tarmac.storage.relay"]
        # The pipe is the helper's standard input: no other process inherits it, so it closes when we exit.
        pipe = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
        self._pid = os.posix_spawn(sys.executable, command, environment.environ_copy(), file_actions=pipe)
        theirs.close()

    def call(self, name: str, *args: Any) -> Any:
        """Run an operation in the helper; return its result or raise its error."""
        try:
            connection = self._take()
            connection.send((name, args))
            ok, value = connection.recv()
        except (EOFError, OSError):
            self.stop()
            raise TransferError("the helper process for object stores has exited.") from None
        with self._lock:
            self._idle.append(connection)
        if ok:
            return value
        raise value

    def _take(self) -> Connection[Any, Any]:
        """Return an idle connection, or a new one: as many as there are threads with requests."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            ours, theirs = Pipe()
            with theirs:
                self.control.send(CONNECT)
                send_handle(self.control, theirs.fileno(), self._pid)
            return ours

    def stop(self) -> None:
        """Close the connections, which stops the helper, and wait for it to exit."""
        with contextlib.suppress(OSError):
            self.control.close()
        for connection in self._idle:
            connection.close()
        with contextlib.suppress(ChildProcessError):  # a child of the parent of this process
            os.waitpid(self._pid, 0)


def _running() -> Relay:
    """Return the helper of this process; start it if needed."""
    global _relay
    with _starting:
        if _relay is None or _relay.control.closed:
            _relay = Relay()
        return _relay


def call(name: str, *args: Any) -> Any:
    """Run an operation in the helper of this process."""
    return _running().call(name, *args)


def _reset_in_child() -> None:
    """Reset the state in a forked child: helper and locks belong to its parent."""
    global _relay, _starting
    _starting = threading.Lock()
    if _relay is not None:
        _relay.stop()
        _relay = None


os.register_at_fork(after_in_child=_reset_in_child)


def list_pages(url: str, storage: StorageOptions) -> Iterator[Listing]:
    """Yield the objects under a prefix, a page at a time."""
    number = call("open_list", url, storage)
    while page := call("next_page", number):
        yield page


def put(url: str, file: IO[bytes], size: int, storage: StorageOptions, *, only_new: bool) -> None:
    """Upload an open file in the helper, which opens it by the name of its descriptor."""
    call("put", url, f"/proc/{os.getpid()}/fd/{file.fileno()}", size, storage, only_new)


class RelaySource(Source):
    """A stream that the helper reads."""

    def __init__(self, url: str, storage: StorageOptions) -> None:
        self._url, self._relay = url, _running()
        self._number: int | None
        self._number, self.length, self.version = self._relay.call("open", url, storage)

    def read(self, size: int, /) -> bytes:
        if self._relay is not _relay:
            raise TransferError("the stream was opened in another process.", url=self._url)
        data: bytes = self._relay.call("read", self._number, size)
        return data

    def close(self) -> None:
        if self._number is not None and self._relay is _relay:
            with contextlib.suppress(TarmacError):  # a helper that has exited has closed it
                self._relay.call("close", self._number)
        self._number = None


class _Server:
    """The operations of the helper, by name; open streams and listings have numbers."""

    def __init__(self) -> None:
        from tarmac.storage import objects

        self._store, self._list_pages = objects.WebStore(), objects.list_pages
        self._buckets = objects.BucketStore()
        self.stat, self.read_range = self._store.stat, self._store.read_range
        self._streams: dict[int, Source] = {}
        self._listings: dict[int, Iterator[Listing]] = {}
        self._numbers = itertools.count(1)

    def open(self, url: str, storage: StorageOptions) -> tuple[int, int | None, str | None]:
        number, source = next(self._numbers), self._store.open_read(url, storage)
        self._streams[number] = source
        return number, source.length, source.version

    def read(self, number: int, size: int) -> bytes:
        return self._streams[number].read(min(size, MAX_READ))

    def close(self, number: int) -> None:
        self._streams.pop(number).close()

    def open_list(self, url: str, storage: StorageOptions) -> int:
        number = next(self._numbers)
        self._listings[number] = filter(None, self._list_pages(url, storage))
        return number

    def next_page(self, number: int) -> Listing:
        page = next(self._listings[number], [])
        if not page:
            del self._listings[number]
        return page

    def delete(self, url: str, storage: StorageOptions) -> None:
        self._buckets.delete(url, storage)

    def put(self, url: str, path: str, size: int, storage: StorageOptions, only_new: bool) -> None:
        with open(path, "rb") as file:
            self._store.put(url, file, size, storage, only_new=only_new)


def _exit_with_client(fd: int) -> None:
    """Exit this process as soon as the client exits, even during a request."""
    watch = select.poll()
    watch.register(fd, 0)  # a hang-up of the other side is always reported
    watch.poll()
    os._exit(0)


def _serve(fd: int) -> None:
    """Accept connections until the client exits."""
    for number in INTERRUPTS:  # the client handles them, and may save its work first
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_client, args=(fd,), daemon=True).start()
    control: Connection[Any, Any] = Connection(fd)
    server = _Server()
    with contextlib.suppress(EOFError, OSError):
        while control.recv() == CONNECT:
            connection: Connection[Any, Any] = Connection(recv_handle(control))
            threading.Thread(target=_answer_all, args=(server, connection), daemon=True).start()


def _answer_all(server: _Server, connection: Connection[Any, Any]) -> None:
    """Answer the requests of one connection, one after the other."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, args = connection.recv()
            connection.send(_answer(server, name, args))


def _answer(server: _Server, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, getattr(server, name)(*args)
    except (TarmacError, MissingExtra) as error:
        return False, error
    except Exception as error:  # other exceptions may not be picklable
        return False, TransferError(f"the helper process failed: {type(error).__name__}.")


if __name__ == "__main__":
    _serve(0)
