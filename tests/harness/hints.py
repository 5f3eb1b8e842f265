"""Follow hints: every "Try: …" in the sources is raised in a test, and what it says is done there and works.

    @follows("a name in it: {}/NAME")
    def test_a_directory_as_target(tmp_path):
        with hinted("a name in it: {}/NAME"):
            tarmac.TarWriter(tmp_path)
        tarmac.TarWriter(tmp_path / "x.tar").close()

A hint is named by its text in the sources, with `{}` in place of values. `tests/hints/test_all_hints.py` fails if
one has neither a test nor a reason in `tests/hints/prose.py`.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import tarmac

T = TypeVar("T", bound=Callable[..., object])
SOURCES = Path(tarmac.__file__).parent


def follows(*hints: str) -> Callable[[T], T]:
    """Mark a test that raises these hints and does what they say."""
    return pytest.mark.follows(*hints)  # type: ignore[return-value]


@contextlib.contextmanager
def hinted(hint: str, error: type[Exception] = Exception) -> Iterator[Any]:
    """Expect an error with this hint."""
    with pytest.raises(error) as caught:
        yield caught
    text = getattr(caught.value, "hint", None) or str(caught.value).partition("Try: ")[2]
    assert re.fullmatch(pattern(hint), text.strip(), re.DOTALL), f"expected the hint {hint!r}, got {text!r}"


def pattern(hint: str) -> str:
    """Return a regular expression for a hint whose values are `{}`."""
    return ".*".join(map(re.escape, hint.split("{}")))


def hints_in_sources() -> dict[str, set[str]]:
    """Return all hints, with the files that have them."""
    hints: dict[str, set[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for value in _hint_values(node):
                for text in _texts(value):
                    hints.setdefault(text, set()).add(str(path.relative_to(SOURCES)))
    return hints


def _hint_values(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.keyword) and node.arg == "hint":
        yield node.value
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(_name(target).strip("_").lower() in ("hint", "hints", "advice") for target in targets):
            yield from node.value.values if isinstance(node.value, ast.Dict) else [node.value]


def _name(target: ast.expr) -> str:
    return getattr(target, "attr", None) or getattr(target, "id", "")


def _texts(value: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression may have; conditional ones have several."""
    if isinstance(value, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in value.values)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from _texts(value.body)
        yield from _texts(value.orelse)
    elif isinstance(value, ast.BoolOp):
        for each in value.values:
            yield from _texts(each)
