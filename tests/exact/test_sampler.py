"""The exact order in torch's DataLoader and torchdata's StatefulDataLoader."""

from __future__ import annotations

import json

import pytest

import tarmac

torch = pytest.importorskip("torch")


def noisy(sample, rng):
    return {"key": sample["__key__"], "noise": float(rng.random())}


def loaded(dataset, sampler, workers=0):
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=list,
        multiprocessing_context="fork" if workers else None,
    )
    return [[(item["key"], item["noise"]) for item in batch] for batch in loader]


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_has_the_batches_of_a_loader(dataset, workers):
    noise = dataset.map(noisy, random=True)
    expected = [
        list(zip(batch["key"], batch["noise"].tolist(), strict=True))
        for batch in tarmac.Loader(noise, 16, seed=9, threads=0)
    ]
    sampler = tarmac.BatchSampler(noise, 16, seed=9)
    assert len(sampler) == len(expected) == 12
    assert loaded(noise, sampler, workers) == expected
    assert sampler.epoch == 1
    assert loaded(noise, sampler, workers) != expected


def test_states_of_loaders_and_samplers_are_the_same(dataset):
    noise = dataset.map(noisy, random=True)
    sampler = tarmac.BatchSampler(noise, 8, seed=2)
    batches = iter(sampler)
    for _ in range(5):
        next(batches)
    loader = tarmac.Loader(noise, 8, threads=0)
    loader.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    rest = [batch["key"] for batch in loader]
    assert rest == [[noise.key(index) for index in batch] for batch in batches]


@pytest.mark.processes
def test_state_after_counts_the_batches_trained_on(dataset):
    noise = dataset.map(noisy, random=True)
    whole = loaded(noise, tarmac.BatchSampler(noise, 8))
    sampler = tarmac.BatchSampler(noise, 8)
    loader = iter(
        torch.utils.data.DataLoader(
            noise, batch_sampler=sampler, num_workers=2, collate_fn=list, multiprocessing_context="fork"
        )
    )
    for _ in range(7):
        next(loader)
    assert sampler.state_dict()["position"] > 7 * 8  # the DataLoader has requested batches ahead
    state = sampler.state_after(7)
    assert state["position"] == 7 * 8
    del loader
    again = tarmac.BatchSampler(noise, 8)
    again.load_state_dict(state)
    assert loaded(noise, again) == whole[7:]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")  # torchdata, about torch
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_resumes_at_every_step(dataset, workers):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    noise = dataset.map(noisy, random=True)

    def create():
        return torchdata.StatefulDataLoader(
            noise,
            batch_sampler=tarmac.BatchSampler(noise, 32),
            num_workers=workers,
            collate_fn=list,
            multiprocessing_context="fork" if workers else None,
        )

    loader, whole, states = create(), [], []
    for batch in loader:
        whole.append(batch)
        states.append(loader.state_dict())
    assert len(whole) == 6
    for step, state in enumerate(states[:-1], 1):
        resumed = create()
        resumed.load_state_dict(state)
        assert list(resumed) == whole[step:], step


def test_a_mix_through_a_data_loader(dataset):
    mix = tarmac.Mix([(dataset[:100], 0.5), (dataset[100:], 0.5)], samples=64).map(noisy, random=True)
    batches = loaded(mix, tarmac.BatchSampler(mix, 16))
    keys = [key for batch in batches for key, _ in batch]
    assert len(keys) == 64
    assert sum(key < "s00100" for key in keys) == 32
