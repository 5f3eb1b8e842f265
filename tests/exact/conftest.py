from __future__ import annotations

import numpy as np
import pytest

import tarmac

LENGTHS = (7, 31, 1, 40, 12, 25, 3, 38, 20, 26)  # 203 samples


def write_shards(folder, lengths=LENGTHS, prefix="s"):
    """Shards whose samples have a class, a small array and a text; indexed while they are written."""
    paths, number = [], 0
    for shard, length in enumerate(lengths):
        path = folder / f"{prefix}-{shard:03d}.tar"
        with tarmac.TarWriter(path, index=True) as writer:
            for _ in range(length):
                array = np.full((4, 3), number, np.float32)
                writer.write({"__key__": f"{prefix}{number:05d}", "cls": number, "npy": array, "txt": "t"})
                number += 1
        paths.append(str(path))
    return paths


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture
def dataset(shards):
    dataset = tarmac.Dataset(shards).decode()
    yield dataset
    dataset.close()
