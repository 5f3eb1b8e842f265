"""Several datasets in one epoch: how many samples of each."""

from __future__ import annotations

import pickle

import pytest

from harness.datasets import write_shards
from tarmac.exact.dataset import Dataset
from tarmac.exact.mix import Mix
from tarmac.indexing.build import manifest_of


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    def made(counts):
        return manifest_of(write_shards(tmp_path_factory.mktemp("mix"), counts))

    return made([4, 6]), made([3]), made([0])


@pytest.fixture
def sets(manifests):
    found = [Dataset(manifest) for manifest in manifests]
    yield found
    for ds in found:
        ds.parts[0].shards.close()


def test_weights_share_out_an_epoch(sets):
    ten, three, _ = sets
    assert Mix([(ten, 0.5), (three, 0.5)]).counts in ((6, 7), (7, 6))
    mix = Mix([(ten, 3), (three, 1)], samples=1000)
    assert (mix.counts, len(mix)) == ((750, 250), 1000)
    assert Mix([(ten, 1.0)]).counts == (10,)


def test_numbers_of_each(sets):
    ten, three, none = sets
    assert Mix([ten, three]).counts == (10, 3)
    assert Mix([ten.choose(4), three.repeat(2.5), ten]).counts == (4, 8, 10)
    assert Mix([Mix([ten, three]), three]).counts == (10, 3, 3)
    assert Mix([ten, none]).counts == (10, 0)
    assert (len(ten.repeat(3)), len(three.choose(100)), len(ten.repeat(0))) == (30, 100, 0)


def test_samples_are_numbered_through_all_datasets(sets):
    ten, three, none = sets
    mix = Mix([ten.choose(1), none, three.map(lambda s: int(s["cls"]) + 100)])
    assert [s if isinstance(s, int) else int(s["cls"]) for s in mix.batch([9, 10, 12, 0])] == [9, 100, 102, 0]
    assert mix.__getitems__([11]) == [101]
    assert [mix.key_of(number) for number in (9, 10)] == ["00009", "00000"]
    assert len(mix.together) == 13
    assert [sample["__key__"] for sample, _ in mix.fetch([9, 10])] == ["00009", "00000"]
    assert "11" not in repr(mix)
    assert repr(mix) == "<Mix of 4 samples an epoch, 1 + 0 + 3>"


def test_fingerprints(sets):
    ten, three, _ = sets
    mixes = [
        Mix([ten, three]),
        Mix([three, ten]),
        Mix([ten.choose(9), three]),
        Mix([ten[1:], three]),
        ten.choose(10),
        ten.repeat(2),
    ]
    assert len({mix.fingerprint for mix in mixes}) == len(mixes)
    assert Mix([ten, three]).fingerprint == mixes[0].fingerprint == mixes[0].map(str).fingerprint


def test_pickles(sets):
    ten, three, _ = sets
    mix = Mix([ten.choose(4), three])
    before = len(pickle.dumps(mix))
    assert len(mix.together) == 13
    assert len(pickle.dumps(mix)) == before
    copy = pickle.loads(pickle.dumps(mix))
    assert (copy.counts, copy.fingerprint) == (mix.counts, mix.fingerprint)


def test_what_is_refused(sets):
    ten, three, none = sets
    for items in ([], [(ten, 1), three], ["a.tar"], [("a.tar", 1)], [None], [(Mix([ten]), 1)]):
        with pytest.raises(ValueError, match="a Mix is made of"):
            Mix(items)
    with pytest.raises(ValueError, match="goes with weights"):
        Mix([ten, three], samples=5)
    for make in (lambda: none.choose(3), lambda: ten.choose(-1), lambda: ten.repeat(-1)):
        with pytest.raises(ValueError, match="to come from a dataset"):
            make()
    with pytest.raises(ValueError, match="to come from a dataset of 0"):
        Mix([(ten, 1), (none, 1)])
    with pytest.raises(TypeError):
        ten.choose(1.5)
    for weights in ((-1, 1), (0, 0), (float("nan"), 1)):
        with pytest.raises(ValueError):
            Mix([(ten, weights[0]), (three, weights[1])])
