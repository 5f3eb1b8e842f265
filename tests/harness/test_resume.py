"""The resume harness accepts what resumes and finds what does not."""

from __future__ import annotations

import pytest

from harness.resume import assert_resumes


class Counter:
    """Counts to ten; `off` makes it forget or repeat items on resume."""

    def __init__(self, off=0):
        self.position, self.off = 0, off

    def __iter__(self):
        while self.position < 10:
            self.position += 1
            yield self.position

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"] + (self.off if state["position"] else 0)


class Growing(Counter):
    def state_dict(self):
        return {"position": self.position} | ({"late": 1} if self.position > 5 else {})


def test_resumable_objects_pass():
    assert assert_resumes(Counter) == 11


@pytest.mark.parametrize("make", [lambda: Counter(off=1), lambda: Counter(off=-1), Growing])
def test_other_objects_fail(make):
    with pytest.raises(AssertionError):
        assert_resumes(make)


def test_large_states():
    with pytest.raises(AssertionError, match="bytes"):
        assert_resumes(Counter, max_state_bytes=5)
