"""Bounded look-ahead: results in order, a bounded number of items in flight, errors in their place."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.waiting import TIMEOUT
from tarmac.runtime.lookahead import PER_WORKER, in_threads, look_ahead, run_ahead


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
    assert len(taken) <= 3 * PER_WORKER
    results.close()


def test_a_failing_source_raises_after_the_results_before():
    def source():
        yield from range(5)
        raise RuntimeError("broken")

    results = []
    with pytest.raises(RuntimeError, match="broken"):
        for result in in_threads(str, source(), 2):
            results.append(result)
    assert results == ["0", "1", "2", "3", "4"]


def test_a_failing_function():
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda x: 1 // x, [1, 0], 2))


def test_no_thread_is_left_behind():
    before = threading.active_count()
    for _ in range(20):
        results = in_threads(str, range(100), 4)
        next(results)
        results.close()
    assert threading.active_count() == before


def test_look_ahead_starts_in_order_and_does_not_close_the_source():
    started = []

    def start(item):
        started.append(item)
        return -item

    source = iter(x for x in range(10))
    results = look_ahead(start, source, 3)
    assert next(results) == 0
    assert started == [0, 1, 2]
    assert next(results) == -1
    assert started == [0, 1, 2, 3]
    results.close()
    assert next(source) == 4


def test_an_error_of_start_is_raised_at_once():
    def start(item):
        return 1 // (2 - item)

    with pytest.raises(ZeroDivisionError):
        next(look_ahead(start, range(5), 3))


@pytest.mark.parametrize("ordered", [True, False])
def test_run_ahead_yields_items_with_their_futures(ordered):
    first_may_end = threading.Event()

    def work(item):
        if item == 0:
            assert first_may_end.wait(TIMEOUT)
        elif item == 1:
            first_may_end.set()
        return item * item

    with ThreadPoolExecutor(2) as pool:
        pairs = [
            (item, future.result())
            for item, future in run_ahead(lambda item: pool.submit(work, item), range(9), 2, ordered=ordered)
        ]
    assert sorted(pairs) == [(item, item * item) for item in range(9)]
    assert not ordered or pairs == sorted(pairs)
