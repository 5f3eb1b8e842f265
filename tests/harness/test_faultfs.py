"""The faulty file system fails once, at the chosen call, and the loop terminates."""

from __future__ import annotations

import contextlib
import errno
import os

import pytest

from harness.faultfs import SHORT, Fault, descriptors, every_fault, faulty, interrupted


def copy(path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        assert os.write(fd, b"0123456789") in (3, 10)
        os.write(fd, b"x")
    finally:
        os.close(fd)


def test_every_call_fails_once(tmp_path):
    fired, before = [], descriptors()
    for fault in every_fault(errno.ENOSPC):
        with faulty(fault, tmp_path):
            with pytest.raises(OSError, match="Errno 28") if fault.number < 5 else contextlib.nullcontext():
                copy(tmp_path / "x")
        fired.append(fault.fired)
    assert fired == ["open", "write", "write", "close", ""]
    assert not descriptors() - before


def test_short_writes_touch_nothing_else(tmp_path):
    fired = []
    for fault in every_fault(SHORT):
        with faulty(fault, tmp_path):
            copy(tmp_path / "x")
        fired.append(fault.fired)
    assert fired == ["write", "write", ""]
    assert (tmp_path / "x").read_bytes() == b"0123456789x"


def test_files_outside_of_the_directory_do_not_fail(tmp_path):
    with faulty(Fault(1, errno.EIO, ("open",)), tmp_path / "here") as fault:
        os.close(os.open("/dev/null", os.O_RDONLY))
        assert not fault.fired
        with pytest.raises(OSError, match="Input/output"):
            os.open(tmp_path / "here" / "x", os.O_RDONLY)
    assert fault.fired == "open"


def test_an_operation_that_never_succeeds_is_reported():
    with pytest.raises(AssertionError, match="call 5"):
        for fault in every_fault(errno.EIO, most=5):
            fault.fired = "write"


def test_something_happens_before_each_call(tmp_path):
    for number in range(1, 4):
        happened = []
        with interrupted(number, lambda h=happened: h.append(sorted(os.listdir(tmp_path)))) as seen:
            os.mkdir(tmp_path / "a")
            os.close(os.open(tmp_path / "a", os.O_RDONLY))
            os.rmdir(tmp_path / "a")
        assert seen == ["mkdir", "open", "close"][:number]
        assert happened == [[] if number == 1 else ["a"]]
    with interrupted(9, lambda: happened.append("never")) as seen:
        os.stat(tmp_path)
    assert (seen, happened) == (["stat"], [["a"]])
