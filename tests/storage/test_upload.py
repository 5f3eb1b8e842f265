"""Targets that are collected on disk and sent at the end."""

from __future__ import annotations

import errno
import tempfile
from dataclasses import replace

import pytest

from tarmac.errors import AccessDenied, DiskFull, TransferError
from tarmac.storage import StorageOptions, WriteOptions, open_write
from tarmac.storage.upload import UploadSink


def test_a_full_temporary_directory(s3, hasty, monkeypatch):
    class Full:
        closed = False

        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    sink = open_write("s3://data/full", replace(hasty, config=s3.config()))
    with pytest.raises(DiskFull, match="TMPDIR"):
        sink.write(b"x")
    sink.abort()


def test_who_may_write_but_not_look_may_write(hasty):
    sent = []

    def blind(*_):
        raise AccessDenied("403")

    def send(_url, file, size, _options, new):
        sent.append((file.read(), size, new))

    sink = UploadSink("x://y", hasty, WriteOptions(), blind, send)
    sink.write(b"abc")
    sink.commit()
    assert sent == [(b"abc", 3, False)]
    with pytest.raises(AccessDenied):
        UploadSink("x://y", hasty, WriteOptions(overwrite=False), blind, send)


def test_a_failed_upload_releases_the_file():
    def fail(*_, **__):
        raise TransferError("no")

    sink = UploadSink("x://y", StorageOptions(), WriteOptions(overwrite=True), fail, fail)
    sink.write(b"abc")
    with pytest.raises(TransferError, match="no"):
        sink.commit()
    assert sink._spool.closed
