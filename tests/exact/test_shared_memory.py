from __future__ import annotations

import gc
import os
import pickle

import numpy as np
import pytest

from tarmac.errors import LoaderError
from tarmac.exact.loader.shared_memory import Segment, create_segment, map_segment, required_size, watched


def buffers_of(*arrays):
    buffers = []
    pickle.dumps(arrays, protocol=5, buffer_callback=buffers.append)
    return [buffer.raw() for buffer in buffers]


def test_arrays_are_shared_without_a_copy():
    arrays = [np.arange(10), np.full((3, 5), 7, np.uint8), np.zeros((2, 2))]
    buffers = buffers_of(*arrays)
    segment = Segment(0, required_size(buffers))
    ranges = segment.write(buffers)
    memory = map_segment(os.dup(segment.fd))
    segment.close_descriptor()
    whole = np.frombuffer(memory, np.uint8)
    for array, (start, end) in zip(arrays, ranges, strict=True):
        assert start % 64 == 0
        assert whole[start:end].tobytes() == array.tobytes()
    whole[:8] = 255  # shared, not copied
    assert segment._bytes[0] == 255


def test_release_is_called_with_the_last_view():
    released = []
    segment = Segment(0, 1000)
    memory = map_segment(os.dup(segment.fd))
    segment.close_descriptor()
    whole = watched(memory, lambda: released.append(1))
    part = whole[100:200].reshape(10, 10)[2:, ::3]
    del whole
    gc.collect()
    assert not released
    del part
    gc.collect()
    assert released == [1]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs /dev/shm")
def test_segments_are_anonymous():
    existing = set(os.listdir("/dev/shm"))
    segment = Segment(0, 100)
    assert set(os.listdir("/dev/shm")) == existing
    segment.close_descriptor()


def test_no_memory_for_a_batch(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(LoaderError, match=r"4096 bytes.*No space left"):
        create_segment(4096)
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(LoaderError, match=r"4096 bytes.*No space left"):
        create_segment(4096)


def test_memory_without_memfd(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    segment = Segment(0, 100)
    assert segment.write([memoryview(b"abc")]) == [(0, 3)]
    memory = map_segment(os.dup(segment.fd))
    assert memory[:3] == b"abc"
    memory.close()
    segment.close_descriptor()
