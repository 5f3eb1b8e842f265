"""Run a command on a sample, whose fields are files in a temporary directory.

The files are `sample.<field>` for each field, and `sample.__key__`. The files that the command leaves under such
names are the new sample; if there are none, the sample is dropped. With `multi`, the files
`sample-<number>.<field>` of each number are a sample, and the input is not one of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import xxhash

from tarmac import environment
from tarmac.display import identity, redact
from tarmac.errors import DiskFull, SampleError, TimedOut, TransformFailed, UsageError, WriteError
from tarmac.limits import DEFAULT_LIMITS
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import Splitter, check_field, check_key, first_dot, is_reserved

SHOWN = 500
"""Bytes of a command's output that an error message shows."""
KEY = "__key__"
_FILE = re.compile(r"sample(?:-(\d+))?\.(.+)", re.DOTALL)


class Running:
    """The running commands, so that they can all be killed; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    @contextlib.contextmanager
    def start(self, command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command; all processes that it started are killed at the end."""
        with self._lock:
            if self.stopped:
                raise TransformFailed("the job was stopped.")
            # In a session of its own, all its processes can be killed, not only the shell.
            process = subprocess.Popen(command, start_new_session=True, **options)
            self._commands.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._commands.discard(process)
                _kill_group(process)
                process.wait()

    def stop(self) -> None:
        """Kill all commands, and start no more."""
        with self._lock:
            self.stopped = True
            for process in self._commands:
                _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # not reaped, so its ID still belongs to this group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _exits(process: subprocess.Popen[bytes], seconds: float | None) -> bool:
    """Return whether a command exits in time. It is not reaped yet, so that its group can still be killed."""
    if not hasattr(os, "pidfd_open"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode is not None
    fd = os.pidfd_open(process.pid)
    try:
        ready = select.poll()
        ready.register(fd, select.POLLIN)
        return bool(ready.poll(None if seconds is None else seconds * 1000))
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Command:
    """A command that runs for each sample; `map` documents the arguments."""

    command: str | Sequence[str] = ""
    script: str = ""
    interpreter: str = "bash"
    multi: bool = False
    timeout: float | None = None
    log_field: str = ""
    keep_dir: str = ""
    split_name: Splitter = first_dot

    def __post_init__(self) -> None:
        if not self.command and not self.script:
            raise UsageError("expected a command, got nothing.", field="command")
        if self.script and not os.path.isfile(self.script):
            raise UsageError("no such file.", field="script", url=self.script)
        if self.timeout is not None and not self.timeout > 0:
            raise UsageError(f"expected a positive number, got {self.timeout}.", field="timeout")
        if self.log_field:
            check_field(self.log_field, "")
        _ = self.arguments

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of the process."""
        if isinstance(self.command, str) and self.command:
            return [shutil.which("bash") or "sh", "-c", self.command]
        if self.command:
            return list(self.command)
        interpreter = shlex.split(self.interpreter)
        if not interpreter or shutil.which(interpreter[0]) is None:
            raise UsageError(f"no such program: {self.interpreter!r}.", field="interpreter")
        return [*interpreter, os.path.abspath(self.script)]

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for a ledger."""
        if self.script:
            with open(self.script, "rb") as file:
                script = f"{self.script} {xxhash.xxh3_64_hexdigest(file.read())}"
            options: dict[str, Any] = {"interpreter": self.interpreter, "script": script}
        else:
            text = self.command if isinstance(self.command, str) else shlex.join(self.command)
            options = {"command": identity(f"pipe:{text}").removeprefix("pipe:")}  # without passwords
        more = {"multi": self.multi, "log_field": self.log_field}
        return options | {name: value for name, value in more.items() if value}

    def __call__(self, sample: Sample, running: Running | None = None) -> list[Sample]:
        """Run the command on a sample and return the new samples."""
        running = Running() if running is None else running
        key, url = sample[KEY], sample.get("__url__")
        with _work_directory() as (work, log):
            try:
                _unpack(sample, work)
                self._run(sample, work, log, running)
                samples = self._pack(sample, work)
            except SampleError as error:
                if self.keep_dir and not running.stopped:
                    kept = _keep(work, log, self.keep_dir, key, url)
                    error.hint = f"see its files in {kept}."
                raise error.at(url=url, key=key) from None
            log.seek(0)
            output = log.read()
        if self.log_field:
            return [one | {self.log_field: output} for one in samples]
        _forward(output)
        return samples

    def _run(self, sample: Sample, work: str, log: IO[bytes], running: Running) -> None:
        names = {"TARMAC_KEY": sample[KEY], "TARMAC_URL": str(sample.get("__url__") or "")}
        try:
            with running.start(
                self.arguments,
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment.environ_copy() | names,
            ) as process:
                in_time = _exits(process, self.timeout)
        except OSError as error:
            raise TransformFailed(f"cannot start the command: {error.strerror}.") from None
        if not in_time:
            raise TimedOut(f"the command exceeded `timeout`, {self.timeout:g} seconds.{_tail(log)}")
        status = process.returncode
        if status:
            how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
            raise TransformFailed(f"the command {how}.{_tail(log)}")

    def _pack(self, sample: Sample, work: str) -> list[Sample]:
        """Return the samples that the files of a directory form."""
        groups: dict[str, Sample] = {}
        for name in sorted(os.listdir(work)):
            match = _FILE.fullmatch(name)
            if match is None:
                continue
            number, field = match[1], match[2]
            if number is None and self.multi:
                continue  # the input
            if number is not None and not self.multi:
                raise TransformFailed(
                    f"the command wrote {name!r}, one of several samples: `multi` allows it."
                )
            groups.setdefault(number or "", {})[field] = _content(os.path.join(work, name), name)
        samples = []
        for number in sorted(groups, key=lambda text: (int(text or 0), text)):
            fields = groups[number]
            key = sample[KEY] if not number else f"{sample[KEY]}/{number}"
            new_key = fields.pop(KEY, None)
            if new_key is not None:
                key = new_key.removesuffix(b"\n").decode("utf-8", "surrogateescape")
            if fields:
                check_key(key, self.split_name)
                for field in fields:
                    check_field(field, key, self.split_name)
                samples.append({KEY: key, "__url__": sample.get("__url__")} | fields)
            elif number:
                raise TransformFailed("the command wrote a key without fields.", key=key)
        return samples


@contextlib.contextmanager
def _work_directory() -> Iterator[tuple[str, IO[bytes]]]:
    """Create a directory for a sample and a file for the output of the command, and remove them at the end."""
    with contextlib.ExitStack() as stack:
        try:
            directory = tempfile.TemporaryDirectory(prefix="tarmac-map-", ignore_cleanup_errors=True)
            work = stack.enter_context(directory)
            log = stack.enter_context(tempfile.TemporaryFile())
        except OSError as error:
            raise _write_error(error) from None
        yield work, log


def _write_error(error: OSError) -> WriteError:
    """Return an error that does not blame the sample, so that the sample is not skipped."""
    cls = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else WriteError
    what = f"cannot write the files for the command: {error.strerror}."
    return cls(what, url=tempfile.gettempdir(), hint="set TMPDIR to a directory with free space.")


def _unpack(sample: Sample, work: str) -> None:
    fields = {name: value for name, value in sample.items() if not is_reserved(name)}
    fields[KEY] = sample[KEY].encode("utf-8", "surrogateescape")
    for field, value in fields.items():
        if "/" in field or "\0" in field:
            raise TransformFailed(f"the field {field!r} is not a valid file name.")
        try:
            with open(os.path.join(work, f"sample.{field}"), "xb") as file:
                file.write(value)
        except OSError as error:
            if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
                raise _write_error(error) from None
            raise TransformFailed(
                f"the field {field[:80]!r} is not a valid file name: {error.strerror}."
            ) from None


def _content(path: str, name: str) -> bytes:
    """Read a file that the command left; only regular files, since a link could lead elsewhere."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if os.path.islink(path):
            raise TransformFailed(f"{name!r} is not a regular file.") from None
        raise TransformFailed(f"cannot read {name!r}: {error.strerror}.") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise TransformFailed(f"{name!r} is not a regular file.")
    with open(fd, "rb") as file:
        if status.st_size > DEFAULT_LIMITS.member_bytes:
            raise TransformFailed(f"{name!r} has {status.st_size} bytes, more than Limits.member_bytes.")
        return file.read()


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - SHOWN))
    output = redact(log.read().decode("utf-8", "replace").strip())
    return f" Its output: {output}" if output else ""


def _forward(output: bytes) -> None:
    """Write the output of a command to standard error at once, so that commands do not mix."""
    with contextlib.suppress(OSError):  # standard error is closed
        while output:
            output = output[os.write(2, output) :]


def _keep(work: str, log: IO[bytes], keep_dir: str, key: str, url: str | None) -> str:
    """Copy the files of a failed sample and the output of the command, and return their directory."""
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in key)[:100]
    number = xxhash.xxh3_64_hexdigest(f"{url} {key}".encode("utf-8", "surrogateescape"))[:8]
    base = path = os.path.join(keep_dir, f"{plain.lstrip('.')}-{number}")
    try:
        os.makedirs(keep_dir, exist_ok=True)
        repeat = 0
        while os.path.lexists(path):
            repeat += 1
            path = f"{base}-{repeat}"
        shutil.copytree(work, path, symlinks=True)
        log.seek(0)
        with open(os.path.join(path, "output.txt"), "wb") as file:
            shutil.copyfileobj(log, file)
    except (OSError, shutil.Error) as error:
        raise UsageError(f"cannot keep the files of a sample: {error}.", field="keep_dir", url=path) from None
    return path
