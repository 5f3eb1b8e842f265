"""A directory as a queue of shards: other programs add shards, and each shard is read by one reader at a time.

A reader claims a shard by renaming it to `NAME._PID_`, holding a lock on the file that the operating
system releases when the reader dies. Shards that a dead reader had claimed are put back under their names.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import os
import random
import re
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tarmac.errors import NotFound, UsageError
from tarmac.limits import DEFAULT_LIMITS
from tarmac.runtime.seeds import make_seed, seed_or_default
from tarmac.runtime.worker_info import current_worker_info
from tarmac.storage.braces import expand_braces
from tarmac.storage.local import local_path
from tarmac.storage.locks import try_lock
from tarmac.stream.epochs import StreamSource
from tarmac.stream.shards.split import is_claimed

_CLAIM = re.compile(r"(?P<name>.+)\._(?P<pid>\d+)_", re.DOTALL)
_DONE = "._done_"
_MODES = ("resample", "unlink", "keep")
_SELECTIONS = ("random", "oldest")
_RETRY_SECONDS = 0.01


class DirectoryShardList(StreamSource):
    """Claim and yield the shards of a directory, one after the other, and wait for more.

    - `pattern`: the names of shards, with braces and wildcards.
    - `poll`: seconds between looks at an empty directory; None ends the epoch when it is empty.
    - `timeout`: seconds without a shard after which the epoch ends.
    - `mode`: what happens to a shard after it was read: "resample" (or None) puts it back, "unlink" deletes it,
      "keep" renames it to `NAME._done_`.
    - `select`: which shard to read next, "random" or "oldest".
    - `fate(path)`: called with the claimed file, in place of `mode`. It may move or delete the file; otherwise the
      file is put back.

    When the iterator is closed, the current shard is put back, whatever the mode, because it may not have been
    read to its end. A shard whose iterator was dropped without that keeps its path until this process takes the next
    shard of the directory, or exits. Shards have `claimed=True`: they belong to the process that claimed them, and
    splitters leave them there.
    """

    per_reader = True
    not_resumable: str | None = "the shards in a directory that other programs change have no fixed order"

    def __init__(
        self,
        path: str | os.PathLike[str],
        pattern: str = "*.{tar,tgz,tar.tgz}",
        poll: float | None = 1,
        timeout: float = 1e12,
        mode: str | None = "resample",
        select: str = "random",
        fate: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__()
        self.path: str = local_path(os.fspath(path))
        if not os.path.isdir(self.path):
            raise NotFound("not a directory.", url=self.path)
        self.mode: str = "resample" if mode is None else mode
        if self.mode not in _MODES:
            raise UsageError(f"expected {' or '.join(_MODES)}, got {mode!r}.", field="mode")
        if select not in _SELECTIONS:
            raise UsageError(f"expected {' or '.join(_SELECTIONS)}, got {select!r}.", field="select")
        if poll is not None and poll < 0:
            raise UsageError(f"expected 0 or more, got {poll}.", field="poll")
        self.pattern = pattern
        self.poll = poll
        self.timeout = timeout
        self.select = select
        self.fate = fate

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = current_worker_info()
        epoch = self._next_epoch().number
        seed = make_seed("directory", seed_or_default(None), epoch, info.rank, info.worker)
        return _ClaimedShards(self, random.Random(seed))

    def take(self, rng: random.Random, *, locks: bool) -> _Claim | None:
        """Claim the next shard, after waiting for it; return None at the end of the epoch."""
        start = time.monotonic()
        while True:
            _put_back_dropped(self.path)
            self._put_back_abandoned(locks=locks)
            claim = self._claim_one(rng, locks=locks)
            if claim is not None:
                return claim
            waited = time.monotonic() - start
            if waited >= self.timeout or (self.poll is None and self._is_empty(waited)):
                return None
            time.sleep(min(_RETRY_SECONDS if self.poll is None else self.poll, self.timeout))

    def _candidates(self) -> list[str]:
        """Return the paths of unclaimed shards, sorted."""
        directory = glob.escape(self.path)
        return sorted(
            {
                path
                for pattern in expand_braces(self.pattern, DEFAULT_LIMITS)
                for path in glob.iglob(os.path.join(directory, pattern))
                if not path.endswith(_DONE) and not _CLAIM.fullmatch(path) and os.path.isfile(path)
            }
        )

    def _is_empty(self, waited: float) -> bool:
        """Return whether no shard is left; another reader may hold one briefly while it looks for dead readers."""
        return waited > 100 * _RETRY_SECONDS or not self._candidates()

    def _claim_one(self, rng: random.Random, *, locks: bool) -> _Claim | None:
        candidates = self._candidates()
        if self.select == "oldest":
            candidates.sort(key=_modified)
        else:
            rng.shuffle(candidates)
        return next(filter(None, (_claim(path, locks=locks) for path in candidates)), None)

    def finish(self, claim: _Claim) -> None:
        """Do with a shard that was read what `fate` or `mode` say."""
        if self.fate is not None:
            self.fate(claim.path)
            claim.put_back()
        elif self.mode == "unlink":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(claim.path)
        elif self.mode == "keep":
            with contextlib.suppress(FileNotFoundError):
                os.replace(claim.path, claim.name + _DONE)
        else:
            claim.put_back()

    def _put_back_abandoned(self, *, locks: bool) -> None:
        """Put back the shards of readers that have died."""
        for path in glob.iglob(os.path.join(glob.escape(self.path), "*._*_")):
            match = _CLAIM.fullmatch(path)
            if match is None:
                continue
            if not locks:
                if not _is_running(int(match["pid"])):
                    _move_back(path, match["name"])
                continue
            with contextlib.suppress(OSError), open(_open(path), "rb") as file:
                if try_lock(file.fileno()):
                    _move_back(path, match["name"])


class _ClaimedShards(Iterator[dict[str, Any]]):
    """The shards of one epoch.

    Not a generator: Python closes one that is dropped, and the path in the hands of the program would be gone.
    """

    def __init__(self, shards: DirectoryShardList, rng: random.Random) -> None:
        self._shards, self._rng = shards, rng
        self._locks: bool | None = None
        self._claim: _Claim | None = None
        self._ended = False

    def __next__(self) -> dict[str, Any]:
        if self._locks is None:
            self._locks = _locks_work(self._shards.path)
        claim, self._claim = self._claim, None
        if claim is not None:
            with contextlib.closing(claim):
                self._shards.finish(claim)
        claim = None if self._ended else self._shards.take(self._rng, locks=self._locks)
        if claim is None:
            self._ended = True
            raise StopIteration
        self._claim = claim
        claim.owner = weakref.ref(self)
        return {"url": claim.path, "claimed": True}

    def close(self) -> None:
        """Put back the current shard, and end the epoch."""
        claim, self._claim, self._ended = self._claim, None, True
        if claim is not None:
            claim.put_back()


@dataclass(slots=True)
class _Claim:
    """A shard that belongs to this process until `close`."""

    name: str
    path: str
    fd: int
    owner: Callable[[], _ClaimedShards | None] = lambda: None
    process: int = field(default_factory=os.getpid)

    def put_back(self) -> None:
        """Restore the name. If a newer shard has taken it, the next reader that looks for dead readers does it."""
        try:
            _move_back(self.path, self.name)
        finally:
            self.close()

    def close(self) -> None:
        """Release the lock."""
        _held.pop(self.path, None)
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


_held: dict[str, _Claim] = {}
"""The shards that this process has claimed, by path. A forked process inherits claims that are not its own."""


def put_back(shard: object) -> None:
    """Put back a claimed shard that was not read to its end; do nothing with any other."""
    claim = _held.get(shard["url"]) if is_claimed(shard) else None  # type: ignore[index]
    if claim is not None and claim.process == os.getpid():
        claim.put_back()


def _put_back_dropped(directory: str) -> None:
    """Put back the shards of a directory whose iterator was dropped."""
    for claim in list(_held.values()):
        own = claim.process == os.getpid() and claim.path.startswith(os.path.join(directory, ""))
        if own and claim.owner() is None:
            claim.put_back()


@atexit.register
def _put_back_all() -> None:
    for claim in list(_held.values()):
        if claim.process == os.getpid():
            claim.put_back()


def _claim(path: str, *, locks: bool) -> _Claim | None:
    """Claim a shard; return None if another reader was faster."""
    try:
        fd = _open(path)
    except FileNotFoundError:
        return None
    claim = _Claim(path, _claimed_name(path), fd)
    try:
        # Lock before renaming, so that no other reader sees a claim without a lock.
        if not locks or try_lock(fd):
            os.rename(path, claim.path)
            if os.path.samestat(os.fstat(fd), os.stat(claim.path)):
                _held[claim.path] = claim
                return claim
            claim.put_back()  # a new shard has taken the name since the file was opened
    except FileNotFoundError:
        pass  # another reader was faster
    except BaseException:
        claim.close()
        raise
    claim.close()
    return None


def _claimed_name(path: str) -> str:
    """Return the name of a claim; leading zeros set it apart if this process holds an older shard of the name."""
    process = str(os.getpid())
    while os.path.lexists(claimed := f"{path}._{process}_"):
        process = f"0{process}"
    return claimed


def _open(path: str) -> int:
    """Open a file for locking, if possible for writing: network file systems lock only such files."""
    try:
        return os.open(path, os.O_RDWR)
    except PermissionError:
        return os.open(path, os.O_RDONLY)


def _move_back(path: str, name: str) -> None:
    """Rename, but not over a shard that has taken the name in the meantime."""
    with contextlib.suppress(FileNotFoundError):
        if not os.path.lexists(name):
            os.rename(path, name)


def _locks_work(directory: str) -> bool:
    """Return whether files in this directory can be locked; otherwise the process number alone identifies claims."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".tarmac-") as probe:
            return try_lock(probe.fileno())
    except OSError:
        return False


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return float("inf")
