"""Signals that announce the end: raised at once, or after what must not be interrupted."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tarmac.cli.signals import interrupt_on_signals
from tarmac.runtime.preemption import PREEMPTION, Preempted, hold, interrupt, is_holding


@pytest.mark.parametrize("number", PREEMPTION)
def test_a_signal_waits_for_the_end_of_the_block(number):
    with pytest.raises(Preempted) as caught:
        interrupt(number)
    assert caught.value.number == number
    finished = False
    with pytest.raises(Preempted) as caught, hold():
        interrupt(number)
        with hold():
            assert is_holding()
        finished = is_holding()
    assert finished
    assert caught.value.number == number
    assert not is_holding()
    with hold():
        pass  # nothing is pending


def test_ctrl_c_does_not_wait():
    with pytest.raises(KeyboardInterrupt) as caught, hold():
        interrupt(signal.SIGINT)
        pytest.fail("not interrupted")
    assert not isinstance(caught.value, Preempted)
    assert not is_holding()


@pytest.mark.parametrize("second", [signal.SIGINT, *PREEMPTION])
def test_a_second_signal_does_not_wait_either(second):
    received: list[int] = []
    with pytest.raises(KeyboardInterrupt), interrupt_on_signals(received):
        with hold():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert received == [signal.SIGUSR1]
            os.kill(os.getpid(), second)
            pytest.fail("not interrupted")
    assert received == [signal.SIGUSR1, second]
    assert not is_holding()


def test_other_threads_hold_nothing():
    seen = []

    def work():
        with hold():
            seen.append(is_holding())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
