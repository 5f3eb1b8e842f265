"""Loaded states: the number of steps of their epoch, and invalid states."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tarmac
from tarmac.errors import LoaderError, StateMismatch, TarmacWarning, UsageError

CLASSES = [tarmac.Loader, tarmac.BatchSampler]


def keys(loader, dataset):
    """Yield the keys of each remaining batch of the epoch."""
    for batch in loader:
        yield batch["__key__"] if isinstance(batch, dict) else [dataset[int(i)]["__key__"] for i in batch]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cls=st.sampled_from(CLASSES),
    runs=st.lists(
        st.tuples(st.integers(1, 5), st.integers(5, 40), st.integers(0, 4)), min_size=2, max_size=4
    ),
)
def test_the_length_is_steps_done_plus_steps_left(sources, cls, runs):
    """Also when resumed with other world sizes; and no sample is lost."""
    dataset, state, done, seen = sources[0], None, 0, []
    for number, (world_size, size, some) in enumerate(runs):
        more = {"seed": 3, "world_size": world_size, "tail": "short", **options(cls)}
        ranks = [cls(dataset, size, rank=rank, **more) for rank in range(world_size)]
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
        batches = [keys(iter(rank), dataset) for rank in ranks]
        left = len(ranks[0]) - done
        steps = left if number == len(runs) - 1 else min(some, left)
        batches = [list(zip(range(steps), rank, strict=False)) for rank in batches]
        assert max(map(len, batches)) == steps
        seen += [key for mine in batches for _, keys in mine for key in keys]
        done += steps
        # With a short tail some ranks have no samples in the last step; the others know the position.
        state = json.loads(
            json.dumps(max((rank.state_dict() for rank in ranks), key=lambda one: one["position"]))
        )
        assert state["step"] == done
    assert sorted(seen) == [sample["__key__"] for sample in dataset]


def options(cls):
    return {"threads": 0} if cls is tarmac.Loader else {}


@pytest.mark.parametrize("cls", CLASSES)
def test_the_length_is_that_of_the_current_epoch(dataset, cls):
    one = cls(dataset, 10)
    batches = iter(one)
    for _ in range(7):
        next(batches)
    assert len(one) == 20
    state = one.state_dict() if cls is tarmac.Loader else one.state_after(7)
    two = cls(dataset, 10, rank=0, world_size=2)
    two.load_state_dict(state)
    assert len(two) == 7 + (203 - 70) // 20
    assert len(list(two)) == 6
    assert len(two) == len(list(two)) == 10  # the next epoch
    back = cls(dataset, 10)
    back.load_state_dict(two.state_dict() | {"position": 60, "step": 3})
    assert len(back) == 3 + 14
    assert (len(list(back)), len(back)) == (14, 20)


@pytest.mark.parametrize("cls", CLASSES)
def test_states_of_earlier_versions_have_no_step(dataset, cls):
    state = cls(dataset, 10).state_dict() | {"position": 50}
    del state["step"]
    loader = cls(dataset, 10, rank=1, world_size=2)
    loader.load_state_dict(state)
    assert len(loader) == 10
    assert len(list(loader)) == 7
    assert loader.state_dict()["step"] == 0


def test_a_length_that_was_read_too_early_is_a_warning(dataset):
    """A trainer that read the length before the state was loaded would end the epoch too early."""
    state = tarmac.Loader(dataset, 5).state_dict() | {"position": 100, "step": 20}
    loader = tarmac.Loader(dataset, 5, rank=0, world_size=2)
    assert len(loader) == 20
    with pytest.warns(TarmacWarning, match=r"\b30\b.*\b20\b"):
        loader.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(state)
        tarmac.Loader(dataset, 5, rank=0, world_size=2).load_state_dict(state)
        same = tarmac.Loader(dataset, 5)
        assert len(same) == 40
        same.load_state_dict(state)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(("size", "world_size"), [(204, 1), (102, 2), (4000, 1), (4, 64)])
def test_samples_that_do_not_fill_a_batch(dataset, cls, size, world_size):
    with pytest.raises(LoaderError, match=rf"\b203 .*\b{size}\b.*tail=") as caught:
        cls(dataset, size, rank=0, world_size=world_size)
    fitting = int(caught.value.hint.partition("batch_size=")[2].partition(" ")[0])
    assert len(cls(dataset, fitting, rank=0, world_size=world_size)) == 1
    assert len(cls(dataset, size, rank=0, world_size=world_size, tail="pad")) == 1
    assert len(cls(dataset, size, rank=0, world_size=world_size, tail="short")) == 1


@pytest.mark.parametrize("cls", CLASSES)
def test_fewer_samples_than_ranks(dataset, cls):
    with pytest.raises(LoaderError) as caught:
        cls(dataset[:3], 1, rank=0, world_size=4)
    assert "batch_size" not in caught.value.hint
    assert [len(list(cls(dataset[:3], 1, rank=rank, world_size=4, tail="short"))) for rank in range(4)] == [
        1,
        1,
        1,
        0,
    ]
    assert [len(list(cls(dataset[:3], 1, rank=rank, world_size=4, tail="pad"))) for rank in range(4)] == [
        1
    ] * 4


@pytest.mark.parametrize("cls", CLASSES)
def test_no_samples(dataset, cls):
    """An empty dataset is an error, except with tail="short", where it yields nothing."""
    for tail in ("drop", "pad"):
        with pytest.raises(LoaderError, match='tail="short"') as caught:
            cls(dataset[:0], 4, tail=tail)
        assert "batch_size=" not in str(caught.value)  # no batch size would help
    empty = cls(dataset[:0], 4, tail="short")
    assert (len(empty), list(empty)) == (0, [])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 80), 1 << 80)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
NAMES = ["tarmac_loader", "seed", "epoch", "position", "shuffle", "streams", "window", "samples", "shards",
         "fingerprint", "step"]  # fmt: skip


@pytest.fixture
def sources(shards):
    dataset = tarmac.Dataset(shards)
    yield [dataset, tarmac.Mix([(dataset[:50], 0.5), (dataset[50:], 0.5)], samples=100)]
    dataset.close()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cls=st.sampled_from(CLASSES),
    number=st.integers(0, 1),
    changes=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3),
)
def test_any_value_in_a_state(sources, cls, number, changes):
    """A state can be loaded and continued, or it is a StateMismatch."""
    loader = cls(sources[number], 16, **options(cls))
    state = loader.state_dict() | changes
    try:
        loader.load_state_dict(state)
    except StateMismatch:
        return
    assert len(loader) >= 0
    json.dumps(loader.state_dict())
    for batch, _ in zip(loader, range(2), strict=False):
        assert len(batch)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cls=st.sampled_from(CLASSES), state=JSON)
def test_any_value_as_a_state(sources, cls, state):
    with pytest.raises(StateMismatch):
        cls(sources[0], 16, **options(cls)).load_state_dict(state)


@pytest.mark.parametrize(
    "changes",
    [{"position": float("nan")}, {"seed": {}}, {"epoch": -1}, {"epoch": float("inf")}, {"epoch": 1 << 70},
     {"position": 204}, {"position": -1}, {"position": True}, {"step": 1}, {"step": -1}, {"shuffle": 1}],
)  # fmt: skip
def test_invalid_values_are_named(dataset, changes):
    loader = tarmac.Loader(dataset, 10)
    with pytest.raises(StateMismatch, match=f" {next(iter(changes))} "):
        loader.load_state_dict(loader.state_dict() | changes)


@pytest.mark.parametrize("cls", CLASSES)
def test_states_are_json_whatever_integers_were_given(dataset, cls):
    number, truth = np.int64(2), np.bool_(True)
    loader = cls(
        dataset, number, seed=number, shuffle=truth, streams=number, window=number, rank=0, world_size=number
    )
    loader.set_epoch(np.int32(1))
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["epoch"], state["position"], state["step"]) == (1, 4, 1)
    plain = cls(dataset, 2, seed=2, streams=2, window=2, rank=0, world_size=2)
    plain.load_state_dict(state)
    assert list(keys(plain, dataset)) == [
        batch["__key__"] if isinstance(batch, dict) else [dataset[int(i)]["__key__"] for i in batch]
        for batch in batches
    ]


def test_invalid_epochs(dataset):
    for epoch in (-1, 1 << 70):
        with pytest.raises(UsageError, match="`epoch`"):
            tarmac.Loader(dataset, 10).set_epoch(epoch)
    loader = tarmac.Loader(dataset, 10)
    loader.set_epoch(np.int64(3))
    assert loader.epoch == 3
