"""Targets that are collected on disk and uploaded by commit."""

from __future__ import annotations

import errno
import tempfile

import pytest

from tarmac.errors import AccessDenied, DiskFull, TransferError
from tarmac.storage import FileStore, StorageOptions, WriteOptions
from tarmac.storage.types import DEFAULT_WRITE
from tarmac.storage.upload import UploadSink


class WriteOnly(FileStore):
    """A store whose credentials allow writing but not reading."""

    def __init__(self, error=None):
        self.uploads = []
        self.error = error

    def stat(self, url, storage):
        raise AccessDenied("403")

    def put(self, url, file, size, storage, *, only_new):
        if self.error is not None:
            raise self.error
        self.uploads.append((file.read(), size, only_new))


def sink_of(store, write=DEFAULT_WRITE):
    return UploadSink(store, "x://y", StorageOptions(), write)


def test_a_full_temporary_directory(monkeypatch):
    class Full:
        closed = False

        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    sink = sink_of(WriteOnly())
    with pytest.raises(DiskFull, match="TMPDIR"):
        sink.write(b"x")
    sink.abort()


def test_credentials_that_allow_writing_but_not_reading():
    store = WriteOnly()
    sink = sink_of(store)
    sink.write(b"abc")
    sink.commit()
    assert store.uploads == [(b"abc", 3, False)]
    with pytest.raises(AccessDenied):
        sink_of(store, WriteOptions(overwrite=False))


def test_a_failed_upload_closes_the_file():
    sink = sink_of(WriteOnly(TransferError("no")))
    sink.write(b"abc")
    with pytest.raises(TransferError, match="no"):
        sink.commit()
    assert sink._spool.closed
