"""A job that tasks on clusters share: its command, and the bytes that it writes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

FUNCTION = '''
import time
from pathlib import Path

def upper(sample):
    """Change the text, and leave a file for each sample that was done."""
    while Path("slow").exists() and len(list(Path("done").iterdir())) > 8:
        time.sleep(0.01)
    Path("done", sample["__key__"].replace("/", "-")).touch()
    return {**sample, "txt": sample["txt"].upper()}
'''
"""The text of a module; the current directory has the directory `done`, and holds it back with a file `slow`."""


def map_command(output: str) -> list[str]:
    """Return the command of the job, which runs in the directory of its shards."""
    program = [sys.executable, "-m", "tarmac", "map"]
    arguments = ["in-{0..11}.tar", "--py", "upper.py:upper", "-o", f"{output}/"]
    return [*program, *arguments, "--manifest", f"{output}/manifest.json"]


def run_locally(folder: Path, output: str) -> None:
    """Run the job in one process."""
    subprocess.run([*map_command(output), "-j", "1"], cwd=folder, check=True, capture_output=True)
    for path in (folder / "done").iterdir():
        path.unlink()


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of shards and manifest. Indexes of local shards hold the time at which these were written."""
    files = (path for path in sorted(folder.iterdir()) if path.suffix in (".tar", ".json"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
