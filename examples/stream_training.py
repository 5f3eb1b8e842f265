"""Stream shards through a WebDataset pipeline into batches.

Run it anywhere: `python stream_training.py`. It needs no index and no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tarmac

SAMPLES, FEATURES = 1000, 8


def write_shards(directory: Path) -> str:
    """Write a dataset of small vectors and return a pattern for its shards."""
    rng = np.random.default_rng(0)
    with tarmac.ShardWriter(f"{directory}/train-%04d.tar", max_samples=250) as writer:
        for number in range(SAMPLES):
            vector = rng.normal(size=FEATURES).astype(np.float32)
            writer.write({"__key__": f"{number:05d}", "npy": vector, "cls": int(vector.sum() > 0)})
    return f"{directory}/train-{{0000..0003}}.tar"


def normalise(vector: Any) -> Any:
    """Scale a vector to length one."""
    return vector / np.linalg.norm(vector)


def main() -> None:
    """Train for three epochs."""
    pipeline = (
        tarmac.WebDataset(write_shards(Path.cwd()), shardshuffle=4, seed=1)
        .shuffle(200, seed=1)
        .decode()
        .to_tuple("npy", "cls")
        .map_tuple(normalise, None)
        .batched(50)
    )

    # Logistic regression by gradient descent, one pass over the data per epoch.
    weights = np.zeros(FEATURES)
    for epoch in range(3):
        samples = correct = 0
        for vectors, labels in pipeline:
            assert vectors.shape == (50, FEATURES)
            logits = vectors @ weights
            correct += int(((logits > 0) == labels).sum())
            samples += len(labels)
            weights -= 0.1 * vectors.T @ (1 / (1 + np.exp(-logits)) - labels)
        assert samples == SAMPLES
        print(f"epoch {epoch}: {correct / samples:.0%} correct")
    assert correct / samples > 0.9


if __name__ == "__main__":
    main()
