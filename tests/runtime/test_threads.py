"""Several items at a time, in order, bounded, with failures in their place."""

from __future__ import annotations

import threading

import pytest

from harness.waiting import TIMEOUT
from tarmac.runtime.threads import AHEAD, in_threads


def test_order_and_overlap():
    together, later = threading.Barrier(4, timeout=TIMEOUT), [threading.Event() for _ in range(40)]

    def work(i):
        if i < 4:
            together.wait()  # passes only if four are at work at the same time
        elif i % 2 == 0:
            assert later[i + 1].wait(TIMEOUT)  # ends after the one that follows it
        later[i].set()
        return i

    assert list(in_threads(work, range(40), 4)) == list(range(40))


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
