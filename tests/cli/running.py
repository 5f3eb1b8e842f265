"""Run the command line in this process, or as a program of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from tarmac.cli import main

PROGRAM = [sys.executable, "-m", "tarmac"]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return the exit status, standard output and standard error."""
    with pytest.raises(SystemExit) as done:
        main(list(map(str, arguments)))
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return done.value.code or 0, captured.out, captured.err  # type: ignore[return-value]


def numbers(text: str) -> list[int]:
    """Return the numbers of a summary, in order; tests/messages.txt records its words."""
    return [int(number) for number in re.findall(r"\b\d+\b", text)]


def program(*arguments: object, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run the program and return its result."""
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, **({"capture_output": True, "check": False} | options))


def shell(command: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a pipeline in which `tarmac` is this program."""
    script = f'tarmac() {{ {sys.executable} -m tarmac "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], capture_output=True, check=False, **options
    )
