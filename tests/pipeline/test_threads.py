"""Several items at a time, in order, bounded, with failures in their place."""

from __future__ import annotations

import threading
import time

import pytest

from tarmac.pipeline.threads import AHEAD, in_threads


def test_order_and_overlap():
    seen, lock = [], threading.Lock()

    def slow(i):
        with lock:
            seen.append(threading.get_ident())
        time.sleep(0.002 * (5 - i % 5))
        return i

    assert list(in_threads(slow, range(40), 4)) == list(range(40))
    assert len(set(seen)) == 4


def test_look_ahead_is_bounded():
    taken = []

    def source():
        for i in range(100):
            taken.append(i)
            yield i

    results = in_threads(str, source(), 3)
    next(results)
    assert len(taken) <= 3 * AHEAD
    results.close()


def test_a_failing_source_fails_after_what_came_before():
    def source():
        yield from range(5)
        raise RuntimeError("broken")

    found = []
    with pytest.raises(RuntimeError, match="broken"):
        for result in in_threads(str, source(), 2):
            found.append(result)
    assert found == ["0", "1", "2", "3", "4"]


def test_a_failing_function():
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda x: 1 // x, [1, 0], 2))


def test_no_thread_is_left():
    before = threading.active_count()
    for _ in range(20):
        results = in_threads(str, range(100), 4)
        next(results)
        results.close()
    assert threading.active_count() == before
