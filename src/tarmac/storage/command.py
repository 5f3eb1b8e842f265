"""`pipe:` URLs: the output of a command as a shard, or a shard as its input.

A command runs only because the caller's own code passed the URL: lists, manifests and redirects never
get here (see urls.py), and secure mode refuses it altogether. The exit status always counts.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
from typing import IO

from tarmac.errors import CommandFailed, Stalled, UnsafeUrl, UnsupportedScheme, redact
from tarmac.storage.security import is_secure
from tarmac.storage.types import ObjectInfo, Source, StorageOptions, WriteOptions

__all__ = ["CommandSink", "CommandSource", "open_read", "open_write", "read_range", "stat"]

STDERR_SHOWN = 500


def open_read(url: str, options: StorageOptions) -> CommandSource:
    """Start the command and read what it prints."""
    return CommandSource(url, options)


def open_write(url: str, options: StorageOptions, _write: WriteOptions) -> CommandSink:
    """Start the command and feed it."""
    return CommandSink(url)


def stat(url: str, _options: StorageOptions) -> ObjectInfo:
    """Commands have no size."""
    raise UnsupportedScheme("the output of a command has no size before it ran.", url=url)


def read_range(url: str, _start: int, _stop: int, _options: StorageOptions) -> bytes:
    """Commands have no random access."""
    raise UnsupportedScheme("the output of a command can only be read from front to back.", url=url)


def _start(url: str, stderr: IO[bytes], *, stdin: int, stdout: int | None) -> subprocess.Popen[bytes]:
    if is_secure():
        raise UnsafeUrl("secure mode runs no commands.", url=url)
    command = url.removeprefix("pipe:")
    # A session of its own lets us end the whole pipeline, not just the shell in front of it.
    return subprocess.Popen(  # noqa: S602
        command, shell=True, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )


def _finish(process: subprocess.Popen[bytes], stderr: IO[bytes], url: str) -> None:
    """Wait for the end and raise unless the status is 0."""
    status = process.wait()
    if status == 0:
        return
    size = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, size - STDERR_SHOWN))
    said = redact(stderr.read().decode("utf-8", "replace").strip())
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    raise CommandFailed(f"the command {how}." + (f" It said: {said}" if said else ""), url=url)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class CommandSource(Source):
    """What a command prints, up to its successful end."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._url = url
        self._idle = options.command_idle
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = _start(url, self._stderr, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        except BaseException:
            self._stderr.close()
            raise
        assert self._process.stdout is not None
        self._stdout = self._process.stdout

    def read(self, size: int, /) -> bytes:
        if not select.select([self._stdout], [], [], self._idle)[0]:
            raise Stalled(f"the command printed nothing for {self._idle:g} seconds.", url=self._url)
        data = os.read(self._stdout.fileno(), size)
        if not data:
            _finish(self._process, self._stderr, self._url)
        return data

    def close(self) -> None:
        """End the command; closing early is no error of the command."""
        if self._process.poll() is None:
            _kill(self._process)
        self._stdout.close()
        self._stderr.close()


class CommandSink:
    """Feed a command; it succeeds only if the command does."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = _start(url, self._stderr, stdin=subprocess.PIPE, stdout=None)
        except BaseException:
            self._stderr.close()
            raise
        assert self._process.stdin is not None
        self._stdin = self._process.stdin

    def write(self, data: bytes, /) -> None:
        """Send bytes to the command."""
        try:
            self._stdin.write(data)
        except BrokenPipeError:
            self._end()
            raise CommandFailed("the command stopped reading.", url=self._url) from None

    def commit(self) -> None:
        """Close the command's input and check its status."""
        try:
            self._stdin.close()
        except BrokenPipeError:
            self._end()
            raise CommandFailed("the command stopped reading.", url=self._url) from None
        self._end()

    def _end(self) -> None:
        try:
            _finish(self._process, self._stderr, self._url)
        finally:
            self._release()

    def abort(self) -> None:
        """Kill the command before it sees an end of input."""
        _kill(self._process)
        self._release()

    def _release(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._stderr.close()
