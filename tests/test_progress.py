"""The progress bar appears after a delay and never changes the results."""

from __future__ import annotations

import sys

import pytest

from harness.waiting import FOREVER
from tarmac import progress as module
from tarmac.progress import track


@pytest.mark.parametrize("progress", [None, False, True])
def test_items_are_yielded(progress, capsys, monkeypatch):
    monkeypatch.setattr(module, "DELAY", float(FOREVER))
    assert list(track(iter(range(5)), 5, "work", progress=progress)) == [0, 1, 2, 3, 4]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ""  # finished before the delay


def test_the_bar_appears_after_a_delay(capsys, monkeypatch):
    monkeypatch.setattr(module, "DELAY", -1.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    items = track(range(3), 3, "indexing", progress=True)
    assert next(items) == 0
    assert list(items) == [1, 2]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "indexing" in captured.err
    assert "3/3" in captured.err


def test_the_default_depends_on_the_terminal(monkeypatch):
    shown = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: shown.append(True) or False, raising=False)
    assert list(track([1], 1, "x")) == [1]
    assert shown


def test_errors_propagate_and_stop_the_bar(capsys, monkeypatch):
    monkeypatch.setattr(module, "DELAY", -1.0)

    def failing():
        yield 1
        raise RuntimeError("oh")

    items = track(failing(), 3, "x", progress=True)
    assert next(items) == 1
    with pytest.raises(RuntimeError, match="oh"):
        next(items)
    abandoned = track(iter([1, 2]), 2, "x", progress=True)
    next(abandoned)
    abandoned.close()
    assert list(track([3], 1, "x", progress=True)) == [3]  # rich allows one bar at a time
