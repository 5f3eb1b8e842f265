"""Children die at instants that follow from their seeds."""

from __future__ import annotations

import time

import pytest

from harness import rounds
from harness.crash import Crash, Forked, crash, survive
from harness.waiting import FOREVER

SLEEPER = f"import time; print('ready', flush=True); time.sleep({FOREVER})"


def test_a_child_is_killed_in_time():
    result = crash(SLEEPER, [], seed=1, longest=0.05)
    assert result.killed
    assert result.seconds == crash(SLEEPER, [], seed=1, longest=0.05).seconds < 0.05
    assert crash("print('ready')", [], seed=1, longest=0.5).seconds < 0.5
    with pytest.raises(RuntimeError, match="b'oh"):
        crash("print('oh')", [], seed=1, longest=0.1)


def test_a_forked_child_comes_to_its_end_or_is_killed():
    assert Forked(lambda: time.sleep(FOREVER)).crash(1, 0.01).killed
    assert Forked(lambda: None).crash(2, 0.5).status in (0, -9)
    assert Forked(lambda: 1 / 0).crash(2, 1.0).status in (1, -9)


def test_a_failure_names_its_seed():
    def check() -> None:
        raise AssertionError("half a file")

    with pytest.raises(AssertionError) as failed:
        survive(3, lambda seed: Forked(lambda: time.sleep(FOREVER)).crash(seed, 0.01), check, 7)
    assert "seed 7" in failed.value.__notes__[0]
    assert survive(3, lambda seed: Forked(lambda: time.sleep(FOREVER)).crash(seed, 0.01), lambda: None) == 3
    with pytest.raises(AssertionError, match="0 of 20"):
        survive(1, lambda seed: Crash(seed, 0.0, 0), lambda: None)


def test_rounds(monkeypatch):
    monkeypatch.delenv("TARMAC_TORTURE", raising=False)
    assert rounds(200) == 200
    monkeypatch.setenv("TARMAC_TORTURE", "20")
    assert rounds(200) == 4000
