"""Run a command on a sample: its fields as files in a directory of its own, before and after.

The sample is `sample.<field>` for each field, and `sample.__key__`. What the command leaves under such names
is the new sample; where it leaves none, the sample is dropped. With `multi`, each number of the files
`sample-<number>.<field>` is a sample, and what came in is not one of them.
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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import xxhash

from tarmac import environment
from tarmac.display import identity
from tarmac.errors import (
    DiskFull,
    MissingField,
    SampleError,
    TimedOut,
    TransformFailed,
    UrlError,
    WriteError,
    redact,
)
from tarmac.limits import DEFAULT_LIMITS
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import check_field, check_key, is_reserved

__all__ = ["Command", "Running"]

SAID = 500
"""How much of what a command said is told when it fails."""
LONGEST_END = 10.0
"""Seconds to wait for threads whose commands were ended."""
KEY = "__key__"
_MADE = re.compile(r"sample(?:-(\d+))?\.(.+)", re.DOTALL)


class Running:
    """The commands that run now, so that they can all be ended at once; used from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._commands: set[subprocess.Popen[bytes]] = set()
        self._samples = 0
        self.stopped = False

    @contextlib.contextmanager
    def sample(self) -> Iterator[None]:
        """Work on a sample: stopping waits until what was made for it is removed."""
        with self._changed:
            if self.stopped:
                raise TransformFailed("the job was stopped.")
            self._samples += 1
        try:
            yield
        finally:
            with self._changed:
                self._samples -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def start(self, command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command; whatever it started has ended when this ends."""
        with self._changed:
            if self.stopped:
                raise TransformFailed("the job was stopped.")
            # A session of its own lets us end all that it started, not just the shell in front of it.
            process = subprocess.Popen(command, start_new_session=True, **options)
            self._commands.add(process)
        try:
            yield process
        finally:
            with self._changed:
                self._commands.discard(process)
                _end(process)

    def stop(self) -> None:
        """End all commands, let no other begin, and wait until nothing is left of them."""
        with self._changed:
            self.stopped = True
            for process in self._commands:
                _kill_group(process)
            self._changed.wait_for(lambda: not self._samples, LONGEST_END)


def _end(process: subprocess.Popen[bytes]) -> None:
    _kill_group(process)
    process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # not waited for, so the number still belongs to this group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _ended(process: subprocess.Popen[bytes], seconds: float | None) -> bool:
    """Whether a command ends in time. It is not waited for yet, so that its group can still be ended."""
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
    """What is run for each sample."""

    text: str = ""
    """A command for the shell, ..."""
    script: str = ""
    """... or a file for the interpreter."""
    interpreter: str = "bash"
    multi: bool = False
    timeout: float | None = None
    log_field: str = ""
    """The field to keep what the command says in; without one it goes to standard error."""
    keep_dir: str = ""
    """Where the files of samples that fail are kept."""

    def __post_init__(self) -> None:
        if bool(self.text) == bool(self.script):
            raise UrlError("either a command or a script is run for each sample.")
        if self.script and not os.path.isfile(self.script):
            raise UrlError("there is no such script.", url=self.script)
        if self.log_field:
            check_field(self.log_field, "")
        _ = self.arguments

    @property
    def arguments(self) -> list[str]:
        """What to start."""
        if self.text:
            return [shutil.which("bash") or "sh", "-c", self.text]
        interpreter = shlex.split(self.interpreter)
        if not interpreter or shutil.which(interpreter[0]) is None:
            raise UrlError(f"the interpreter {self.interpreter!r} is not there.")
        return [*interpreter, os.path.abspath(self.script)]

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger."""
        command = identity(f"pipe:{self.text}").removeprefix("pipe:")  # whose arguments may hold a password
        found: dict[str, Any] = {"command": command} if self.text else {"interpreter": self.interpreter}
        if self.script:
            with open(self.script, "rb") as file:
                found["script"] = f"{self.script} {xxhash.xxh3_64_hexdigest(file.read())}"
        more = {"multi": self.multi, "log_field": self.log_field}
        return found | {name: value for name, value in more.items() if value}

    def __call__(self, sample: Sample, running: Running | None = None) -> list[Sample]:
        """Run the command on a sample and return what it made of it: one sample, none, or many."""
        running = Running() if running is None else running
        key, url = sample[KEY], sample.get("__url__")
        with running.sample(), _room() as (work, log):
            try:
                _unpack(sample, work)
                self._run(sample, work, log, running)
                made = self._pack(sample, work)
            except SampleError as error:
                if self.keep_dir and not running.stopped:
                    place = _keep(work, log, self.keep_dir, key, url)
                    error.hint = f"its files are in {place}."
                raise error.at(url=url, key=key) from None
            if self.log_field:
                said = _said(log)
                return [one | {self.log_field: said} for one in made]
            _pass_on(log)
            return made

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
                in_time = _ended(process, self.timeout)
        except OSError as error:
            raise TransformFailed(f"the command cannot be started: {error.strerror}.") from None
        if not in_time:
            raise TimedOut(f"the command did not end within {self.timeout:g} seconds.{_told(log)}")
        status = process.returncode
        if status:
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            raise TransformFailed(f"the command {how}.{_told(log)}")

    def _pack(self, sample: Sample, work: str) -> list[Sample]:
        """The samples that the files of a directory are."""
        groups: dict[str, Sample] = {}
        for name in sorted(os.listdir(work)):
            match = _MADE.fullmatch(name)
            if match is None:
                continue
            number, field = match[1], match[2]
            if number is None and self.multi:
                continue  # what came in
            if number is not None and not self.multi:
                raise TransformFailed(f"the command made {name!r}, a sample of several: that needs --multi.")
            groups.setdefault(number or "", {})[field] = _content(os.path.join(work, name), name)
        made = []
        for number in sorted(groups, key=lambda text: (int(text or 0), text)):
            fields = groups[number]
            key = sample[KEY] if not number else f"{sample[KEY]}/{number}"
            told = fields.pop(KEY, None)
            if told is not None:
                key = told.removesuffix(b"\n").decode("utf-8", "surrogateescape")
            if fields:
                made.append({KEY: key, "__url__": sample.get("__url__")} | _checked(fields, key))
            elif number:
                raise MissingField("the command made a key and no field for it.", key=key)
        return made


@contextlib.contextmanager
def _room() -> Iterator[tuple[str, IO[bytes]]]:
    """A directory for a sample and a file for what the command says; both are gone afterwards."""
    with contextlib.ExitStack() as stack:
        try:
            made = tempfile.TemporaryDirectory(prefix="tarmac-map-", ignore_cleanup_errors=True)
            work = stack.enter_context(made)
            log = stack.enter_context(tempfile.TemporaryFile())
        except OSError as error:
            raise _no_room(error) from None
        yield work, log


def _no_room(error: OSError) -> WriteError:
    """That which is no fault of a sample, so that none is skipped for it."""
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else WriteError
    what = f"the files for the command cannot be written: {error.strerror}."
    return kind(what, url=tempfile.gettempdir(), hint="TMPDIR, a directory with room.")


def _checked(fields: Sample, key: str) -> Sample:
    check_key(key)
    for field in fields:
        check_field(field, key)
    return fields


def _unpack(sample: Sample, work: str) -> None:
    fields = {name: value for name, value in sample.items() if not is_reserved(name)}
    fields[KEY] = sample[KEY].encode("utf-8", "surrogateescape")
    for field, value in fields.items():
        if "/" in field or "\0" in field:
            raise TransformFailed(f"the field {field!r} cannot be a file.")
        try:
            with open(os.path.join(work, f"sample.{field}"), "xb") as file:
                file.write(value)
        except OSError as error:
            if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
                raise _no_room(error) from None
            raise TransformFailed(f"the field {field[:80]!r} cannot be a file: {error.strerror}.") from None


def _content(path: str, name: str) -> bytes:
    """Read what the command left; nothing but plain files, lest a link in some archive leads elsewhere."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if os.path.islink(path):
            raise TransformFailed(f"the command left {name!r}, which is no plain file.") from None
        raise TransformFailed(f"{name!r} cannot be read: {error.strerror}.") from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise TransformFailed(f"the command left {name!r}, which is no plain file.")
    with open(fd, "rb") as file:
        if found.st_size > DEFAULT_LIMITS.member_bytes:
            raise TransformFailed(f"{name!r} is {found.st_size} bytes, more than Limits.member_bytes.")
        return file.read()


def _said(log: IO[bytes]) -> bytes:
    log.seek(0)
    return log.read()


def _told(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - SAID))
    said = redact(log.read().decode("utf-8", "replace").strip())
    return f" It said: {said}" if said else ""


def _pass_on(log: IO[bytes]) -> None:
    """What a command said goes to standard error in one piece, so that several do not mix."""
    said = _said(log)
    with contextlib.suppress(OSError):  # nobody listens
        while said:
            said = said[os.write(2, said) :]


def _keep(work: str, log: IO[bytes], keep_dir: str, key: str, url: str | None) -> str:
    """Copy the files of a sample that failed, and what the command said, to where they are kept."""
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in key)[:100]
    number = xxhash.xxh3_64_hexdigest(f"{url} {key}".encode("utf-8", "surrogateescape"))[:8]
    base = place = os.path.join(keep_dir, f"{plain.lstrip('.')}-{number}")
    try:
        os.makedirs(keep_dir, exist_ok=True)
        again = 0
        while os.path.lexists(place):
            again += 1
            place = f"{base}-{again}"
        shutil.copytree(work, place, symlinks=True)
        with open(os.path.join(place, "output.txt"), "wb") as file:
            file.write(_said(log))
    except (OSError, shutil.Error) as error:
        raise UrlError(f"--keep-dir: the files of a sample cannot be kept ({error}).", url=place) from None
    return place
