"""Handlers decide what happens; dropped samples are counted; secrets are redacted."""

from __future__ import annotations

import pytest

from tarmac.steps.handlers import (
    MAX_EXAMPLES,
    Drops,
    ignore_and_continue,
    ignore_and_stop,
    reraise_exception,
    warn_and_stop,
)


def test_counting():
    drops = Drops()
    for i in range(30):
        assert drops.ask(ignore_and_continue, ValueError(f"bad {i}"))
    assert drops.count == 30
    assert len(drops.examples) == MAX_EXAMPLES
    assert not drops.ask(ignore_and_stop, ValueError("x"))


def test_raised_errors_are_not_counted():
    drops = Drops()
    with pytest.raises(ValueError, match="x"):
        drops.ask(reraise_exception, ValueError("x"))
    assert drops.count == 0


def test_secrets_are_redacted():
    drops = Drops()
    drops.ask(ignore_and_continue, ValueError("https://h/x?sig=SECRET"))
    assert "SECRET" not in drops.examples[0]
    with pytest.warns(UserWarning, match="ValueError") as caught:
        warn_and_stop(ValueError("https://h/x?sig=SECRET"))
    assert "SECRET" not in str(caught[0].message)
