"""Sign data that this user writes, so that data of other users is never trusted.

Loading a pickle can run code, so a pickle is loaded only if it has a keyed digest. The key is created on first use, in
`TARMAC_HOME`, readable by its owner only.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from pathlib import Path

from tarmac import environment
from tarmac.errors import UnsafeCodec, WriteError

KEY_BYTES = 32
DIGEST_BYTES = 16
_UNTRUSTED = "it was written by another user, or changed; loading it could run any code."
_user = getattr(os, "geteuid", lambda: 0)  # systems without user numbers: files belong to 0
_HINT = "delete the file to rebuild it; the key is in TARMAC_HOME."


class Signer:
    """Sign the values of one file, and verify them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._key = _own_key()

    def sign(self, data: bytes, *position: object) -> bytes:
        """Return the value with its digest before it; it is valid only at `position`."""
        return self._digest(data, position) + data

    def verify(self, signed: object, *position: object) -> bytes:
        """Return the value; raise if it was not signed for this position."""
        if isinstance(signed, bytes | memoryview):
            data = bytes(signed[DIGEST_BYTES:])
            if hmac.compare_digest(bytes(signed[:DIGEST_BYTES]), self._digest(data, position)):
                return data
        raise self.untrusted()

    def untrusted(self) -> UnsafeCodec:
        """Return the error for a file that is not trusted."""
        return UnsafeCodec(_UNTRUSTED, url=self._url, hint=_HINT)

    def _digest(self, data: bytes, position: tuple[object, ...]) -> bytes:
        digest = hashlib.blake2b(repr(position).encode() + b"\0", key=self._key, digest_size=DIGEST_BYTES)
        digest.update(data)
        return digest.digest()


def check_owner(path: str) -> bool:
    """Return whether a file or directory exists; raise if other users own it, or a link to it, or may write to it."""
    for follow in (False, True):
        try:
            status = os.stat(path, follow_symlinks=follow)
        except FileNotFoundError:
            return False
        writable = follow and status.st_mode & stat.S_IWOTH  # the mode of a link itself means nothing
        if status.st_uid not in (_user(), 0) or writable:
            raise UnsafeCodec(
                "it belongs to another user, or any user may write to it.", url=path, hint=_HINT
            )
    return True


def _own_key() -> bytes:
    path = environment.cache_home() / "sample-cache.key"
    try:
        return _read(path) if path.exists() else _create(path)
    except OSError as error:
        raise WriteError(
            f"the key of sample caches cannot be stored: {error.strerror}.",
            url=str(path),
            hint="set TARMAC_HOME to a writable directory.",
        ) from error


def _create(path: Path) -> bytes:
    os.makedirs(path.parent, exist_ok=True)
    fd, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # for this user only
    with open(fd, "wb") as file:
        file.write(secrets.token_bytes(KEY_BYTES))
    try:
        os.link(part, path)  # fails if another process was faster: use its key
    except FileExistsError:
        pass
    finally:
        os.unlink(part)
    return _read(path)


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        status, key = os.fstat(file.fileno()), file.read(KEY_BYTES + 1)
    if status.st_uid != _user() or status.st_mode & 0o077 or len(key) != KEY_BYTES:
        raise UnsafeCodec(
            "the key of sample caches is invalid, or other users may read it.",
            url=str(path),
            hint="delete it.",
        )
    return key
