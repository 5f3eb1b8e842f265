"""Every script in examples/ runs; test_extending.py has those that extend tarmac."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
EXAMPLES = [path for path in SCRIPTS if not path.name.startswith("custom_")]
IMAGES = next(path for path in EXAMPLES if path.stem == "image_classification")


def run(*command: object, cwd: Path) -> str:
    loopback = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=loopback,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    if path == IMAGES:
        pytest.importorskip("torch")
    run(path, cwd=tmp_path)


@pytest.mark.processes
def test_images_are_trained_on_by_two_ranks_and_then_by_one(tmp_path):
    """A run that stops in the middle of an epoch continues there with another number of processes, and back."""
    pytest.importorskip("torch")
    torchrun = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        2,
    )
    assert "stopped in epoch 0 after 112 samples" in run(*torchrun, IMAGES, "--stop-after", 7, cwd=tmp_path)
    assert "stopped in epoch 1 after 32 samples" in run(IMAGES, "--stop-after", 6, cwd=tmp_path)
    printed = run(*torchrun, IMAGES, "--epochs", 2, cwd=tmp_path)
    assert re.search(r"epoch 1: trained on samples 32 to 176; \d+% of 52 are right", printed)
    assert "stopped in epoch 2 after 0 samples" in printed
