"""`python -m demo`: see what tarmac does, in a few seconds."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from demo.steps import run


def main() -> None:
    """Parse the options and run the steps."""
    parser = argparse.ArgumentParser(
        prog="python -m demo", description="Make, check and read a small dataset."
    )
    parser.add_argument("--out", type=Path, default=Path("demo-data"), help="where the shards go")
    parser.add_argument("--samples", type=_positive, default=2000, help="how many pictures to draw")
    parser.add_argument("--shards", type=_positive, default=8, help="how many shards to spread them over")
    options = parser.parse_args()
    run(options.out, options.samples, min(options.shards, options.samples), Console())


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    main()
