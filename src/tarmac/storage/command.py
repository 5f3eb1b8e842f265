"""`pipe:` URLs: the output of a command as a shard, or a shard as its input.

A command runs only if the caller's code passed the URL: lists, manifests and redirects cannot name one
(see urls.py), and secure mode forbids commands. A non-zero exit status is always an error.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
from typing import IO

from tarmac.display import redact
from tarmac.environment import is_secure
from tarmac.errors import CommandFailed, Stalled, UnsafeUrl, UnsupportedScheme
from tarmac.storage.store import Store
from tarmac.storage.types import ObjectInfo, Source, StorageOptions, WriteOptions

STDERR_BYTES = 500
"""The number of bytes at the end of standard error that an error message shows."""


class CommandStore(Store):
    """The output and input of shell commands."""

    is_stream = True

    def open_read(self, url: str, storage: StorageOptions, /) -> CommandSource:
        return CommandSource(url, storage)

    def open_write(self, url: str, storage: StorageOptions, write: WriteOptions, /) -> CommandSink:
        return CommandSink(url, storage)

    def stat(self, url: str, storage: StorageOptions, /) -> ObjectInfo:
        raise UnsupportedScheme("the size of a command's output is unknown before it has run.", url=url)


class _Command:
    """A running command and its standard error."""

    def __init__(self, url: str, *, stdin: int, stdout: int | None) -> None:
        if is_secure():
            raise UnsafeUrl("secure mode runs no commands.", url=url)
        self.url = url
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            # With its own session, the whole pipeline can be killed, not only the shell that started it.
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

    def finish(self, timeout: float) -> None:
        """Wait for the command to exit; raise unless its status is 0."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Stalled(f"the command did not exit within {timeout:g} seconds.", url=self.url) from None
        if status == 0:
            return
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_BYTES))
        stderr = redact(self._stderr.read().decode("utf-8", "replace").strip())
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        raise CommandFailed(
            f"the command {how}." + (f" It printed: {stderr}" if stderr else ""), url=self.url
        )

    def kill(self) -> None:
        """Kill the command and its children, unless it has been waited for."""
        if self.process.returncode is None:
            # Until it is waited for, the process ID still belongs to this group, even if the leader has exited.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def close(self) -> None:
        self._stderr.close()


class CommandSource(Source):
    """The output of a command, which must exit with status 0."""

    def __init__(self, url: str, storage: StorageOptions) -> None:
        self._timeout = storage.command_timeout
        self._command = _Command(url, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._command.process.stdout is not None
        self._stdout = self._command.process.stdout
        self._ready = select.poll()
        self._ready.register(self._stdout, select.POLLIN)

    def read(self, size: int, /) -> bytes:
        if not self._ready.poll(self._timeout * 1000):
            what = f"the command printed nothing for {self._timeout:g} seconds."
            raise Stalled(what, url=self._command.url)
        data = os.read(self._stdout.fileno(), size)
        if not data:
            self._command.finish(self._timeout)
        return data

    def close(self) -> None:
        """Kill the command if it is running; closing early is not an error."""
        self._command.kill()
        self._stdout.close()
        self._command.close()


class CommandSink:
    """The input of a command, which must exit with status 0."""

    def __init__(self, url: str, storage: StorageOptions) -> None:
        self._storage = storage
        self._command = _Command(url, stdin=subprocess.PIPE, stdout=None)
        assert self._command.process.stdin is not None
        self._stdin = self._command.process.stdin
        os.set_blocking(self._stdin.fileno(), False)
        self._ready = select.poll()
        self._ready.register(self._stdin, select.POLLOUT)

    def write(self, data: bytes, /) -> None:
        """Send bytes to the command."""
        if self._stdin.closed:
            raise CommandFailed("the command has exited.", url=self._command.url)
        view = memoryview(data)
        while view:
            if not self._ready.poll(self._storage.command_timeout * 1000):
                self.abort()
                raise Stalled("the command does not read its input.", url=self._command.url)
            try:
                view = view[os.write(self._stdin.fileno(), view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                self._finish()
                raise CommandFailed("the command stopped reading.", url=self._command.url) from None

    def commit(self) -> None:
        """Close the input of the command and check its status."""
        if self._stdin.closed:
            raise CommandFailed("the command has exited.", url=self._command.url)
        self._finish()

    def _finish(self) -> None:
        self._stdin.close()
        try:
            self._command.finish(self._storage.total_timeout)
        finally:
            self._command.close()

    def abort(self) -> None:
        """Kill the command before it sees the end of its input."""
        self._command.kill()
        self._stdin.close()
        self._command.close()
