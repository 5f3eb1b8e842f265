from __future__ import annotations

import gc
import os
import pickle

import numpy as np

from tarmac.exact.loader.segments import Segment, map_segment, needed, watched


def buffers_of(*arrays):
    found = []
    pickle.dumps(arrays, protocol=5, buffer_callback=found.append)
    return found


def test_what_is_put_in_is_seen_on_the_other_side():
    arrays = [np.arange(10), np.full((3, 5), 7, np.uint8), np.zeros((2, 2))]
    buffers = buffers_of(*arrays)
    segment = Segment(0, needed(buffers))
    places = [segment.place(buffer.raw()) for buffer in buffers]
    memory = map_segment(os.dup(segment.fd))
    segment.forget_descriptor()
    whole = np.frombuffer(memory, np.uint8)
    for array, (start, end) in zip(arrays, places, strict=True):
        assert start % 64 == 0
        assert whole[start:end].tobytes() == array.tobytes()
    whole[:8] = 255  # shared, not copied
    assert segment._bytes[0] == 255


def test_the_end_of_the_last_array_is_noticed():
    ended = []
    segment = Segment(0, 1000)
    memory = map_segment(os.dup(segment.fd))
    segment.forget_descriptor()
    whole = watched(memory, lambda: ended.append(1))
    part = whole[100:200].reshape(10, 10)[2:, ::3]
    del whole
    gc.collect()
    assert not ended
    del part
    gc.collect()
    assert ended == [1]


def test_a_segment_has_no_name():
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    segment = Segment(0, 100)
    assert (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()) == before
    segment.forget_descriptor()
