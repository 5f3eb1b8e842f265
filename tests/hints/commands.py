"""Run commands that give hints, and those that follow them."""

from __future__ import annotations

import pytest

from harness.commands import run


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that fails, and return its hint, as users of the command line see it."""
    assert run(list(map(str, arguments)))
    text = capsys.readouterr().err
    assert "Try: " in text
    return text.strip().partition("Try: ")[2]


def done(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    """Run a command that succeeds, or that skips samples, which is status 1, and return what it prints."""
    ended = run(list(map(str, arguments)))
    captured = capsys.readouterr()
    assert ended == status, captured.err
    return captured.out
