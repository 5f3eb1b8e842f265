"""Everything that is extended by one registration has an example, and the examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("custom_*.py"))
PRINTED = {
    "custom_export_format": ["export: 1 samples in, 1 out", "# one", "- txt: hello", "- cls: 3"],
    "custom_pack_source": ["pack: 2 samples in, 2 out", "g1 ACGTAC", "g2 TTT"],
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path, tmp_path):
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(line in done.stdout for line in PRINTED.get(path.stem, ())), done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_architecture_names_every_example(path):
    assert path.name in (ROOT / "ARCHITECTURE.md").read_text()
