"""Use the verbs of the command line from Python: pack, copy, map, sort, join, index, check and export."""

from __future__ import annotations

import csv
from typing import Any

import tarmac

Sample = dict[str, Any]


def texts() -> list[Sample]:
    """Return a few samples."""
    return [{"__key__": f"{i:04d}", "txt": f"text number {i}", "cls": i % 5} for i in range(100)]


def shout(sample: Sample) -> Sample | None:
    """Convert the text to capitals, and drop one class."""
    return None if sample["cls"] == 4 else sample | {"txt": sample["txt"].upper()}


def main() -> None:
    """Run each verb on the output of the one before."""
    print(tarmac.pack(texts(), "raw/x-{i:03d}.tar", max_samples=25))
    split = {"train": 0.8, "val": 0.2}
    print(tarmac.copy("raw/*.tar", "{split}/x-{i:03d}.tar", split=split, shuffle=True, max_samples=50))
    print(tarmac.map("train/*.tar", "loud/", shout, decode="basic", jobs=1))
    print(tarmac.sort("loud/*.tar", "sorted-{i:03d}.tar", by="cls", type="int", max_samples=50))

    with open("scores.csv", "w", newline="") as file:
        csv.writer(file).writerows([["key", "score"], *([f"{i:04d}", i / 100] for i in range(100))])
    report = tarmac.join("sorted-*.tar", "scores.csv", "joined/", how="inner")
    assert report.ok
    assert report.written == report.read

    tarmac.index("joined/*.tar", output="joined.json", meta=["cls"])
    assert tarmac.check("joined.json").ok
    print(tarmac.export("joined.json", "best.jsonl", "jsonl", where="cls >= 2", fields=["txt", "score"]))


if __name__ == "__main__":
    main()
