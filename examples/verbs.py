"""Process shards from Python: pack, select, split, transform, check and export, with one report for each."""

import json
from pathlib import Path

import tarmac


def shout(sample):
    """Return the sample with its text in capitals."""
    return sample | {"txt": sample["txt"].upper()}


def main():
    """Build a small dataset of notes and process it."""
    notes = Path("notes")
    notes.mkdir(exist_ok=True)
    for number in range(100):
        (notes / f"{number:03d}.txt").write_text(f"note {number}")
        (notes / f"{number:03d}.json").write_text(json.dumps({"width": number}))

    print(tarmac.pack(notes, "notes-{i:02d}.tar", max_samples=25))
    print(tarmac.index("notes-*.tar", "notes.json", meta=["json.width"]))
    report = tarmac.copy(
        "notes.json",
        "{split}-{i:02d}.tar",
        where="json.width >= 20",
        split={"train": 0.8, "val": 0.2},
        shuffle=True,
        seed=1,
    )
    print(report, len(report.outputs))
    print(tarmac.map("train-*.tar", "loud-{i:02d}.tar", function=shout, decode=True, jobs=1))
    print(tarmac.check(["train-*.tar", "val-*.tar", "loud-*.tar"], decode=True, duplicates=False))
    print(tarmac.export("val-*.tar", "val.jsonl", fields=["txt"]))
    print(repr(tarmac.stats("loud-*.tar")))


if __name__ == "__main__":
    main()
