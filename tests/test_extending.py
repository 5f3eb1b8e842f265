"""Everything that is extended by one registration has an example, and the examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("custom_*.py"))
PRINTED = {
    "custom_export_format": ["export: 1 sample in, 1 out", "# one", "- txt: hello", "- cls: 3"],
    "custom_verb": ["one train"],
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


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """Install entry points; return a function that runs the command with them."""
    info = tmp_path / "site" / "plugged-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tarmac.plugins]\ntag = custom_verb\nthreads = custom_engine\nmarkdown = custom_export_format\n"
        "fasta = custom_pack_source\nbroken = no_such_module\n"
    )
    paths = [str(info.parent), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "tarmac", *arguments], capture_output=True, text=True, check=False
        )

    return run


def test_the_command_line_loads_plug_ins(plugins):
    """Verbs, formats and sources of installed packages are those of the command; a broken one is a warning."""
    done = plugins("--help")
    assert re.search(r"^  tag +Add a field to every sample: tag\.$", done.stdout, re.MULTILINE)
    (warning,) = done.stderr.splitlines()
    assert "'broken'" in warning
    assert "no_such_module" in warning
    assert "markdown" in plugins("export", "--help").stdout
    Path("genes.fasta").write_text(">g1\nACGT\n>g2\nTT\n")
    assert plugins("pack", "genes.fasta", "-o", "x-{i}.tar", "--max-samples", "1").returncode == 0
    done = plugins("tag", "x-0.tar", "x-1.tar", "--text", "train", "-o", "y/", "--engine", "threads")
    assert done.returncode == 0, done.stderr
    assert plugins("export", "y/x-1.tar", "--to", "markdown", "-o", "-").stdout.startswith("# g2")


def test_spawned_workers_load_plug_ins(plugins):
    code = (
        "from tarmac.plugins import load_plugins\nfrom tarmac.runtime import processes\n"
        "import threading\n"
        "if __name__ == '__main__':\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()  # no fork with threads\n"
        "    load_plugins()\n"
        "    import known_verbs\n"
        "    with processes.worker_pool(1, known_verbs.known) as submit:\n"
        "        print(submit('tag').result())\n"
    )
    Path("site/known_verbs.py").write_text(
        "from tarmac.cli import VERBS\ndef known(name): return name in VERBS\n"
    )
    Path("run.py").write_text(code)
    done = subprocess.run([sys.executable, "run.py"], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
