"""Type checkers accept typed_usage.py: generic datasets and loaders, and torch's DataLoader on top."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
USAGE = ROOT / "tests" / "typed_usage.py"
CONFIG = """
[mypy]
strict = True
python_version = 3.11
follow_imports = silent
ignore_missing_imports = True
[mypy-torch.*,pyarrow.*]
follow_imports = skip
[mypy-torch.utils.data.*]
follow_imports = silent
"""


def run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG)
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    run("mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache"), str(USAGE))


def test_pyright():
    pytest.importorskip("torch")
    pytest.importorskip("pyright")
    run("pyright", "--pythonpath", sys.executable, str(USAGE))
