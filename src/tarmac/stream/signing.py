"""Tell what this user has written from what somebody else has: keyed digests, with a key of one's own.

Pickles run code, so a file of pickles is read only if every one carries a digest that nobody can make without
the key. The key is made on first use and lies in `TARMAC_HOME`, readable by its owner only.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from tarmac import environment
from tarmac.errors import UnsafeCodec, WriteError

__all__ = ["check_owner", "Sealer"]

KEY_BYTES = 32
SEAL_BYTES = 16
_FOREIGN = "it was written by somebody else, or changed since; loading it could run any code."
_me = getattr(os, "geteuid", lambda: 0)  # where there are no such users, files belong to 0
_AGAIN = "remove it, and it is made again; TARMAC_HOME holds the key."


class Sealer:
    """Seal values for one file, and open what was sealed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._key = _own_key()

    def seal(self, data: bytes, *place: object) -> bytes:
        """Return the value with its digest before it; `place` is where it belongs, and nowhere else."""
        return self._digest(data, place) + data

    def open(self, sealed: object, *place: object) -> bytes:
        """Return the value, or refuse one that was not sealed for this place."""
        if isinstance(sealed, bytes | memoryview):
            data = bytes(sealed[SEAL_BYTES:])
            if hmac.compare_digest(bytes(sealed[:SEAL_BYTES]), self._digest(data, place)):
                return data
        raise self.foreign()

    def foreign(self) -> UnsafeCodec:
        """The error for a cache that cannot be trusted."""
        return UnsafeCodec(_FOREIGN, url=self._url, hint=_AGAIN)

    def _digest(self, data: bytes, place: tuple[object, ...]) -> bytes:
        digest = hashlib.blake2b(repr(place).encode() + b"\0", key=self._key, digest_size=SEAL_BYTES)
        digest.update(data)
        return digest.digest()


def check_owner(path: str) -> bool:
    """Say whether there is a file or directory; refuse what others have put there or may write to."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(found.st_mode):
        _check(found, path, mode=False)
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return False
    _check(found, path, mode=True)
    return True


def _check(found: os.stat_result, path: str, *, mode: bool) -> None:
    if found.st_uid not in (_me(), 0) or (mode and found.st_mode & stat.S_IWOTH):
        raise UnsafeCodec("it belongs to somebody else, or everybody may write to it.", url=path, hint=_AGAIN)


def _own_key() -> bytes:
    path = environment.cache_home() / "sample-cache.key"
    try:
        return _read(path) if path.exists() else _made(path)
    except OSError as error:
        if isinstance(error, WriteError):
            raise
        raise WriteError(
            f"the key of sample caches cannot be kept: {error.strerror}.",
            url=str(path),
            hint="set TARMAC_HOME to a directory that can be written to.",
        ) from error


def _made(path: Path) -> bytes:
    os.makedirs(path.parent, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, secrets.token_bytes(KEY_BYTES))
    finally:
        os.close(fd)
    try:
        os.link(part, path)  # fails if another process was quicker: its key is as good
    except FileExistsError:
        pass
    finally:
        os.unlink(part)
    return _read(path)


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        key = os.read(fd, KEY_BYTES + 1)
    finally:
        os.close(fd)
    if found.st_uid != _me() or found.st_mode & 0o077 or len(key) != KEY_BYTES:
        raise UnsafeCodec(
            "the key of sample caches is not one, or others may read it.", url=str(path), hint="remove it."
        )
    return key
