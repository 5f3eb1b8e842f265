from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import MismatchedBatch
from tarmac.exact.loader.collate import BatchBuffer
from tarmac.stream.batch import default_collation_fn


def collated(items):
    buffer = BatchBuffer(len(items))
    for slot in reversed(range(len(items))):  # any order
        buffer.put(slot, items[slot])
    return buffer.result()


def same(one, other):
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


values = st.sampled_from(
    [
        lambda i: i,
        lambda i: i / 2,
        lambda i: i % 2 == 0,
        lambda i: f"text {i}",
        lambda i: bytes([i]),
        lambda i: np.full((2, 3), i, np.uint8),
        lambda i: np.arange(24, dtype=np.uint8).reshape(2, 4, 3)[:, ::-1],
        lambda i: np.arange(i, i + 24, dtype=np.int16).reshape(2, 4, 3)[:, ::-1],
        lambda i: np.arange(i, i + 24.0).reshape(2, 4, 3)[::-1, ::2],
        lambda i: np.arange(i, i + 24.0).reshape(2, 4, 3).transpose(2, 0, 1),
        lambda i: np.arange(i, i + 24.0).reshape(2, 4, 3)[..., ::-1],
        lambda i: np.array(["mirror", str(i)] * 2).reshape(2, 2)[::-1],
        lambda i: np.zeros((2, 3, 0))[:, ::-1],
        lambda i: np.float32(i),
        lambda i: np.array(i),
        lambda i: [i, i],
        lambda i: None,
        lambda i: {"nested": i},
    ]
)


@given(st.lists(values, min_size=1, max_size=4), st.integers(1, 5), st.booleans())
@settings(derandomize=True, deadline=None)
def test_batches_are_those_of_a_pipeline(functions, size, named):
    items = [tuple(f(i) for f in functions) for i in range(size)]
    if named:
        items = [{f"f{number}": value for number, value in enumerate(item)} for item in items]
    ours, theirs = collated(items), default_collation_fn(items)
    if named:
        assert ours.keys() == theirs.keys()
        ours, theirs = tuple(ours.values()), tuple(theirs.values())
    assert all(map(same, ours, theirs))


def test_items_that_are_not_tuples_make_one_column():
    assert collated(["a", "b"]) == ["a", "b"]
    assert collated([np.arange(3), np.arange(3)]).shape == (2, 3)


def test_tensors_are_stacked():
    torch = pytest.importorskip("torch")
    batch = collated([(torch.full((2,), i), i) for i in range(3)])
    assert batch[0].shape == (3, 2)
    assert batch[0].tolist() == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(MismatchedBatch, match=r"\(3,\).*\(2,\)"):
        collated([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(MismatchedBatch, match=r"\(\).*\bstr\b"):
        collated(["x", torch.tensor(1)])


@pytest.mark.parametrize(
    ("items", "match"),
    [
        ([np.zeros(2), np.zeros(3)], r"\(3,\).*\(2,\)"),
        ([np.zeros(2), np.zeros(2, np.float32)], "float32.*float64"),
        (["x", np.zeros(2)], r"\(2,\).*\bstr\b"),
        ([{"a": 1}, {"b": 1}], "a, b"),
        ([(1, 2), (1, 2, 3)], "2"),
        ([(1,), {0: 1}], "fields"),
    ],
)
def test_mismatched_samples(items, match):
    with pytest.raises(MismatchedBatch, match=match):
        collated(items)


def test_many_threads_fill_one_batch():
    buffer, barrier = BatchBuffer(400), threading.Barrier(8)

    def fill(start):
        barrier.wait()
        for slot in range(start, 400, 8):
            buffer.put(slot, (np.full(10, slot), slot))

    threads = [threading.Thread(target=fill, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrays, numbers = buffer.result()
    assert numbers.tolist() == list(range(400))
    assert (arrays == numbers[:, None]).all()
