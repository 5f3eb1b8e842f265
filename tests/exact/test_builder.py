"""Samples that cannot be used: replaced the same way everywhere, written down, up to a budget."""

from __future__ import annotations

import pytest

import tarmac
from tarmac.errors import DecodeFailed, ErrorBudgetExceeded

BAD = {"k03", "k17", "k18", "k40"}


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "s.tar"
    with tarmac.TarWriter(path) as writer:
        for number in range(60):
            key = f"k{number:02d}"
            writer.write({"__key__": key, "json": b"{" if key in BAD else b"{}"})
    made = tarmac.Dataset(path).decode()
    yield made
    made.close()


def run(dataset, batch_size=4, **options):
    with tarmac.Loader(dataset, batch_size, tail="short", seed=4, **options) as loader:
        return [key for batch in loader for key in batch["__key__"]], loader.bad_samples


@pytest.mark.parametrize(("threads", "processes"), [(0, 0), (4, 0), (2, 2)])
def test_bad_samples_are_replaced_alike_everywhere(dataset, threads, processes):
    keys, bad = run(dataset, bad=4, threads=threads, processes=processes)
    assert len(keys) == 60  # every rank keeps its number of samples
    assert not BAD & set(keys)
    assert {entry.key for entry in bad} == BAD
    assert (keys, bad) == run(dataset, bad=4, threads=0)
    for entry in bad:
        assert keys[entry.position] == entry.replaced_by
        assert entry.url.endswith("s.tar")
        assert entry.error.startswith("DecodeFailed: ")


def test_ranks_and_batch_sizes_do_not_change_what_replaces_what(dataset):
    ledger = {entry.key: entry.replaced_by for entry in run(dataset, bad=4, threads=0)[1]}
    for world_size in (2, 4):
        found = [
            entry
            for rank in range(world_size)
            for entry in run(dataset, batch_size=3, bad=4, threads=0, rank=rank, world_size=world_size)[1]
        ]
        assert {entry.key: entry.replaced_by for entry in found} == ledger


def test_the_budget_counts_samples_not_epochs(dataset):
    with tarmac.Loader(dataset, 10, bad=4, threads=0) as loader:
        for _ in range(3):
            list(loader)
        assert len(loader.bad_samples) == 12
    with tarmac.Loader(dataset, 10, bad=3, threads=0) as loader:
        with pytest.raises(ErrorBudgetExceeded, match="4 samples could not be used, 3 are allowed"):
            list(loader)


def test_without_a_budget_the_first_one_is_an_error(dataset):
    with pytest.raises(DecodeFailed) as caught:
        run(dataset, threads=2)
    assert caught.value.key in BAD


def test_nothing_good_to_replace_it_with(tmp_path):
    path = tmp_path / "all-bad.tar"
    with tarmac.TarWriter(path) as writer:
        for number in range(5):
            writer.write({"__key__": f"k{number}", "json": b"{"})
    with pytest.raises(ErrorBudgetExceeded, match="no sample of the window can be used"):
        run(tarmac.Dataset(path).decode(), bad=100, threads=0)
