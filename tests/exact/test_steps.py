"""The steps of a dataset, for samples by number."""

from __future__ import annotations

import pytest

import tarmac
from harness.datasets import write_shards
from tarmac.errors import DecodeFailed, MissingField, TarmacError, TransformFailed
from tarmac.exact.dataset import Dataset
from tarmac.exact.mix import Mix
from tarmac.exact.steps import apply_steps, seeded_generator
from tarmac.steps.fields import Map

GOLDEN = (0.564855755117524, 0.0940302526736706)


@pytest.fixture
def ds(tmp_path):
    dataset = Dataset(write_shards(tmp_path, [3, 2]))
    yield dataset
    dataset.close()


def everywhere(ds):
    """Return all items, after checking that every way to read them gives the same."""
    listed = list(ds)
    assert [ds[i] for i in range(len(ds))] == listed
    assert ds.batch(range(len(ds))) == listed
    return listed


def test_steps_are_applied_in_order(ds):
    done = (
        ds.decode()
        .rename(number="cls", text="txt")
        .map_dict(number=lambda n: n + 1)
        .associate(lambda key: {"more": key})
        .map(lambda sample: sample | {"last": True})
        .to_tuple("number", "more", "last")
        .map_tuple(lambda n: n * 10, None, str)
    )
    assert everywhere(done) == [((i + 1) * 10, f"{i:05d}", "True") for i in range(5)]
    assert done.get("00003") == (40, "00003", "True")
    assert list(ds[0]) == ["__key__", "__url__", "cls", "txt"]  # the original dataset is unchanged
    assert repr(done).endswith("steps Decode, Rename, MapDict, Associate, Map(<lambda>), ToTuple, MapTuple>")


def test_dictionaries_stay_as_they_are(ds):
    def arguments(sample, rng=None):
        return {"x": int(sample["cls"])}

    expected = [{"x": i} for i in range(5)]
    assert everywhere(ds.map(arguments)) == everywhere(ds.map(arguments, random=True)) == expected
    assert Mix([ds]).map(arguments).batch([0, 4]) == [{"x": 0}, {"x": 4}]
    assert next(iter(tarmac.Loader(ds.map(arguments), 5, shuffle=False)))["x"].tolist() == [0, 1, 2, 3, 4]


def test_steps_stay_with_their_samples(ds):
    a, b = ds[:2].map(lambda s: "a"), ds[2:].map(lambda s: "b")
    assert everywhere(a + b) == list("aabbb")
    assert everywhere((a + b).map(str.upper)) == list("AABBB")
    assert everywhere(ds.map(lambda s: int(s["cls"])).where("key > '00002'")) == [3, 4]
    assert Mix([a, b]).map(str.upper).batch([0, 4]) == ["A", "B"]


def test_random_numbers_come_from_the_seed(ds):
    drawn = ds.map(lambda s, rng: rng.random(), random=True)
    twice = drawn.map(lambda x, rng: (x, rng.random()), random=True)
    assert twice.batch([0, 1], seeds=[7, 8]) == twice.batch([3, 4], seeds=[7, 8])
    (first,), (other,) = twice.batch([0], seeds=[7]), twice.batch([0], seeds=[8])
    assert first != other
    assert first[0] != first[1]  # one generator for all steps of a sample
    assert tuple(seeded_generator(7).random(2)) == first
    assert first == GOLDEN  # resumed epochs rely on these numbers
    assert drawn[0] != drawn[0]  # without a seed, each access draws new numbers
    assert drawn[0] != drawn[0]  # outside of a loader they are not seeded
    with pytest.raises(ValueError, match="zip"):
        drawn.batch([0, 1], seeds=[7])


def test_errors_name_the_sample(ds):
    def fail(sample):
        sample.clear()  # whatever a function does to its sample
        raise RuntimeError("oh")

    with pytest.raises(RuntimeError, match="oh") as caught:
        ds.map(fail)[3]
    assert caught.value.__notes__ == [f'at sample "00003" of {ds[3]["__url__"]}']
    with pytest.raises(MissingField) as missing:
        ds.to_tuple("jpg")[1]
    assert (missing.value.key, missing.value.url) == ("00001", ds[1]["__url__"])
    broken = ds.map(lambda sample: {"__key__": sample["__key__"], "npy": sample["txt"]})
    with pytest.raises(DecodeFailed) as failed:
        broken.decode()[1]
    assert failed.value.key == "00001"


def test_a_step_must_not_return_none(ds):
    with pytest.raises(TransformFailed, match=r"Map\(<lambda>\) .*None") as caught:
        ds.map(lambda s: None)[4]
    assert caught.value.key == "00004"
    assert "where()" in str(caught.value)


@pytest.mark.parametrize("error", [RuntimeError("x"), TarmacError("x.")])
def test_secrets_stay_out_of_messages(error):
    def fail(_sample):
        raise error

    with pytest.raises(type(error)) as caught:
        apply_steps([Map(fail)], {"__key__": "a", "__url__": "https://host/a.tar?sig=secret"}, None)
    message = f"{caught.value} {getattr(caught.value, '__notes__', '')}"
    assert "host/a.tar" in message
    assert "secret" not in message
