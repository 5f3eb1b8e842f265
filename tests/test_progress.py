"""The progress bar appears for long work on terminals and in notebooks."""

from __future__ import annotations

import sys
from types import SimpleNamespace

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
    assert captured.err == ""  # finished before the bar appears


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


@pytest.mark.parametrize(("terminal", "notebook"), [(False, False), (True, False), (False, True)])
def test_by_default_the_bar_is_shown_on_terminals_and_in_notebooks(capsys, monkeypatch, terminal, notebook):
    monkeypatch.setattr(module, "DELAY", -1.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    shell = SimpleNamespace(kernel=object()) if notebook else SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert list(track([1], 1, "x")) == [1]
    assert bool(capsys.readouterr().err) == (terminal or notebook)


def test_notebooks_show_a_count_that_needs_no_widgets(capsys, monkeypatch):
    monkeypatch.setattr(module, "DELAY", -1.0)
    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert list(track(iter("ab"), 2, "indexing")) == ["a", "b"]
    shown = capsys.readouterr().err.split("\r")
    assert shown == ["", "indexing 1/2", "indexing 2/2", " " * 12, ""]  # the last removes the line


def test_errors_are_raised_and_the_bar_stops(capsys, monkeypatch):
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
