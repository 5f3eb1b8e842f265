"""Type checkers accept typed_usage.py: generic datasets and loaders, and torch's DataLoader on top."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tarmac

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


# These derive from a class of torch, for `DataLoader(dataset)`. torch is not marked as typed, so in this mode pyright
# calls its classes unknown.
_TORCH = r"metaclass|base class|\b(?:Dataset|Mix|DataPipeline|WebDataset|WebLoader|Loader|BatchSampler|EpochAudit)\b"


def test_public_names_have_complete_types(monkeypatch):
    """Every name of `tarmac.__all__`, and every public attribute of it, has a complete type."""
    pytest.importorskip("torch")
    pytest.importorskip("pyright")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # pyright looks there for py.typed
    command = ["pyright", "--pythonpath", sys.executable, "--verifytypes", "tarmac", "--ignoreexternal"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--outputjson"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    objects = (getattr(tarmac, name) for name in tarmac.__all__ if name != "errors")
    public = tuple(f"{each.__module__}.{each.__qualname__}" for each in objects)
    checked = [
        symbol
        for symbol in symbols
        if re.match(rf"({'|'.join(map(re.escape, public))}|tarmac\.errors\.\w+)(\.|$)", symbol["name"])
    ]
    assert len(checked) > 300
    incomplete = {
        f"{symbol['name']}: {problem['message']}"
        for symbol in checked
        if not symbol["isTypeKnown"]
        for problem in symbol["diagnostics"]
        if not re.search(_TORCH, problem["message"])
    }
    assert incomplete == set()
