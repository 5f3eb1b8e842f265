"""Type checkers accept typed_usage.py: generic datasets and loaders, and torch's DataLoader on top."""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
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


# These derive from a class of torch, for `DataLoader(dataset)`. torch is not marked as typed, so in this mode pyright
# calls that class unknown, and what derives from it or returns it.
_UNKNOWN = {"Type of metaclass unknown", "Type of base class unknown"}
_MIX = {'Return type is partially unknown\n  Return type is "Mix"'}
_TOKENS = {
    "Type of metaclass unknown",
    'Type of base class "tarmac.exact.dataset.Dataset" is partially unknown',
}
_CURSOR = {'Type of base class "tarmac.exact.loader.cursor.EpochCursor" is partially unknown'}
_STREAM, _PIPELINE = (
    {"Type of metaclass unknown", f'Type of base class "tarmac.stream.{base}" is partially unknown'}
    for base in ("epochs.StreamSource", "pipeline.DataPipeline")
)
_DATASET = {
    'Type of parameter "samples" is partially unknown\n  Parameter type is "Dataset | str | PathLike[str] | None"',
    'Return type is partially unknown\n  Return type is "Hits"',  # they hold the dataset
}
_OF_TORCH = {
    "tarmac.searching.knn.Knn.query": _DATASET,
    "tarmac.exact.dataset.Dataset": _UNKNOWN,
    "tarmac.exact.dataset.Dataset.repeat": _MIX,
    "tarmac.exact.dataset.Dataset.take_per_epoch": _MIX,
    "tarmac.exact.mix.Mix": _UNKNOWN,
    "tarmac.exact.loader.loader.Loader": _CURSOR,
    "tarmac.exact.loader.sampler.BatchSampler": _CURSOR,
    "tarmac.stream.pipeline.DataPipeline": _STREAM,
    "tarmac.stream.webdataset.WebDataset": _PIPELINE,
    "tarmac.tokens.dataset.Tokens": _TOKENS,
    "tarmac.stream.webloader.WebLoader": _PIPELINE,
}


def test_public_names_have_complete_types(monkeypatch):
    """Every documented name, and every public attribute of it, has a complete type."""
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
    names = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    objects = [pkgutil.resolve_name(f"tarmac.{name.removeprefix('tarmac.')}") for name in names]
    public = [
        f"{each.__name__}.\\w+" if inspect.ismodule(each) else f"{each.__module__}.{each.__qualname__}"
        for each in objects
    ]
    checked = [symbol for symbol in symbols if re.match(rf"({'|'.join(public)})(\.|$)", symbol["name"])]
    assert len(checked) > 400
    incomplete = {
        f"{symbol['name']}: {problem['message']}"
        for symbol in checked
        if not symbol["isTypeKnown"]
        for problem in symbol["diagnostics"]
        if problem["message"].replace("\xa0", " ") not in _OF_TORCH.get(symbol["name"], ())
    }
    assert incomplete == set()
