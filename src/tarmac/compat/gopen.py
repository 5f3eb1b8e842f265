"""URLs as plain file objects, for programs that call `gopen` and `gopen_schemes`.

Everything else in tarmac reads Sources and writes Sinks; here they wear the dress of Python files. A file
that is written appears under its name when it is closed, and not at all if the `with` block fails.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import IO, Any, NoReturn

from tarmac.errors import CommandFailed, UnsafeUrl, UnsupportedScheme, WriteError
from tarmac.storage import FileStore, schemes
from tarmac.storage.schemes import rewrite_url
from tarmac.storage.security import is_secure
from tarmac.storage.types import DEFAULT_STORAGE, Sink, Source
from tarmac.storage.unclosed import Watch

__all__ = [
    "Pipe",
    "ReadFile",
    "WriteFile",
    "gopen",
    "gopen_error",
    "gopen_schemes",
    "open_url",
    "pipe_cleaner",
    "reader",
    "rewrite_url",
    "set_options",
]

Opener = Callable[..., Any]
BUFFER = 8192
_IN_COMMAND = re.compile(r"(?:https?|hdfs|gs|ais|s3):\S*")


class _RawSource(io.RawIOBase):
    """A Source as an unbuffered file."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self.source.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.source.close()


class ReadFile(io.BufferedReader):
    """A Source as a binary file. A short file is an error of the Source, never a quiet end."""

    def __init__(self, source: Source, bufsize: int = BUFFER) -> None:
        self.source = source
        super().__init__(_RawSource(source), max(bufsize, 1))


class _RawSink(io.RawIOBase):
    """A Sink as an unbuffered file: closing commits, unless a write has failed."""

    def __init__(self, sink: Sink) -> None:
        self._sink: Sink | None = sink
        self._process = os.getpid()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self._process != os.getpid():
            raise WriteError("the file belongs to the process that opened it.")
        if self._sink is not None:
            try:
                self._sink.write(bytes(data))
            except BaseException:
                self.abort()
                raise
        return len(data)

    def abort(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None and self._process == os.getpid():
            sink.abort()

    def close(self) -> None:
        if not self.closed:
            super().close()
            sink, self._sink = self._sink, None
            if sink is not None:
                sink.commit()

    def __del__(self) -> None:
        self.abort()


class WriteFile(io.BufferedWriter):
    """A Sink as a binary file. `close` publishes; `abort`, or an error inside `with`, leaves nothing."""

    def __init__(self, sink: Sink, bufsize: int = BUFFER, name: str | None = None) -> None:
        self._raw = _RawSink(sink)
        super().__init__(self._raw, max(bufsize, 1))
        self._watch = Watch(self, name)

    def abort(self) -> None:
        """Give up: nothing appears under the name."""
        self._raw.abort()
        self.close()

    def close(self) -> None:
        if not self.closed:
            self._watch.done()
            super().close()

    def _holds_data(self) -> bool:
        return not self.closed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if not self.closed:
            self._watch.dropped(self)


def open_url(url: str, mode: str = "rb", bufsize: int = BUFFER, **kw: Any) -> IO[bytes]:
    """Open a URL with tarmac's own storage, or what is registered for its scheme.

    Further arguments are fields of `StorageOptions`, such as `idle_timeout=` or `headers=`.
    """
    options = replace(DEFAULT_STORAGE, **kw) if kw else DEFAULT_STORAGE
    if mode == "rb":
        return ReadFile(schemes.open_read(url, options), bufsize)
    if mode == "wb":
        return WriteFile(schemes.open_write(url, options), bufsize, url)
    raise ValueError(f'mode must be "rb" or "wb", got {mode!r}')


def gopen(url: str, mode: str = "rb", bufsize: int = BUFFER, **kw: Any) -> IO[bytes]:
    """Open a URL, a file name or "-" as a binary file, for reading ("rb") or writing ("wb").

    Further arguments go to the function registered for the scheme; otherwise they are fields of
    `StorageOptions`.
    """
    if mode not in ("rb", "wb"):
        raise ValueError(f'mode must be "rb" or "wb", got {mode!r}')
    target = rewrite_url(url)
    opener = gopen_schemes.registered.get(schemes.scheme_of(target))
    if opener is None or not kw:
        return open_url(url, mode, bufsize, **kw)
    file: IO[bytes] = opener(target, mode, bufsize, **kw)
    return file


def reader(url: str, **kw: Any) -> IO[bytes]:
    """Open a URL for reading."""
    return gopen(url, "rb", **kw)


def gopen_error(url: str, *args: Any, **kw: Any) -> NoReturn:
    """Say that nothing reads URLs of this scheme."""
    raise UnsupportedScheme(
        f'nothing reads "{schemes.scheme_of(url)}:" URLs.', url=url, hint="gopen_schemes[scheme] = function."
    )


class _Schemes(MutableMapping[str, Opener]):
    """What opens each scheme: assigning registers a function `f(url, mode, bufsize)` for all of tarmac.

    Deleting gives back what was there before. `__default__` is what happens to unknown schemes.
    """

    def __init__(self) -> None:
        self.registered: dict[str, Opener] = {}
        self._before: dict[str, Any] = {}

    def __getitem__(self, scheme: str) -> Opener:
        if scheme in self.registered:
            return self.registered[scheme]
        if scheme == "__default__":
            return gopen_error
        if scheme in schemes.known_schemes():
            return open_url
        raise KeyError(scheme)

    def __setitem__(self, scheme: str, opener: Opener) -> None:
        scheme = scheme.lower()
        before = schemes._registered.get(scheme)
        store = FileStore(partial(_opened, opener, mode="rb"), partial(_opened, opener, mode="wb"))
        schemes.register_scheme(scheme, store)
        self._before.setdefault(scheme, before)
        self.registered[scheme] = opener

    def __delitem__(self, scheme: str) -> None:
        del self.registered[scheme]
        before = self._before.pop(scheme)
        if before is None:
            schemes._registered.pop(scheme, None)
        else:
            schemes._registered[scheme] = before

    def __iter__(self) -> Iterator[str]:
        names = {*schemes.known_schemes(), "__default__"}
        return iter(sorted(name for name in names if len(name) > 1))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _opened(opener: Opener, url: str, mode: str) -> IO[bytes]:
    """Call a registered function as the webdataset library does."""
    file: IO[bytes] = opener(url, mode, BUFFER)
    return file


gopen_schemes = _Schemes()
"""What opens each scheme; see `_Schemes`."""


def pipe_cleaner(spec: str) -> str:
    """Find the URL inside a `pipe:` command, to name a cache entry after it; other URLs stay as they are."""
    if not spec.startswith("pipe:"):
        return spec
    found = next(filter(None, map(_IN_COMMAND.fullmatch, spec[len("pipe:") :].split())), None)
    return spec[len("pipe:") :] if found is None else found[0]


class Pipe:
    """A command's output or input as a file, for functions that are registered in `gopen_schemes`.

    The arguments are those of `subprocess.Popen`. A status that is neither 0 nor in `ignore_status` is an
    error at the end of the output, and when a written pipe is closed; a reader that closes early ends the
    command, and that is no error. Secure mode runs no commands.
    """

    def __init__(
        self,
        *args: Any,
        mode: str = "rb",
        timeout: float = 7200.0,
        ignore_errors: bool = False,
        ignore_status: list[int] | None = None,
        **kw: Any,
    ) -> None:
        if mode[:1] not in ("r", "w"):
            raise ValueError(f'mode must be "rb" or "wb", got {mode!r}')
        if is_secure():
            raise UnsafeUrl("secure mode runs no commands.")
        self.args = (args, kw)
        self.timeout, self.ignore_errors = timeout, ignore_errors
        self.ignore_status = [0, *(ignore_status or [])]
        self.status: int | None = None
        kw["stdout" if mode[0] == "r" else "stdin"] = subprocess.PIPE
        self.proc: subprocess.Popen[bytes] = subprocess.Popen(*args, **kw)
        stream = self.proc.stdout if mode[0] == "r" else self.proc.stdin
        if stream is None:
            raise CommandFailed("the command has no stream.")
        self.stream: IO[bytes] = stream
        self._reads = mode[0] == "r"

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; at the end the command's status counts."""
        data = self.stream.read(size)
        if len(data) < size or size < 0:
            self.wait_for_child()
        return data

    def readline(self, size: int = -1) -> bytes:
        """Return a line."""
        data = self.stream.readline(size)
        if not data and size:
            self.wait_for_child()
        return data

    def write(self, data: bytes) -> int:
        """Feed the command."""
        return self.stream.write(data)

    def flush(self) -> None:
        """Pass on what is buffered."""
        self.stream.flush()

    def wait_for_child(self) -> None:
        """Wait for the command to end; raise if it failed."""
        self.status = self.proc.wait(self.timeout)
        if self.status not in self.ignore_status and not self.ignore_errors:
            raise CommandFailed(f"the command ended with status {self.status}.")

    def close(self) -> None:
        """Close the stream and wait for the command, which is ended if its output was not wanted."""
        if self.stream.closed:
            return
        if self._reads:
            self.stream.close()
            if self.status is None:
                self.proc.kill()
                self.status = self.proc.wait()
            return
        try:
            self.stream.close()
        except BrokenPipeError:
            raise WriteError("the command stopped reading.") from None
        finally:
            self.wait_for_child()

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return self.stream.closed

    def __enter__(self) -> Pipe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or self._reads:
            self.close()
            return
        # What was fed so far must not pass for the whole.
        self.proc.kill()
        with contextlib.suppress(OSError):
            self.stream.close()
        self.status = self.proc.wait()


def set_options(
    obj: Any,
    timeout: float | None = None,
    ignore_errors: bool | None = None,
    ignore_status: list[int] | None = None,
    handler: Callable[[Exception], bool] | None = None,
) -> bool:
    """Change the options of a `Pipe`; return whether it was one."""
    if not isinstance(obj, Pipe):
        return False
    options = {"timeout": timeout, "ignore_errors": ignore_errors, "ignore_status": ignore_status}
    for name, value in {**options, "handler": handler}.items():
        if value is not None:
            setattr(obj, name, value)
    return True
