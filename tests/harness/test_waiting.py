"""Waiting ends with the event, and a bound ends it without one."""

from __future__ import annotations

import subprocess
import sys
import threading

from harness.waiting import FOREVER, FakeClock, gone, until
from harness.work import calls


def test_until():
    event = threading.Event()
    thread = threading.Timer(0.05, event.set)
    thread.start()
    assert until(event.is_set)
    thread.join()
    assert until(lambda: True, patience=0)
    assert not until(lambda: False, patience=0)


def test_gone():
    assert gone([])
    command = [sys.executable, "-c", f"import time; time.sleep({FOREVER})"]
    with subprocess.Popen(command) as child:
        child.kill()
        assert gone([child.pid])  # no process has waited for it
        child.wait()
        assert gone([child.pid])


def test_clock():
    clock = FakeClock()
    assert clock.monotonic() == clock.monotonic()
    clock.sleep(5)
    assert (clock.monotonic(), clock.slept) == (1005, [5])
    ticking = FakeClock(tick=2)
    assert [ticking.monotonic() for _ in range(3)] == [1002, 1004, 1006]


def test_calls():
    def work(count):
        return lambda: [len("x") for _ in range(count)]

    assert calls(work(100)) == calls(work(100))
    assert 100 <= calls(work(1100)) - calls(work(1000)) <= 101
