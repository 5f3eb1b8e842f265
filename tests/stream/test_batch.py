"""Collating samples into batches and lists, and the inverse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tarmac.errors import MismatchedBatch, UsageError
from tarmac.stream.batch import Batched, default_collation_fn, slice_stage, unbatched, unlisted


def test_collation_of_tuples():
    numbers, arrays, tensors, words = default_collation_fn(
        [(1, np.zeros((2, 3)), torch.ones(2), "a"), (2, np.ones((2, 3)), torch.ones(2), "b")]
    )
    assert numbers.tolist() == [1, 2]
    assert arrays.shape == (2, 2, 3)
    assert isinstance(tensors, torch.Tensor)
    assert tensors.shape == (2, 2)
    assert words == ["a", "b"]


def test_collation_of_dictionaries_and_its_options():
    batch = default_collation_fn([{"a": 1, "b": np.zeros(2)}, {"b": np.ones(2), "a": 2}])
    assert batch["a"].tolist() == [1, 2]
    assert batch["b"].shape == (2, 2)
    plain = default_collation_fn([(1, np.zeros(2))] * 2, combine_tensors=False, combine_scalars=False)
    assert plain[0] == [1, 1]
    assert isinstance(plain[1], list)


def test_mismatches_raise():
    with pytest.raises(MismatchedBatch, match=r"\(2,\).*\(3,\)"):
        default_collation_fn([(np.zeros(2),), (np.zeros(3),)])
    with pytest.raises(MismatchedBatch, match=r'sample "k2".*"x"'):
        default_collation_fn([{"__key__": "k1", "x": np.zeros(2)}, {"__key__": "k2", "x": np.zeros(3)}])
    with pytest.raises(MismatchedBatch, match="b"):
        default_collation_fn([{"a": 1}, {"a": 1, "b": 2}])
    with pytest.raises(MismatchedBatch, match="1 and 2"):
        default_collation_fn([(1,), (1, 2)])


def test_batches_come_when_they_are_full():
    read = []

    def source():
        for i in range(10):
            read.append(i)
            yield i

    batches = iter(Batched(4, None)(source()))
    assert next(batches) == [0, 1, 2, 3]
    assert read == [0, 1, 2, 3]


def test_partial_batches():
    assert [len(batch) for batch in Batched(4, None)(range(10))] == [4, 4, 2]
    assert [len(batch) for batch in Batched(4, None, partial=False)(range(10))] == [4, 4]
    with pytest.raises(UsageError, match="batchsize"):
        Batched(0)


def test_unbatched_inverts_batched():
    rows = [(i, np.full(2, i), f"{i}") for i in range(7)]
    back = list(unbatched()(Batched(3)(rows)))
    assert [(int(a), b.tolist(), c) for a, b, c in back] == [(a, b.tolist(), c) for a, b, c in rows]
    samples = [{"a": i, "b": f"{i}"} for i in range(5)]
    assert list(unbatched()(Batched(2)(samples))) == samples
    for bad in ({"a": [1], "b": [1, 2]}, ([1], [1, 2])):
        with pytest.raises(MismatchedBatch, match="lengths"):
            list(unbatched()([bad]))
    with pytest.raises(MismatchedBatch, match="int"):
        list(unbatched()([5]))


def test_lists_and_slices():
    assert list(unlisted()([[1, 2], [3]])) == [1, 2, 3]
    with pytest.raises(MismatchedBatch, match="int"):
        list(unlisted()([5]))
    assert list(slice_stage(2)(range(10))) == [0, 1]
    assert list(slice_stage(1, 9, 3)(range(10))) == [1, 4, 7]
