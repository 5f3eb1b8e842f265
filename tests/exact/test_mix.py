"""Mixes: how many samples of each dataset make an epoch."""

from __future__ import annotations

import pickle

import pytest

from harness.datasets import write_shards
from tarmac.errors import UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.mix import Mix
from tarmac.indexing.build import manifest_of


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    def manifest(counts):
        return manifest_of(write_shards(tmp_path_factory.mktemp("mix"), counts))

    return manifest([4, 6]), manifest([3]), manifest([0])


@pytest.fixture
def sets(manifests):
    datasets = [Dataset(manifest) for manifest in manifests]
    yield datasets
    for ds in datasets:
        ds.close()


def test_weights_divide_an_epoch(sets):
    ten, three, _ = sets
    assert Mix([(ten, 0.5), (three, 0.5)]).counts in ((6, 7), (7, 6))
    mix = Mix([(ten, 3), (three, 1)], samples=1000)
    assert (mix.counts, len(mix)) == ((750, 250), 1000)
    assert Mix([(ten, 1.0)]).counts == (10,)


def test_counts(sets):
    ten, three, none = sets
    assert Mix([ten, three]).counts == (10, 3)
    assert Mix([ten.take_per_epoch(4), three.repeat(2.5), ten]).counts == (4, 8, 10)
    assert Mix([Mix([ten, three]), three]).counts == (10, 3, 3)
    assert Mix([ten, none]).counts == (10, 0)
    assert (len(ten.repeat(3)), len(three.take_per_epoch(100)), len(ten.repeat(0))) == (30, 100, 0)


def test_samples_are_numbered_over_all_datasets(sets):
    ten, three, none = sets
    mix = Mix([ten.take_per_epoch(1), none, three.map(lambda s: int(s["cls"]) + 100)])
    assert [s if isinstance(s, int) else int(s["cls"]) for s in mix.batch([9, 10, 12, 0])] == [9, 100, 102, 0]
    assert mix.__getitems__([11]) == [101]
    assert [mix.key(number) for number in (9, 10)] == ["00009", "00000"]


def test_repr(sets):
    ten, three, none = sets
    mix = Mix([ten.take_per_epoch(1), none, three]).decode()
    assert repr(mix) == "<Mix: samples per epoch 4; datasets 1 of 10, 0 of 0, 3 of 3; steps Decode>"
    assert "<td>1 of 10, 0 of 0, 3 of 3</td>" in mix._repr_html_()


def test_fingerprints(sets):
    ten, three, _ = sets
    mixes = [
        Mix([ten, three]),
        Mix([three, ten]),
        Mix([ten.take_per_epoch(9), three]),
        Mix([ten[1:], three]),
        ten.take_per_epoch(10),
        ten.repeat(2),
    ]
    assert len({mix.fingerprint for mix in mixes}) == len(mixes)
    assert Mix([ten, three]).fingerprint == mixes[0].fingerprint == mixes[0].map(str).fingerprint


def test_pickles(sets):
    ten, three, _ = sets
    mix = Mix([ten.take_per_epoch(4), three])
    size = len(pickle.dumps(mix))
    assert len(mix.batch([12])) == 1
    assert len(pickle.dumps(mix)) == size
    copy = pickle.loads(pickle.dumps(mix))
    assert (copy.counts, copy.fingerprint) == (mix.counts, mix.fingerprint)


def test_invalid_arguments(sets):
    ten, three, none = sets
    for items in ([], [(ten, 1), three], ["a.tar"], [("a.tar", 1)], [None], [(Mix([ten]), 1)]):
        with pytest.raises(UsageError, match="`items`"):
            Mix(items)
    with pytest.raises(UsageError, match="`samples`"):
        Mix([ten, three], samples=5)
    for create in (lambda: none.take_per_epoch(3), lambda: ten.take_per_epoch(-1), lambda: ten.repeat(-1)):
        with pytest.raises(UsageError, match="dataset"):
            create()
    with pytest.raises(UsageError, match=r"\b5 .*\b0\b"):
        Mix([(ten, 1), (none, 1)])
    with pytest.raises(TypeError):
        ten.take_per_epoch(1.5)
    for weights in ((-1, 1), (0, 0), (float("nan"), 1)):
        with pytest.raises(UsageError, match="`weights`"):
            Mix([(ten, weights[0]), (three, weights[1])])
