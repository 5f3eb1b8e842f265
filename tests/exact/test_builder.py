"""Bad samples are replaced the same way on every machine, reported, and limited by a budget."""

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
    dataset = tarmac.Dataset(path).decode()
    yield dataset
    dataset.close()


def run(dataset, batch_size=4, **options):
    with tarmac.Loader(dataset, batch_size, tail="short", seed=4, **options) as loader:
        return [key for batch in loader for key in batch["__key__"]], loader.bad_samples


@pytest.mark.processes
@pytest.mark.parametrize(("threads", "processes"), [(0, 0), (4, 0), (2, 2)])
def test_bad_samples_are_replaced_alike_with_any_workers(dataset, threads, processes):
    keys, bad = run(dataset, max_bad_samples=4, threads=threads, processes=processes)
    assert len(keys) == 60  # every rank keeps its number of samples
    assert not BAD & set(keys)
    assert {entry.key for entry in bad} == BAD
    assert (keys, bad) == run(dataset, max_bad_samples=4, threads=0)
    for entry in bad:
        assert keys[entry.position] == entry.replaced_by
        assert entry.url.endswith("s.tar")
        assert entry.error.startswith("DecodeFailed: ")


def test_replacements_do_not_depend_on_ranks_and_batch_sizes(dataset):
    replacements = {entry.key: entry.replaced_by for entry in run(dataset, max_bad_samples=4, threads=0)[1]}
    for world_size in (2, 3, 4):
        entries = [
            entry
            for rank in range(world_size)
            for entry in run(
                dataset, batch_size=3, max_bad_samples=4, threads=0, rank=rank, world_size=world_size
            )[1]
        ]
        assert {entry.key: entry.replaced_by for entry in entries} == replacements


def test_the_budget_counts_samples_not_epochs(dataset):
    with tarmac.Loader(dataset, 10, max_bad_samples=4, threads=0) as loader:
        for _ in range(3):
            list(loader)
        assert len(loader.bad_samples) == 12
    with tarmac.Loader(dataset, 10, max_bad_samples=3, threads=0) as loader:
        with pytest.raises(ErrorBudgetExceeded, match="`max_bad_samples`=3"):
            list(loader)


def test_without_a_budget_the_first_bad_sample_is_an_error(dataset):
    with pytest.raises(DecodeFailed) as caught:
        run(dataset, threads=2)
    assert caught.value.key in BAD


def test_no_replacement_is_left(tmp_path):
    path = tmp_path / "all-bad.tar"
    with tarmac.TarWriter(path) as writer:
        for number in range(5):
            writer.write({"__key__": f"k{number}", "json": b"{"})
    with pytest.raises(ErrorBudgetExceeded, match=r"all-bad\.tar"):
        run(tarmac.Dataset(path).decode(), max_bad_samples=100, threads=0)
