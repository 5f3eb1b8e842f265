"""Every hint in the sources is followed in a test, or cannot be."""

from __future__ import annotations

import ast
from pathlib import Path

from harness.hints import hints_in_sources
from hints.prose import PROSE

FOLDER = Path(__file__).parent


def followed() -> set[str]:
    """The arguments of `@follows` in this folder."""
    hints = set()
    for path in FOLDER.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "follows":
                hints |= {ast.literal_eval(argument) for argument in node.args}
    return hints


def test_every_hint_is_followed():
    known = followed() | PROSE.keys()
    missing = {hint: files for hint, files in hints_in_sources().items() if hint not in known}
    assert not missing


def test_no_test_follows_a_hint_that_is_gone():
    assert followed() | PROSE.keys() <= hints_in_sources().keys()
    assert not followed() & PROSE.keys()
