"""A resumed pipeline yields exactly the items that the saved one would have yielded, in random pipelines.

So do the epochs after it, also after interrupted epochs, and a resumed pipeline that is saved and resumed again. A
pipeline that cannot be resumed raises in `state_dict`.
"""

from __future__ import annotations

import json
from itertools import islice

import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

import tarmac
import tarmac.webdataset as wds
from harness import rounds
from harness.random_pipelines import MOST, Pipeline, key_of, pipelines
from harness.readers import World, make_shards
from tarmac.errors import NoSamples, NotResumable, StateMismatch

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::tarmac.errors.NoBatches"),
]


def law(examples):
    return settings(
        deadline=None,
        derandomize=True,
        max_examples=rounds(examples),
        phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes, and examples are small
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards")
    make_shards(directory)
    return directory


PREVIOUS = st.lists(st.one_of(st.just(None), st.integers(1, 6)), max_size=3)
"""Epochs before the saved one: complete ones (None), or the first few items."""
STEPS = st.lists(st.integers(0, MOST - 1), min_size=1, max_size=3)


def check(pipeline: Pipeline, previous, steps, shards):
    try:
        _check(pipeline, previous, steps, shards)
    except NotResumable as error:
        assert "persistent workers" in str(error)  # noqa: PT017
        reject()
    except NoSamples:  # batches that are never full, or an empty slice, in epochs of a fixed length
        reject()


def _check(pipeline: Pipeline, previous, steps, shards):
    whole = pipeline.make(shards)
    for count in previous:
        for _ in islice(whole, count or MOST):
            pass
    states, items = [whole.state_dict()] if not previous else [], []
    for item in islice(whole, MOST):
        states.append(json.loads(json.dumps(whole.state_dict())))
        items.append(item)
    first = len(items) + 1 - len(states)
    following = list(islice(whole, MOST))
    for step in {min(max(step, first), len(items)) for step in steps}:
        if not len(states) > step - first >= 0:
            continue
        resumed = pipeline.make(shards)
        resumed.load_state_dict(states[step - first])
        assert resumed.state_dict() == states[step - first]
        iterator = iter(resumed)
        head = list(islice(iterator, min(2, MOST - step)))
        second = json.loads(json.dumps(resumed.state_dict()))
        rest = head + list(islice(iterator, MOST - step - len(head)))
        assert rest == items[step:]
        assert list(islice(resumed, MOST)) == following
        third = pipeline.make(shards)
        third.load_state_dict(second)
        assert list(islice(third, MOST - step - len(head))) == items[step + len(head) :]


@law(250)
@given(pipelines(st.none()), PREVIOUS, STEPS)
def test_pipelines(shards, pipeline, previous, steps):
    check(pipeline, previous, steps, shards)


@law(150)
@given(pipelines(st.just(0)), PREVIOUS, STEPS)
def test_loaders_without_workers(shards, pipeline, previous, steps):
    check(pipeline, previous, steps, shards)


@pytest.mark.heavy
@law(12)
@given(pipelines(st.integers(1, 3)), PREVIOUS, STEPS)
def test_loaders_with_workers(shards, pipeline, previous, steps):
    check(pipeline, previous, steps, shards)


# Pipelines that once failed, each at every step.


def web(shards, **options):
    return tarmac.WebDataset(World([5, 5, 5, 5]).urls(shards), **options).map(key_of)


def identity(item):
    return item


SHAPES = {
    "threads before a shuffle": lambda s: web(s).map(identity, threads=2).shuffle(5),
    "threads before a slice": lambda s: web(s).map(identity, threads=2).slice(15),
    "threads behind a mixture": lambda s: wds.FluidWrapper(
        wds.RandomMix([web(s), web(s, seed=2)], longest=True, seed=3)
    ).map(identity, threads=2),
    "threads behind round robin": lambda s: wds.FluidWrapper(wds.RoundRobin([web(s), web(s)])).map(
        identity, threads=1
    ),
    "threads behind a loader": lambda s: tarmac.WebLoader(web(s), batch_size=None).map(identity, threads=2),
    "two stages with threads": lambda s: web(s).map(identity, threads=2).listed(2).map(identity, threads=1),
    "random seed behind a loader": lambda s: (
        tarmac.WebLoader(web(s, resampled=True).shuffle(5).listed(4), batch_size=None)
        .unlisted()
        .shuffle(10)
        .listed(3)
        .with_epoch(8)
    ),
    "last batch of a loader": lambda s: tarmac.WebLoader(web(s), batch_size=None).listed(3),
    "cache in memory": lambda s: web(s, shardshuffle=True).mcached().shuffle(3),
    "cache filled ahead of an end": lambda s: (
        web(s, shardshuffle=True).mcached().rsample(0.6).map(identity, threads=1).with_epoch(9)
    ),
    "random seed of a list": lambda s: tarmac.DataPipeline(
        wds.SimpleShardList(World([5, 5, 5, 5]).urls(s), seed=True), wds.tarfile_to_samples()
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_pipelines_that_once_failed(shards, shape):
    pipeline = type("Shape", (), {"make": staticmethod(SHAPES[shape])})
    for previous in ([], [None], [2], [None, 2]):
        _check(pipeline, previous, range(MOST), shards)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_peek_loses_nothing(shards, workers, persistent):
    loader = tarmac.WebLoader(
        web(shards), batch_size=None, num_workers=workers, persistent_workers=persistent and workers > 0
    )
    next(iter(loader))
    assert sorted(loader) == World([5, 5, 5, 5]).keys
    sliced = loader.slice(13)
    assert [len(list(sliced)) for _ in range(4)] == [13] * 4


def test_a_generator_given_to_a_shuffle_is_saved(shards):
    import random

    class Shape:
        @staticmethod
        def make(s):
            return web(s).shuffle(5, rng=random.Random(7))

    _check(Shape, [None, 2], range(MOST), shards)


def test_set_epoch_keeps_a_state_of_the_same_epoch(shards):
    dataset = web(shards, shardshuffle=True).shuffle(4)
    dataset.set_epoch(3)
    items = iter(dataset)
    head = list(islice(items, 6))
    state, rest = dataset.state_dict(), list(items)
    resumed = web(shards, shardshuffle=True).shuffle(4)
    resumed.load_state_dict(state)
    resumed.set_epoch(3)
    assert list(resumed) == rest
    other = web(shards, shardshuffle=True).shuffle(4)
    other.load_state_dict(state)
    other.set_epoch(4)
    assert sorted(other) == sorted(head + rest)


def test_a_state_before_the_first_item_is_the_beginning_of_the_epoch(shards):
    def make():
        return web(shards, shardshuffle=True).shuffle(4)

    counted = make()
    epochs = [list(counted) for _ in range(5)]
    dataset = make()
    list(dataset)
    items = iter(dataset)
    states = {1: dataset.state_dict()}
    del items
    dataset.set_epoch(3)
    states[3] = dataset.state_dict()
    list(dataset)
    dataset.set_epoch(2)
    states[2] = dataset.state_dict()
    for number, state in states.items():
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert list(resumed) == epochs[number]
        assert list(resumed) == epochs[number + 1]


def test_a_state_of_another_pipeline_raises(shards):
    dataset = web(shards, shardshuffle=True, seed=3).shuffle(4)
    next(iter(dataset))
    state = dataset.state_dict()
    others = [
        web(shards, shardshuffle=True, seed=4).shuffle(4),
        web(shards, shardshuffle=True, seed=3).shuffle(5),
        tarmac.WebDataset(World([5, 5, 5]).urls(shards), shardshuffle=True, seed=3).map(key_of).shuffle(4),
    ]
    for other in others:
        with pytest.raises(StateMismatch, match="pipeline"):
            other.load_state_dict(state)
    with pytest.raises(StateMismatch, match="'user_epoch'"):
        dataset.load_state_dict({name: value for name, value in state.items() if name != "user_epoch"})


# Pipelines that cannot be resumed raise.


def test_pipelines_without_a_state(tmp_path):
    queue = tmp_path / "queue"
    queue.mkdir()
    directory = tarmac.DataPipeline(wds.DirectoryShardList(queue), wds.tarfile_to_samples())
    with pytest.raises(NotResumable, match="directory"):
        directory.state_dict()
    with pytest.raises(NotResumable, match="sampler of torch"):
        tarmac.WebLoader(list(range(8)), shuffle=True).state_dict()
    assert tarmac.WebLoader(list(range(8))).state_dict()
    with pytest.raises(NotResumable, match="with_epoch"):
        wds.FluidWrapper(wds.with_epoch([1, 2, 3], 2)).state_dict()
    mixed = wds.RoundRobin([directory, [1]])
    with pytest.raises(NotResumable, match="directory"):
        mixed.state_dict()


def test_a_state_of_another_rank_raises(shards, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    states = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        dataset = web(shards, nodesplitter=wds.split_by_node)
        next(iter(dataset))
        states.append(dataset.state_dict())
    dataset.load_state_dict(states[1])
    with pytest.raises(StateMismatch, match=r"rank 0.*rank 1"):
        dataset.load_state_dict(states[0])


def test_a_state_needs_its_cache_on_disk(shards, tmp_path):
    def make(name):
        return web(shards, shardshuffle=True).db_cached(str(tmp_path / name))

    dataset = make("a.db")
    list(dataset)
    items = iter(dataset)
    list(islice(items, 3))
    state, rest = dataset.state_dict(), list(items)
    resumed = make("a.db")
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    with pytest.raises(StateMismatch, match=r"b\.db"):
        make("b.db").load_state_dict(state)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=6,
)


@settings(deadline=None, derandomize=True, max_examples=rounds(300))
@given(st.data())
def test_invalid_states_raise_state_mismatch(shards, data):
    """A state with any contents is either accepted or raises StateMismatch, and nothing else."""
    kind = data.draw(st.sampled_from(sorted(SHAPES)))
    make = SHAPES[kind]
    dataset = make(shards)
    list(islice(dataset, 3))
    state = json.loads(json.dumps(dataset.state_dict()))
    for _ in range(data.draw(st.integers(1, 2))):
        part = state
        while True:
            options = list(part) if isinstance(part, dict) else range(len(part))
            key = data.draw(st.sampled_from(options))
            if isinstance(part[key], dict | list) and part[key] and data.draw(st.booleans()):
                part = part[key]
                continue
            part[key] = data.draw(JSON)
            break
    other = make(shards)
    try:
        other.load_state_dict(data.draw(st.just(state) | JSON))
        list(islice(other, 3))
    except StateMismatch:
        pass
