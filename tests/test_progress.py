"""The progress bar: for people who wait, and never in the way."""

from __future__ import annotations

import sys

import pytest

from harness.waiting import FOREVER
from tarmac import progress as module
from tarmac.progress import progress


@pytest.mark.parametrize("show", [None, False, True])
def test_the_items_pass(show, capsys, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", float(FOREVER))
    assert list(progress(iter(range(5)), 5, "work", show=show)) == [0, 1, 2, 3, 4]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ""  # over before anybody waits


def test_a_bar_for_those_who_wait(capsys, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    items = progress(range(3), 3, "indexing", show=True)
    assert next(items) == 0
    assert list(items) == [1, 2]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "indexing" in captured.err
    assert "3/3" in captured.err


def test_it_is_shown_on_a_terminal_only(monkeypatch):
    shown = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: shown.append(True) or False, raising=False)
    assert list(progress([1], 1, "x")) == [1]
    assert shown


def test_errors_pass_and_the_bar_ends(capsys, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", -1.0)

    def failing():
        yield 1
        raise RuntimeError("oh")

    items = progress(failing(), 3, "x", show=True)
    assert next(items) == 1
    with pytest.raises(RuntimeError, match="oh"):
        next(items)
    given_up = progress(iter([1, 2]), 2, "x", show=True)
    next(given_up)
    given_up.close()
    assert list(progress([3], 1, "x", show=True)) == [3]  # rich allows one bar at a time
