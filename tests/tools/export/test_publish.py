"""Files appear when they are complete."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.faultfs import Fault, faulty
from tarmac.errors import CommitFailed, DiskFull
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.export.destination import published_path, published_stream


@pytest.mark.parametrize("publish", [published_path, published_stream])
def test_files_appear_at_the_end(publish, tmp_path):
    target = tmp_path / "deep/x.bin"

    def put(where, data):
        if publish is published_path:
            Path(where).write_bytes(data)
        else:
            where.write(data)

    with publish(str(target), DEFAULT_STORAGE) as where:
        put(where, b"one")
        assert not target.exists()
    assert target.read_bytes() == b"one"
    with pytest.raises(KeyError), publish(str(target), DEFAULT_STORAGE) as where:
        put(where, b"two")
        raise KeyError
    assert target.read_bytes() == b"one"
    assert os.listdir(target.parent) == ["x.bin"]
    with publish(str(target), DEFAULT_STORAGE) as where:
        put(where, b"three")
    assert target.read_bytes() == b"three"


def test_the_part_file_of_a_killed_writer_is_removed(tmp_path):
    script = (
        "import os, sys\nfrom tarmac.tools.export.destination import published_path\n"
        "from tarmac.storage.types import DEFAULT_STORAGE\n"
        "with published_path(sys.argv[1], DEFAULT_STORAGE) as path:\n    os.kill(os.getpid(), 9)\n"
    )
    target = tmp_path / "x.db"
    done = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert done.returncode == -9
    assert len(os.listdir(tmp_path)) == 1
    with published_path(str(target), DEFAULT_STORAGE) as path:
        with published_path(str(target), DEFAULT_STORAGE) as other:  # that of a running writer is kept
            assert os.path.exists(path)
            assert path != other
    assert os.listdir(tmp_path) == ["x.db"]


def test_a_file_instead_of_the_directory(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for publish in (published_path, published_stream):
        with pytest.raises(CommitFailed, match="file/x"):
            with publish(str(tmp_path / "file/x"), DEFAULT_STORAGE):
                pass


def test_long_names_and_directories_in_the_way(tmp_path):
    target = tmp_path / ("é" * 120 + ".db")
    with published_path(str(target), DEFAULT_STORAGE) as path:
        Path(path).write_bytes(b"1")
    assert target.read_bytes() == b"1"
    with pytest.raises(CommitFailed, match="directory"):
        with published_path(str(tmp_path), DEFAULT_STORAGE):
            pass
    assert os.listdir(tmp_path) == [target.name]


def test_a_disk_that_fails_at_the_end(tmp_path):
    for call in ("fsync", "replace"):
        with faulty(Fault(1, errno.ENOSPC, (call,))), pytest.raises(DiskFull, match=r"x\.db"):
            with published_path(str(tmp_path / "x.db"), DEFAULT_STORAGE) as path:
                Path(path).write_bytes(b"1")
        assert os.listdir(tmp_path) == []
