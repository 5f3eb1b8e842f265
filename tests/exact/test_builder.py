"""Bad samples are replaced the same way on every machine, reported, and limited by a budget."""

from __future__ import annotations

import numpy as np
import pytest

import tarmac
from tarmac.errors import DecodeFailed, ErrorBudgetExceeded, MismatchedBatch

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


ODD = {"k07": {"txt": "more"}, "k20": {"npy": np.zeros(3)}, "k21": {"npy": np.zeros(2, np.int8)}}


@pytest.fixture
def odd(tmp_path):
    """Samples of which three do not fit into a batch with the others, and one cannot be decoded."""
    path = tmp_path / "odd.tar"
    with tarmac.TarWriter(path) as writer:
        for number in range(60):
            key = f"k{number:02d}"
            sample = {"__key__": key, "npy": np.full(2, number, np.float64)} | ODD.get(key, {})
            writer.write(sample | ({"npy": b"?"} if number == 40 else {}))
    dataset = tarmac.Dataset(path).decode()
    yield dataset
    dataset.close()


@pytest.mark.processes
@pytest.mark.parametrize(("threads", "processes"), [(0, 0), (4, 0), (2, 2)])
def test_samples_that_do_not_fit_into_a_batch_count_as_bad(odd, threads, processes):
    keys, bad = run(odd, max_bad_samples=4, threads=threads, processes=processes)
    assert len(keys) == 60
    assert {entry.key for entry in bad} == {*ODD, "k40"}
    assert {entry.error.split(":")[0] for entry in bad if entry.key in ODD} == {"MismatchedBatch"}
    assert all(keys[entry.position] == entry.replaced_by for entry in bad)
    with pytest.raises(ErrorBudgetExceeded, match="`max_bad_samples`=3"):
        run(odd, max_bad_samples=3, threads=threads, processes=processes)
    with pytest.raises((MismatchedBatch, DecodeFailed)):
        run(odd, threads=threads, processes=processes)


@pytest.mark.parametrize("batch_size", [1, 3, 60])
def test_which_samples_do_not_fit_depends_on_no_batch(odd, batch_size):
    expected = {entry.key: entry.replaced_by for entry in run(odd, max_bad_samples=4, threads=0)[1]}
    for world_size in (1, 2, 3):
        runs = [
            run(odd, batch_size, max_bad_samples=4, threads=0, rank=rank, world_size=world_size)[1]
            for rank in range(world_size)
        ]
        assert {entry.key: entry.replaced_by for entries in runs for entry in entries} == expected


def test_samples_are_compared_with_the_first_good_one_of_the_dataset(odd):
    for first, error in [(odd[7:], "MismatchedBatch"), (odd[40:], "DecodeFailed")]:
        with tarmac.Loader(first, 4, max_bad_samples=4, threads=0) as loader:
            if error == "MismatchedBatch":  # the odd one is first, so all others differ
                with pytest.raises(
                    ErrorBudgetExceeded, match=r'5 samples failed.*compared with sample "k07"'
                ):
                    list(loader)
            else:
                assert len(list(loader)) == 5


def test_a_search_for_replacements_ends_with_the_budget(odd):
    calls = []

    def broken(sample):
        calls.append(sample["__key__"])
        raise RuntimeError("broken")

    with pytest.raises(ErrorBudgetExceeded, match="broken"):
        run(odd.map(broken), max_bad_samples=2, threads=0)
    assert len(calls) <= 6
