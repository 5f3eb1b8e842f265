"""Run a command while every core is kept busy: `python -m tests.busy make test`.

LOAD says how many loops run; without it there is one for each core. They end with the command, and with this
process however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence


def loop(parent: int) -> None:
    """Compute nothing until the parent has ended."""
    while os.getppid() == parent:
        for _ in range(100_000):
            pass


def main(command: Sequence[str]) -> int:
    """Return the status of the command."""
    count = int(os.environ.get("LOAD") or os.cpu_count() or 1)
    context = multiprocessing.get_context("fork")
    loops = [context.Process(target=loop, args=(os.getpid(),), daemon=True) for _ in range(count)]
    for each in loops:
        each.start()
    try:
        return subprocess.run(command).returncode
    finally:
        for each in loops:
            each.kill()
            each.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
