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
from typing import IO, Any

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


class Command:
    """A running command, the pipe to or from it, and its standard error.

    `popen` replaces arguments of `subprocess.Popen`; by default the shell runs the command of the `pipe:` URL.
    """

    def __init__(self, url: str | None, storage: StorageOptions, *, writing: bool, **popen: Any) -> None:
        if is_secure():
            raise UnsafeUrl("secure mode does not run commands.", url=url)
        self.storage = storage
        self._url = url
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        args = (url or "")[len("pipe:") :]
        usual = dict[str, Any](args=args, shell=True, stdin=subprocess.DEVNULL, stderr=self._stderr)  # noqa: S604
        # With its own session, the whole pipeline can be killed, not only the shell that started it.
        fixed = {"bufsize": 0, "start_new_session": True, "stdin" if writing else "stdout": subprocess.PIPE}
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(**(usual | popen | fixed))
        except (OSError, ValueError) as error:
            self._stderr.close()
            raise CommandFailed(f"the command cannot be started: {error}.", url=url) from None
        pipe = self.process.stdin if writing else self.process.stdout
        assert pipe is not None
        self._pipe = pipe
        self._ready = select.poll()
        self._ready.register(pipe, select.POLLOUT if writing else select.POLLIN)

    def _is_ready(self) -> bool:
        """Wait until the pipe is ready; return False if that takes longer than the timeout."""
        return bool(self._ready.poll(self.storage.command_timeout * 1000))

    def accepts(self, status: int) -> bool:
        """Return whether the command may exit with this status."""
        return status == 0

    def finish(self, timeout: float) -> None:
        """Wait for the command to exit; raise unless its status is accepted."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.close()
            raise Stalled(f"the command did not exit within {timeout:g} seconds.", url=self._url) from None
        if self.accepts(status):
            return
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_BYTES))
        stderr = redact(self._stderr.read().decode("utf-8", "replace").strip())
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        raise CommandFailed(
            f"the command {how}." + (f" It printed: {stderr}" if stderr else ""), url=self._url
        )

    def close(self) -> None:
        """Kill the command and its children, unless it has been waited for; closing early is not an error."""
        if self.process.returncode is None:
            # Until it is waited for, the process ID still belongs to this group, even if the leader has exited.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._pipe.close()
        self._stderr.close()


class CommandSource(Command, Source):
    """The output of a command, which must exit with status 0."""

    def __init__(self, url: str | None, storage: StorageOptions, **popen: Any) -> None:
        super().__init__(url, storage, writing=False, **popen)

    def read(self, size: int, /) -> bytes:
        timeout = self.storage.command_timeout
        if not self._is_ready():
            raise Stalled(f"the command printed nothing for {timeout:g} seconds.", url=self._url)
        data = os.read(self._pipe.fileno(), size)
        if not data:
            self.finish(timeout)
        return data


class CommandSink(Command):
    """The input of a command, which must exit with status 0."""

    def __init__(self, url: str | None, storage: StorageOptions, **popen: Any) -> None:
        super().__init__(url, storage, writing=True, **popen)
        os.set_blocking(self._pipe.fileno(), False)

    def write(self, data: bytes, /) -> None:
        if self._pipe.closed:
            raise CommandFailed("the command has exited.", url=self._url)
        view = memoryview(data)
        while view:
            if not self._is_ready():
                self.abort()
                raise Stalled("the command does not read its input.", url=self._url)
            try:
                view = view[os.write(self._pipe.fileno(), view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                self.commit()
                raise CommandFailed("the command stopped reading.", url=self._url) from None

    def commit(self) -> None:
        """Close the input of the command and check its status."""
        if self._pipe.closed:
            raise CommandFailed("the command has exited.", url=self._url)
        self._pipe.close()
        try:
            self.finish(self.storage.total_timeout)
        finally:
            self.close()

    def abort(self) -> None:
        """Kill the command before it sees the end of its input."""
        self.close()
