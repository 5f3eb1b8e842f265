"""Mock data, epochs and lengths of any iterable, and compositions."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest
from tarmac.webdataset.filters import _rsample, _shuffle, compose, compose2, pipeline
from tarmac.webdataset.mix import random_samples, round_robin_longest, round_robin_shortest
from tarmac.webdataset.utils import guess_batchsize
from torch.utils.data import DataLoader, IterableDataset

from tarmac.webdataset import MockDataset, extradatasets, repeatedly, with_epoch, with_length


def double(items):
    return (2 * item for item in items)


def add_one(items):
    return (item + 1 for item in items)


def test_mock_data():
    assert list(MockDataset({"x": 1}, 3)) == [{"x": 1}] * 3
    assert list(DataLoader(MockDataset(1, 4), batch_size=None)) == [1] * 4


def test_epochs_continue_where_the_previous_one_stopped():
    dataset = with_epoch(range(5), 3)
    assert isinstance(dataset, IterableDataset)
    assert len(dataset) == 3
    assert [list(dataset) for _ in range(4)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]
    assert list(pickle.loads(pickle.dumps(dataset))) == [0, 1, 2]
    assert list(with_epoch(range(2), 5)) == [0, 1, 0, 1, 0]
    assert list(with_epoch([], 5)) == []


def test_lengths():
    dataset = with_length(range(5), 100)
    assert len(dataset) == 100
    assert list(dataset) == list(dataset) == [0, 1, 2, 3, 4]


def test_repeatedly():
    assert list(repeatedly([1, 2], nepochs=2)) == [1, 2, 1, 2]
    assert list(repeatedly([1, 2], nbatches=3)) == [1, 2, 1]
    assert list(repeatedly([([1, 2],), ([3],)], nsamples=4)) == [([1, 2],), ([3],), ([1, 2],)]
    assert list(repeatedly([1, 2, 3], nsamples=4, batchsize=int)) == [1, 2, 3][:3]
    assert list(itertools.islice(repeatedly([1, 2]), 5)) == [1, 2, 1, 2, 1]
    assert list(repeatedly([])) == []
    assert list(repeatedly(iter([1, 2]))) == [1, 2]
    read = []
    assert list(repeatedly((read.append(i) or i for i in range(9)), nbatches=2)) == [0, 1]
    assert read == [0, 1]


def test_repeated_dataset():
    assert list(extradatasets.repeatedly([1, 2], nepochs=2)) == [1, 2, 1, 2]
    assert len(extradatasets.repeatedly([1, 2], nbatches=3, length=9)) == 9
    assert not hasattr(extradatasets.repeatedly([1]), "__len__")


def test_compositions():
    assert list(compose(double, add_one)([1, 2])) == [3, 5]
    assert list(pickle.loads(pickle.dumps(compose2(add_one, double)))([1, 2])) == [4, 6]
    assert list(pipeline([1, 2], double)) == [2, 4]
    assert pipeline([1, 2]) == [1, 2]
    with pytest.raises(ValueError, match="compose"):
        compose()


def test_shuffling_an_iterator():
    assert list(_shuffle(range(50), 10, 5, random.Random(1))) == list(_shuffle(range(50), 10, 5, seed=1))
    runs = [tuple(_shuffle(range(50))) for _ in range(3)]
    assert len(set(runs)) == 3
    assert all(sorted(run) == list(range(50)) for run in runs)
    with pytest.raises(ValueError, match="`seed`"):
        _shuffle([], rng=random.Random(), seed=1)


def test_random_selection():
    assert 0 < len(list(_rsample(range(1000), 0.5))) < 1000
    assert sorted(random_samples([[1, 2], [3]], longest=True)) == [1, 2, 3]
    assert list(round_robin_shortest([1, 2], [3])) == [1, 3, 2]
    assert list(round_robin_longest(iter([1, 2, 5]), iter([3]))) == [1, 3, 2, 5]
    assert guess_batchsize(([1, 2], 3)) == 2
