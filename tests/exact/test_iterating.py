"""An iteration starts at the start of its epoch or at a loaded state, whatever was read before."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tarmac

CLASSES = [tarmac.Loader, tarmac.BatchSampler]


def create(cls, dataset, size, **options):
    more = {"threads": 0} if cls is tarmac.Loader else {}
    return cls(dataset, size, seed=3, tail="short", **more, **options)


def keys(loader, some=None):
    """Return the keys of the first `some` batches of an iteration, or of all, which finishes it."""
    batches, result = iter(loader), []
    for batch in batches if some is None else (batch for _, batch in zip(range(some), batches, strict=False)):
        if isinstance(batch, dict):
            result.append(batch["__key__"])
        else:
            result.append([loader.dataset.key(index) for index in batch])
    batches.close()
    return result


@pytest.mark.parametrize("cls", CLASSES)
def test_looking_loses_nothing(dataset, cls):
    expected = keys(create(cls, dataset, 10))
    loader = create(cls, dataset, 10)
    for some in (1, 1, 5, 20):
        assert keys(loader, some) == expected[:some]
        assert (loader.epoch, loader.position, len(loader)) == (0, 10 * some, 21)
    assert keys(loader) == expected
    assert (loader.epoch, loader.position) == (1, 0)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_abandoned_iteration_can_be_continued_from_its_state(dataset, cls):
    expected = keys(create(cls, dataset, 10))
    loader = create(cls, dataset, 10)
    keys(loader, 7)
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert keys(loader, 2) == expected[7:9]
    loader.set_epoch(0)  # the epoch of the state, as trainers set it after loading
    assert keys(loader) == expected[7:]
    assert len(keys(loader)) == 21


@pytest.mark.parametrize("cls", CLASSES)
def test_an_iterator_that_was_replaced_does_not_count(dataset, cls):
    loader = create(cls, dataset, 10)
    first, second = iter(loader), iter(loader)
    next(first), next(second), next(first), next(first)
    assert loader.position == 10
    assert len(list(first)) == 18
    assert loader.epoch == 0
    assert len(list(second)) == 20
    assert loader.epoch == 1
    next(iter(loader))
    loader.set_epoch(1)
    third = iter(loader)
    next(third)
    loader.set_epoch(5)
    next(third)
    assert (loader.epoch, loader.position) == (5, 0)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_epoch_can_be_repeated(dataset, cls):
    """Also after a loop that stopped at its last batch."""
    loader = create(cls, dataset, 10)
    first = keys(loader, 21)
    loader.set_epoch(0)
    assert keys(loader) == first
    loader.set_epoch(0)
    assert keys(loader) == first
    assert keys(loader) != first


RUN = st.tuples(
    st.integers(1, 17),  # ranks
    st.integers(1, 12),  # batch size
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), max_size=4),  # a rank reads some batches
    st.booleans(),  # whether set_epoch is called
    st.integers(1, 5),  # steps of the run, unless it is the last one of the epoch
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cls=st.sampled_from(CLASSES),
    epochs=st.lists(st.lists(RUN, min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_every_sample_once_an_epoch(dataset, cls, epochs):
    """Whichever ranks read batches early, and wherever runs stop and resume with another world size."""
    everything = sorted(f"s{number:05d}" for number in range(203))
    ranks, done = [], 0
    for epoch, runs in enumerate(epochs):
        seen, state = [], None
        for number, (world_size, size, looks, set_epoch, steps) in enumerate(runs):
            if number or not ranks:
                ranks = [
                    create(cls, dataset, size, rank=rank, world_size=world_size) for rank in range(world_size)
                ]
                for rank in ranks:
                    rank.set_epoch(epoch)
                    if state is not None:
                        rank.load_state_dict(state)
            done = 0 if state is None else state["step"]
            left = len(ranks[0]) - done
            for rank, some in looks:
                keys(ranks[rank % len(ranks)], min(some, max(left - 1, 0)))
            for rank in ranks if set_epoch else []:
                rank.set_epoch(epoch)
            last = number == len(runs) - 1
            batches = [keys(rank, None if last else min(steps, left)) for rank in ranks]
            seen += [key for mine in batches for keys in mine for key in keys]
            state = max((rank.state_dict() for rank in ranks), key=lambda one: one["position"])
        assert sorted(seen) == everything
        assert {(rank.epoch, rank.position) for rank in ranks} == {(epoch + 1, 0)}
