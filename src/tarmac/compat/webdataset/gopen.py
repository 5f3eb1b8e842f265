"""`webdataset.gopen`: open URLs as Python files. The attribute `webdataset.gopen` is the function `gopen`.

The rest of tarmac reads from a `Source` and writes to a `Sink`. A written file appears under its name when it is
closed, and not at all if the `with` block fails.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import subprocess
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import replace
from subprocess import PIPE as PIPE
from types import TracebackType
from typing import IO, Any, NoReturn

from tarmac import environment
from tarmac.compat.webdataset import utils as utils
from tarmac.compat.webdataset._security import check_url
from tarmac.compat.webdataset.utils import print_message
from tarmac.display import display_url
from tarmac.errors import UnsupportedScheme, WriteError
from tarmac.storage import FileStore, schemes
from tarmac.storage.command import CommandSink, CommandSource
from tarmac.storage.local import LocalSource
from tarmac.storage.schemes import rewrite_url as rewrite_url
from tarmac.storage.types import DEFAULT_STORAGE, Sink, Source, StorageOptions
from tarmac.storage.unclosed import Watch

Opener = Callable[..., Any]
BUFFER = 8192
info: dict[str, Any] = {}
"""What a program adds to the messages of GOPEN_VERBOSE."""
_POPEN = tuple(inspect.signature(subprocess.Popen).parameters)
_BY_CURL = ("sftp", "scp", "ftps")
_IN_COMMAND = re.compile(r"(?:https?|hdfs|gs|ais|s3):\S*")


class _RawSource(io.RawIOBase):
    """An unbuffered file that reads from a Source."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return isinstance(self.source, LocalSource) and self.source.length is not None

    def fileno(self) -> int:
        return self.source.fileno() if isinstance(self.source, LocalSource) else super().fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if not self.seekable():
            raise io.UnsupportedOperation("only local files can seek")
        return os.lseek(self.fileno(), offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        data = self.source.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.source.close()


class ReadFile(io.BufferedReader):
    """A buffered binary file that reads from a Source, which raises if it ends too early."""

    def __init__(self, source: Source, bufsize: int = BUFFER) -> None:
        self.source = source
        super().__init__(_RawSource(source), max(bufsize, 1))


class _RawSink(io.RawIOBase):
    """An unbuffered file that writes to a Sink. Closing commits, unless a write has failed."""

    def __init__(self, sink: Sink) -> None:
        self._sink: Sink | None = sink
        self._process = os.getpid()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self._process != os.getpid():
            raise WriteError("the file was opened by another process.")
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
    """A buffered binary file that writes to a Sink. `close` commits; `abort`, or an error in `with`, discards."""

    def __init__(self, sink: Sink, bufsize: int = BUFFER, name: str | None = None) -> None:
        self._raw = _RawSink(sink)
        super().__init__(self._raw, max(bufsize, 1))
        self._watch = Watch(self, name)

    def abort(self) -> None:
        """Discard the content; nothing appears under the name."""
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
    """Open a URL with the store of its scheme; `kw` are fields of `StorageOptions`."""
    options = replace(DEFAULT_STORAGE, **kw) if kw else DEFAULT_STORAGE
    if mode == "rb":
        return ReadFile(schemes.open_read(url, options), bufsize)
    if mode == "wb":
        return WriteFile(schemes.open_write(url, options), bufsize, url)
    raise ValueError(f'mode must be "rb" or "wb", got {mode!r}')


gopen_ais = gopen_file = gopen_gsutil = gopen_hf = gopen_htgs = gopen_pipe = open_url


def gopen_curl(url: str, mode: str = "rb", bufsize: int = BUFFER, **kw: Any) -> Any:
    """Open a URL with `curl` if tarmac has no store for its scheme, as for sftp."""
    if schemes.scheme_of(url) not in _BY_CURL:
        return open_url(url, mode, bufsize, **kw)
    command = ["curl", "-f", "-s", "-g", "--proto", f"={','.join(_BY_CURL)}"]
    retries = ["--connect-timeout", "30", "--retry", "30", "--retry-delay", "2"]
    return Pipe([*command, *(retries if mode == "rb" else ("-T", "-")), url], mode=mode)


def gopen(url: str, mode: str = "rb", bufsize: int = BUFFER, **kw: Any) -> IO[bytes]:
    """Open a URL, a file name or "-" as a binary file, for reading ("rb") or writing ("wb").

    Secure mode rejects commands and local files. `kw` is passed to the function that `gopen_schemes` has for the
    scheme. Without one, `kw` are fields of `StorageOptions`.
    """
    if mode not in ("rb", "wb"):
        raise ValueError(f'mode must be "rb" or "wb", got {mode!r}')
    check_url(url)
    target = rewrite_url(url)
    if environment.gopen_verbose():
        print_message(f"GOPEN {display_url(url)} {info}")
        if target != url:
            print_message(f"GOPEN REWRITE {display_url(url)} -> {display_url(target)}")
    opener = gopen_schemes.registered.get(schemes.scheme_of(target))
    if opener is None or not kw:
        return open_url(url, mode, bufsize, **kw)
    file: IO[bytes] = opener(target, mode, bufsize, **kw)
    return file


def reader(url: str, **kw: Any) -> IO[bytes]:
    """Open a URL for reading."""
    return gopen(url, "rb", **kw)


def gopen_error(url: str, *args: Any, **kw: Any) -> NoReturn:
    """Raise UnsupportedScheme."""
    scheme = schemes.scheme_of(url)
    raise UnsupportedScheme(
        f'the scheme "{scheme}:" is unknown.', url=url, hint=f'gopen_schemes["{scheme}"] = function.'
    )


class _Schemes(MutableMapping[str, Opener]):
    """The function that opens URLs of each scheme.

    Assigning registers `f(url, mode, bufsize)` for all of tarmac. Deleting restores the previous registration.
    `__default__` is called for unknown schemes.
    """

    def __init__(self) -> None:
        self.registered: dict[str, Opener] = {}
        self._previous: dict[str, Any] = {}

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
        previous = schemes._registered.get(scheme)
        schemes.register_scheme(
            scheme,
            FileStore(lambda url: opener(url, "rb", BUFFER), lambda url: opener(url, "wb", BUFFER)),
        )
        self._previous.setdefault(scheme, previous)
        self.registered[scheme] = opener

    def __delitem__(self, scheme: str) -> None:
        del self.registered[scheme]
        previous = self._previous.pop(scheme)
        if previous is None:
            schemes._registered.pop(scheme, None)
        else:
            schemes._registered[scheme] = previous

    def __iter__(self) -> Iterator[str]:
        names = {*schemes.known_schemes(), "__default__"}
        return iter(sorted(name for name in names if len(name) > 1))

    def __len__(self) -> int:
        return sum(1 for _ in self)


gopen_schemes: _Schemes = _Schemes()


def pipe_cleaner(spec: str) -> str:
    """Return the URL inside a `pipe:` command, which names its cache entry; return other URLs unchanged."""
    if not spec.startswith("pipe:"):
        return spec
    command = spec.removeprefix("pipe:")
    return next((word for word in command.split() if _IN_COMMAND.fullmatch(word)), command)


class Pipe:
    """The output or input of a command as a file (`stream`), for functions registered in `gopen_schemes`.

    The arguments are those of `subprocess.Popen`. A status that is neither 0 nor in `ignore_status` raises
    CommandFailed at the end of the output, and when a written pipe is closed. Closing a pipe before the end of its
    output terminates the command without an error. Secure mode rejects commands.
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
        self.args: tuple[tuple[Any, ...], dict[str, Any]] = (args, kw)
        self.ignore_errors = ignore_errors
        self.ignore_status: list[int] = ignore_status or []
        named = dict(zip(_POPEN, args, strict=False))
        popen = {"shell": False, "stdin": None, "stderr": None} | named | kw
        options = StorageOptions(command_timeout=timeout, total_timeout=timeout)
        self.stream: ReadFile | WriteFile
        if mode[0] == "r":
            self._command: CommandSource | CommandSink = CommandSource(None, options, **popen)
            self.stream = ReadFile(self._command)
        else:
            self._command = CommandSink(None, options, **popen)
            self.stream = WriteFile(self._command)
        self._command.accepts = self._accepts  # type: ignore[method-assign]
        self.proc: subprocess.Popen[bytes] = self._command.process

    def _accepts(self, status: int) -> bool:
        return status == 0 or status in self.ignore_status or self.ignore_errors

    @property
    def timeout(self) -> float:
        """Seconds for which the command may neither print, read nor exit."""
        return self._command.storage.command_timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._command.storage = StorageOptions(command_timeout=seconds, total_timeout=seconds)

    @property
    def status(self) -> int | None:
        """The exit status of the command, once it has exited and was waited for."""
        return self.proc.returncode

    def wait_for_child(self) -> None:
        """Wait for the command to finish. Raise if it failed."""
        self._command.finish(self.timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.__exit__(kind, error, trace)


def set_options(
    obj: Any,
    timeout: float | None = None,
    ignore_errors: bool | None = None,
    ignore_status: list[int] | None = None,
    handler: Callable[[Exception], bool] | None = None,
) -> bool:
    """Set options of a `Pipe`. Return whether `obj` is one."""
    if not isinstance(obj, Pipe):
        return False
    options = {"timeout": timeout, "ignore_errors": ignore_errors, "ignore_status": ignore_status}
    for name, value in {**options, "handler": handler}.items():
        if value is not None:
            setattr(obj, name, value)
    return True


gopen_schemes.update(dict.fromkeys(_BY_CURL, gopen_curl))
