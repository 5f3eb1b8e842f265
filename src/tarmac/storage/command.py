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
    return CommandSink(url, options)


def stat(url: str, _options: StorageOptions) -> ObjectInfo:
    """Commands have no size."""
    raise UnsupportedScheme("the output of a command has no size before it ran.", url=url)


def read_range(
    url: str, _start: int, _stop: int, _options: StorageOptions, _version: str | None = None
) -> bytes:
    """Commands have no random access."""
    raise UnsupportedScheme("the output of a command can only be read from front to back.", url=url)


class _Command:
    """A running command, what it says on standard error, and its end."""

    def __init__(self, url: str, *, stdin: int, stdout: int | None) -> None:
        if is_secure():
            raise UnsafeUrl("secure mode runs no commands.", url=url)
        self.url = url
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            # A session of its own lets us end the whole pipeline, not just the shell in front of it.
            self.process = subprocess.Popen(  # noqa: S602
                url[len("pipe:") :],
                shell=True,
                bufsize=0,
                stdin=stdin,
                stdout=stdout,
                stderr=self._stderr,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._stderr.close()
            raise CommandFailed(f"the command cannot be started: {error}.", url=url) from None

    def finish(self, patience: float) -> None:
        """Wait for the end and raise unless the status is 0."""
        try:
            status = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Stalled(f"the command did not end within {patience:g} seconds.", url=self.url) from None
        if status == 0:
            return
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_SHOWN))
        said = redact(self._stderr.read().decode("utf-8", "replace").strip())
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        raise CommandFailed(f"the command {how}." + (f" It said: {said}" if said else ""), url=self.url)

    def kill(self) -> None:
        """End the command and all it started. A command already waited for is left alone."""
        if self.process.returncode is None:
            # Not waited for, so the number still belongs to this group, even if its leader has ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def close(self) -> None:
        self._stderr.close()


class CommandSource(Source):
    """What a command prints, up to its successful end."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._idle = options.command_idle
        self._command = _Command(url, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._command.process.stdout is not None
        self._stdout = self._command.process.stdout
        self._ready = select.poll()
        self._ready.register(self._stdout, select.POLLIN)

    def read(self, size: int, /) -> bytes:
        if not self._ready.poll(self._idle * 1000):
            raise Stalled(f"the command printed nothing for {self._idle:g} seconds.", url=self._command.url)
        data = os.read(self._stdout.fileno(), size)
        if not data:
            self._command.finish(self._idle)
        return data

    def close(self) -> None:
        """End the command; closing early is no error of the command."""
        self._command.kill()
        self._stdout.close()
        self._command.close()


class CommandSink:
    """Feed a command; it succeeds only if the command does."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._options = options
        self._command = _Command(url, stdin=subprocess.PIPE, stdout=None)
        assert self._command.process.stdin is not None
        self._stdin = self._command.process.stdin
        os.set_blocking(self._stdin.fileno(), False)
        self._ready = select.poll()
        self._ready.register(self._stdin, select.POLLOUT)

    def write(self, data: bytes, /) -> None:
        """Send bytes to the command."""
        if self._stdin.closed:
            raise CommandFailed("the command has ended.", url=self._command.url)
        view = memoryview(data)
        while view:
            if not self._ready.poll(self._options.command_idle * 1000):
                self.abort()
                raise Stalled("the command does not read its input.", url=self._command.url)
            try:
                view = view[os.write(self._stdin.fileno(), view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                self._end()
                raise CommandFailed("the command stopped reading.", url=self._command.url) from None

    def commit(self) -> None:
        """Close the command's input and check its status."""
        if self._stdin.closed:
            raise CommandFailed("the command has ended.", url=self._command.url)
        self._end()

    def _end(self) -> None:
        self._stdin.close()
        try:
            self._command.finish(self._options.total)
        finally:
            self._command.close()

    def abort(self) -> None:
        """Kill the command before it sees an end of input."""
        self._command.kill()
        self._stdin.close()
        self._command.close()
