"""Train on indexed shards, stop in the middle of an epoch, and resume on two ranks.

Run it anywhere: `python exact_training.py`. It needs no torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import tarmac

SAMPLES, CLASSES, FEATURES = 1000, 10, 8


def write_shards(directory: Path) -> str:
    """Write a dataset of small vectors and return a pattern for its shards."""
    rng = np.random.default_rng(0)
    with tarmac.ShardWriter(f"{directory}/train-%04d.tar", max_samples=250) as writer:
        for number in range(SAMPLES):
            label = number % CLASSES
            vector = rng.normal(label, 1, FEATURES).astype(np.float32)
            writer.write({"__key__": f"{number:05d}", "npy": vector, "cls": label})
    return f"{directory}/train-*.tar"


def augment(sample: dict[str, Any], rng: np.random.Generator) -> tuple[str, np.ndarray, int]:
    """Add noise; in a Loader, `rng` depends only on seed, epoch and position."""
    return sample["__key__"], sample["npy"] + rng.normal(size=FEATURES).astype(np.float32), sample["cls"]


def main() -> None:
    """Train, save a state, resume on two ranks, and evaluate."""
    pattern = write_shards(Path.cwd())
    dataset = tarmac.Dataset(pattern).decode()  # indexes the shards on first use
    train, val = dataset.split(train=0.9, val=0.1)
    print(train)
    examples = train.map(augment, random=True)

    # One rank trains for five steps and saves the state of its loader.
    seen: list[str] = []
    loader = tarmac.Loader(examples, batch_size=32, seed=1, tail="short", rank=0, world_size=1)
    for step, (keys, vectors, labels) in enumerate(loader, 1):
        assert vectors.shape == (32, FEATURES)
        assert labels.shape == (32,)
        seen += keys
        if step == 5:
            break
    Path("state.json").write_text(json.dumps(loader.state_dict()))
    print(loader)

    # Two ranks, with another batch size, resume the same epoch.
    for rank in range(2):
        resumed = tarmac.Loader(examples, batch_size=16, seed=1, tail="short", rank=rank, world_size=2)
        resumed.load_state_dict(json.loads(Path("state.json").read_text()))
        for keys, _, _ in resumed:
            seen += keys
    assert sorted(seen) == sorted(train.keys())  # every sample exactly once
    print(f"trained on {len(seen)} samples, each exactly once")

    # Evaluation reads every sample once, without shuffling.
    correct = sum(
        int((np.rint(vectors.mean(axis=1)) == labels).sum())
        for vectors, labels in tarmac.Loader(val.to_tuple("npy", "cls"), 64, shuffle=False, tail="short")
    )
    print(f"{correct} of {len(val)} validation samples are classified correctly")


if __name__ == "__main__":
    main()
