"""Where an iteration begins: at the start of its epoch or at a loaded state, whatever was looked at."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tarmac

MAKERS = [tarmac.Loader, tarmac.BatchSampler]


def make(maker, dataset, size, **options):
    more = {"threads": 0} if maker is tarmac.Loader else {}
    return maker(dataset, size, seed=3, tail="short", **more, **options)


def keys_of(loader, some=None):
    """The keys of the first `some` batches of an iteration, or of all, which ends it."""
    batches, found = iter(loader), []
    for batch in batches if some is None else (batch for _, batch in zip(range(some), batches, strict=False)):
        if isinstance(batch, dict):
            found.append(batch["__key__"])
        else:
            found.append([loader.dataset.key_of(index) for index in batch])
    batches.close()
    return found


@pytest.mark.parametrize("maker", MAKERS)
def test_looking_loses_nothing(dataset, maker):
    expected = keys_of(make(maker, dataset, 10))
    loader = make(maker, dataset, 10)
    for some in (1, 1, 5, 20):
        assert keys_of(loader, some) == expected[:some]
        assert (loader.epoch, loader.position, len(loader)) == (0, 10 * some, 21)
    assert keys_of(loader) == expected
    assert (loader.epoch, loader.position) == (1, 0)


@pytest.mark.parametrize("maker", MAKERS)
def test_an_abandoned_iteration_can_be_continued_from_its_state(dataset, maker):
    expected = keys_of(make(maker, dataset, 10))
    loader = make(maker, dataset, 10)
    keys_of(loader, 7)
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert keys_of(loader, 2) == expected[7:9]
    loader.set_epoch(0)  # the epoch of the state, as trainers say it after they loaded one
    assert keys_of(loader) == expected[7:]
    assert len(keys_of(loader)) == 21


@pytest.mark.parametrize("maker", MAKERS)
def test_an_iterator_that_another_has_replaced_counts_no_more(dataset, maker):
    loader = make(maker, dataset, 10)
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


@pytest.mark.parametrize("maker", MAKERS)
def test_an_epoch_can_be_asked_for_again(dataset, maker):
    """Also by somebody who stopped at its last batch and did not ask for one more."""
    loader = make(maker, dataset, 10)
    first = keys_of(loader, 21)
    loader.set_epoch(0)
    assert keys_of(loader) == first
    loader.set_epoch(0)
    assert keys_of(loader) == first
    assert keys_of(loader) != first


RUN = st.tuples(
    st.sampled_from([1, 2, 4]),  # ranks
    st.integers(5, 40),  # batch size
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), max_size=4),  # a rank looks at some batches
    st.booleans(),  # whether set_epoch is called
    st.integers(1, 5),  # steps before the run ends, unless it is the last one of the epoch
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    maker=st.sampled_from(MAKERS),
    epochs=st.lists(st.lists(RUN, min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_every_sample_once_an_epoch(dataset, maker, epochs):
    """Whichever ranks look at batches, and wherever runs end and go on with another number of ranks."""
    everything = sorted(f"s{number:05d}" for number in range(203))
    ranks, done = [], 0
    for epoch, runs in enumerate(epochs):
        seen, state = [], None
        for number, (world_size, size, looks, told, steps) in enumerate(runs):
            if number or not ranks:
                ranks = [
                    make(maker, dataset, size, rank=rank, world_size=world_size) for rank in range(world_size)
                ]
                for rank in ranks:
                    rank.set_epoch(epoch)
                    if state is not None:
                        rank.load_state_dict(state)
            done = 0 if state is None else state["step"]
            left = len(ranks[0]) - done
            for rank, some in looks:
                keys_of(ranks[rank % len(ranks)], min(some, max(left - 1, 0)))
            for rank in ranks if told else []:
                rank.set_epoch(epoch)
            last = number == len(runs) - 1
            found = [keys_of(rank, None if last else min(steps, left)) for rank in ranks]
            seen += [key for batches in found for keys in batches for key in keys]
            state = max((rank.state_dict() for rank in ranks), key=lambda one: one["position"])
        assert sorted(seen) == everything
        assert {(rank.epoch, rank.position) for rank in ranks} == {(epoch + 1, 0)}
