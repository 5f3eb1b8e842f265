"""A directory may have more parts than a process may have open files."""

from __future__ import annotations

import os
import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tarmac

PARTS, ROWS, LIMIT = 200, 3, 100


@pytest.fixture
def few_descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_parts_than_descriptors(tmp_path, few_descriptors):
    vectors = np.random.default_rng(0).normal(size=(PARTS, ROWS, 4)).astype(np.float16)
    for folder in ("img_emb", "metadata"):
        (tmp_path / folder).mkdir()
    for part in range(PARTS):
        np.save(tmp_path / f"img_emb/img_emb_{part:03d}.npy", vectors[part])
        keys = [f"{part:03d}-{row}" for row in range(ROWS)]
        pq.write_table(pa.table({"image_path": keys}), tmp_path / f"metadata/metadata_{part:03d}.parquet")
    before = len(os.listdir("/proc/self/fd"))

    embeddings = tarmac.Embeddings(tmp_path)

    assert np.array_equal(embeddings[:], vectors.reshape(-1, 4).astype(np.float32))
    assert embeddings.keys()[-1] == f"{PARTS - 1:03d}-{ROWS - 1}"
    assert np.array_equal(embeddings["150-1"], vectors[150, 1].astype(np.float32))
    assert len(os.listdir("/proc/self/fd")) == before
