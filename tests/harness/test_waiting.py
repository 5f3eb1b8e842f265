"""Waiting ends with the event, and a bound ends it without one."""

from __future__ import annotations

import subprocess
import sys
import threading

from harness.waiting import FOREVER, FakeClock, gone, until
from harness.work import calls


def test_until_the_event_or_the_bound():
    event = threading.Event()
    thread = threading.Timer(0.05, event.set)
    thread.start()
    assert until(event.is_set)
    thread.join()
    assert until(lambda: True, patience=0)
    assert not until(lambda: False, patience=0)


def test_a_process_is_gone_whether_it_was_waited_for_or_not():
    assert gone([])
    command = [sys.executable, "-c", f"import time; time.sleep({FOREVER})"]
    with subprocess.Popen(command) as child:
        child.kill()
        assert gone([child.pid])  # nobody has waited for it
        child.wait()
        assert gone([child.pid])


def test_a_clock_that_goes_only_when_it_is_used():
    clock = FakeClock()
    assert clock.monotonic() == clock.monotonic()
    clock.sleep(5)
    assert (clock.monotonic(), clock.slept) == (1005, [5])
    ticking = FakeClock(tick=2)
    assert [ticking.monotonic() for _ in range(3)] == [1002, 1004, 1006]


def test_calls_are_the_same_number_each_time():
    def work(count):
        return lambda: [len("x") for _ in range(count)]

    assert calls(work(100)) == calls(work(100))
    assert 100 <= calls(work(1100)) - calls(work(1000)) <= 101
