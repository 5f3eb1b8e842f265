"""Every sample exactly once with any number of threads, processes and ranks, stopped and resumed anywhere."""

from __future__ import annotations

import gc
import itertools
import json
import re
from collections import Counter

import numpy as np
import pytest

import tarmac
from exact.conftest import write_shards
from harness.resume import assert_resumes
from harness.waiting import until
from tarmac.errors import DecodeFailed, MismatchedBatch, StateMismatch, UsageError

N = 203


def keys(batches):
    return [key for batch in batches for key in batch["__key__"]]


def noisy(sample, rng):
    return sample | {"noise": rng.random(3)}


def shapes(sample):
    return {"a": np.zeros(2 + sample["cls"] % 2), "__key__": sample["__key__"]}


def plain(batch):
    """Return a batch that can be compared."""
    return {name: np.asarray(value).tolist() for name, value in batch.items() if name != "__url__"}


class Plain:
    """A loader with batches that can be compared."""

    def __init__(self, loader):
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self):
        return map(plain, self.loader)


@pytest.mark.parametrize("processes", [0, 1, 2])
@pytest.mark.parametrize("threads", [0, 2, 4])
def test_an_epoch_has_every_sample_once_in_the_same_order_with_any_workers(dataset, threads, processes):
    expected = [plain(batch) for batch in tarmac.Loader(dataset, 10, seed=5, tail="short", threads=0)]
    with tarmac.Loader(dataset, 10, seed=5, tail="short", threads=threads, processes=processes) as loader:
        assert [plain(batch) for batch in loader] == expected
        assert len(expected) == len(loader) == 21
        first = keys(expected)
        assert sorted(first) == [f"s{number:05d}" for number in range(N)]
        assert first != sorted(first)
        second = keys(loader)  # the next epoch, from the same workers
        assert sorted(second) == sorted(first)
        assert second != first


@pytest.fixture(scope="module")
def few_shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("few"), (3, 9, 1, 8, 4))


@pytest.fixture
def few(few_shards):
    """A few batches and a remainder, so that every step can be tried with every loader."""
    dataset = tarmac.Dataset(few_shards).decode()
    yield dataset
    dataset.close()


def sources(dataset):
    """Return datasets and mixes by name, with their number of samples per epoch."""
    mix = tarmac.Mix([(dataset[:18], 0.7), (dataset[18:], 0.3)], samples=22)
    selected = dataset.where("key < 's00014'")
    return {"all": (dataset, 25), "where": (selected, 14), "mix": (mix, 22)}


def shared_workers(create):
    """Return a loader, and a function that creates loaders which use its processes."""
    first = create()

    def fresh():
        loader = create()
        loader._processes = first._processes
        return Plain(loader)

    return first, fresh


@pytest.mark.parametrize("source", ["all", "where", "mix"])
@pytest.mark.parametrize("processes", [0, 1, 2])
@pytest.mark.parametrize("threads", [0, 2, 4])
def test_resumes_at_every_step(few, threads, processes, source):
    selected, samples = sources(few)[source]
    assert len(selected) == samples
    noise = selected.map(noisy, random=True)
    for shuffle, tail in itertools.product((True, False), ("drop", "pad", "short")):

        def create(shuffle=shuffle, tail=tail):
            return tarmac.Loader(
                noise, 4, seed="s", shuffle=shuffle, tail=tail, threads=threads, processes=processes
            )

        first, fresh = shared_workers(create)
        with first:
            steps = samples // 4 + (tail != "drop")
            assert assert_resumes(fresh, max_state_bytes=400) == steps + 1


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("threads", [0, 2, 4])
def test_new_workers_continue_from_a_state(dataset, threads, processes):
    options = {"seed": 3, "tail": "short", "threads": threads, "processes": processes}
    noise = dataset.map(noisy, random=True)
    whole, state = [], None
    with tarmac.Loader(noise, 16, **options) as loader:
        for batch in loader:
            whole.append(plain(batch))
            if len(whole) == 5:
                state = json.dumps(loader.state_dict())
    with tarmac.Loader(noise, 16, **options) as loader:
        loader.load_state_dict(json.loads(state))
        assert [plain(batch) for batch in loader] == whole[5:]


def consume(dataset, states, world_size, batch_size, steps):
    """Continue from a state on all ranks for some steps; return the keys and the new state of each rank."""
    seen, after = Counter(), []
    for rank in range(world_size):
        loader = tarmac.Loader(
            dataset, batch_size, seed=1, rank=rank, world_size=world_size, threads=0, tail="short"
        )
        if states:
            loader.load_state_dict(json.loads(json.dumps(states)))
        batches = iter(loader)
        for _ in range(steps):
            batch = next(batches, None)
            if batch is None:
                break
            seen.update(batch["__key__"])
        else:
            after.append(loader.state_dict())
        batches.close()
    return seen, after


@pytest.mark.parametrize("later", [1, 2, 3, 4, 7, 16, 17])
def test_saved_on_eight_ranks_and_resumed_on_another_number(dataset, later):
    seen, states = consume(dataset, None, 8, 3, 4)
    assert len(states) == 8
    assert all(state == states[0] for state in states)  # the same on every rank
    more, _ = consume(dataset, states[0], later, 2, 10_000)
    assert seen.total() == 96
    assert seen + more == Counter({f"s{number:05d}": 1 for number in range(N)})


@pytest.mark.parametrize("world_size", [3, 4])
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_every_rank_has_the_same_number_of_full_batches(dataset, tail, world_size):
    sizes = []
    for rank in range(world_size):
        loader = tarmac.Loader(dataset, 6, rank=rank, world_size=world_size, tail=tail, threads=0)
        sizes.append([len(batch["__key__"]) for batch in loader])
        assert len(loader) == len(sizes[-1])
    assert all(size == sizes[0] for size in sizes)
    assert set(sizes[0]) == {6}
    assert len(sizes[0]) == N // (6 * world_size) + (tail == "pad")


def test_random_steps_depend_only_on_seed_epoch_and_position(dataset):
    noise = dataset.map(noisy, random=True)

    def drawn(**options):
        loader = tarmac.Loader(noise, options.pop("batch", 10), tail="short", **options)
        with loader:
            return {
                key: row for b in loader for key, row in zip(b["__key__"], b["noise"].tolist(), strict=True)
            }

    one = drawn(threads=0, seed=1)
    assert drawn(threads=4, seed=1, batch=7) == one == drawn(processes=2, threads=0, seed=1)
    assert drawn(threads=0, seed=2) != one
    assert len({tuple(row) for row in one.values()}) == N


def test_set_epoch(dataset):
    loader = tarmac.Loader(dataset, 50, threads=0)
    first = keys(loader)
    assert (loader.epoch, loader.position) == (1, 0)
    second = keys(loader)
    loader.set_epoch(0)
    assert keys(loader) == first
    batches = iter(loader)
    next(batches)
    batches.close()
    loader.set_epoch(1)  # as training loops do at the start of each epoch, also after resuming
    assert loader.position == 50
    assert keys(loader) == second


def test_an_abandoned_epoch_is_repeated(dataset):
    with tarmac.Loader(dataset, 10, threads=2, processes=2, tail="short") as loader:
        first = []
        for batch in loader:
            first += batch["__key__"]
            if len(first) == 30:
                break
        assert loader.position == 30
        again = keys(loader)
        assert again[:30] == first
        assert sorted(again) == [f"s{number:05d}" for number in range(N)]


def test_a_state_of_other_data_is_an_error_that_lists_the_differences(dataset, shards, tmp_path):
    state = tarmac.Loader(dataset, 10).state_dict()
    with pytest.raises(StateMismatch, match=r"shards.*10.*9.*samples.*203.*177"):
        tarmac.Loader(tarmac.Dataset(shards[:-1]), 10).load_state_dict(state)
    with pytest.raises(StateMismatch, match=r"streams.*64.*32"):
        tarmac.Loader(dataset, 10, streams=32).load_state_dict(state)
    with pytest.raises(StateMismatch, match="samples"):
        other = tarmac.Dataset([*shards[1:], shards[0]])
        tarmac.Loader(other, 10).load_state_dict(state)
    with pytest.raises(StateMismatch):
        tarmac.Loader(dataset, 10).load_state_dict({"epoch": 1})
    with pytest.raises(StateMismatch, match="version 9"):
        tarmac.Loader(dataset, 10).load_state_dict(state | {"tarmac_loader": 9})


def test_a_state_sets_the_seed(dataset):
    with tarmac.Loader(dataset, 10, seed=1, processes=1, threads=0) as loader:
        saved = tarmac.Loader(dataset, 10, seed=2, threads=0)
        list(loader)
        loader.load_state_dict(saved.state_dict())
        assert keys(loader) == keys(saved)


def test_invalid_arguments(dataset):
    for options, field in (
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": "4"}, "batch_size"),
        ({"batch_size": 1, "streams": 2.5}, "streams"),
        ({"batch_size": 1, "window": "8"}, "window"),
        ({"batch_size": 1, "shuffle": "no"}, "shuffle"),
        ({"batch_size": 1, "seed": None}, "seed"),
        ({"batch_size": 1, "rank": 0, "world_size": "2"}, "world_size"),
        ({"batch_size": 1, "to": 5}, "to"),
        ({"batch_size": 1, "threads": "2"}, "threads"),
        ({"batch_size": 1, "collate": "list"}, "collate"),
        ({"batch_size": 1, "threads": -1}, "threads"),
        ({"batch_size": 1, "tail": "cut"}, "tail"),
        ({"batch_size": 1, "world_size": 0, "rank": 0}, "world_size"),
        ({"batch_size": 1, "world_size": 2, "rank": 2}, "rank"),
        ({"batch_size": 1, "max_bad_samples": -1}, "max_bad_samples"),
        ({"batch_size": 1, "prefetch": 0}, "prefetch"),
        ({"batch_size": 1, "streams": 0}, "streams"),
        ({"batch_size": 1, "stall": 0}, "stall"),
    ):
        with pytest.raises(UsageError, match=f"^`{field}`"):
            tarmac.Loader(dataset, **options)
    with pytest.raises(UsageError, match="`dataset`"):
        tarmac.Loader([1, 2], 3)


@pytest.mark.parametrize("cls", [tarmac.Loader, tarmac.BatchSampler])
@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ({"num_workers": 4}, "processes=.*threads="),
        ({"drop_last": True}, "tail="),
        ({"pin_memory": True}, "to="),
        ({"persistent_workers": True}, "close"),
        ({"collate_fn": list}, "collate="),
        ({"num_replicas": 2}, "world_size="),
    ],
)
def test_arguments_of_torch_are_explained(dataset, cls, argument, hint):
    (name,) = argument
    with pytest.raises(TypeError, match=f"`{name}`.*Try: .*{hint}"):
        cls(dataset, 4, **argument)
    with pytest.raises(TypeError, match="no_such_argument"):
        cls(dataset, 4, no_such_argument=1)


def test_repr(dataset):
    loader = tarmac.Loader(dataset, 10, seed=7, threads=2, rank=1, world_size=3)
    next(iter(loader))
    assert repr(loader) == (
        "<Loader: samples 203, batch_size 10, rank 1 of 3, epoch 0, step 1 of 6, shuffle seed 7, tail drop, "
        "threads 2, processes 0>"
    )
    assert "<td>1 of 6</td>" in loader._repr_html_()
    assert repr(tarmac.BatchSampler(dataset, 10, shuffle=False)).startswith("<BatchSampler: samples 203")


def test_prefetch_is_the_number_of_batches_prepared_ahead(dataset):
    read = []
    ordered = tarmac.Loader(
        dataset.map(lambda sample: read.append(1) or sample), 10, threads=1, prefetch=5, tail="short"
    )
    batches = iter(ordered)
    next(batches)
    assert until(lambda: len(read) == 60)
    batches.close()


@pytest.mark.parametrize("to", [None, "torch"])
@pytest.mark.parametrize(("threads", "processes"), [(0, 0), (2, 0), (2, 1)])
def test_the_memory_of_a_batch_is_freed_with_its_last_reference(dataset, threads, processes, to):
    """Batches that wait for Python's garbage collector would be hundreds of megabytes."""
    if to == "torch":
        pytest.importorskip("torch")
    with tarmac.Loader(dataset, 7, threads=threads, processes=processes, to=to) as loader:
        next(iter(loader))  # what is imported and built once
        gc.collect()
        gc.disable()
        try:
            for _batch in loader:
                pass
            freed = gc.collect()
        finally:
            gc.enable()
        assert len(loader) > freed


@pytest.mark.parametrize(("threads", "processes"), [(0, 0), (2, 0), (0, 1)])
def test_errors_name_the_field(shards, threads, processes):
    with (
        tarmac.Loader(
            tarmac.Dataset(shards).decode().map(shapes), 8, threads=threads, processes=processes
        ) as loader,
        pytest.raises(MismatchedBatch, match=r'field "a" .*\(3,\)'),
    ):
        list(loader)


@pytest.mark.parametrize(("threads", "processes"), [(0, 0), (2, 1)])
def test_mismatched_samples_are_named(tmp_path, threads, processes):
    path = tmp_path / "odd.tar"
    with tarmac.TarWriter(path) as writer:
        for number in range(4):
            text = {"txt": "x"} if number == 2 else {}
            writer.write({"__key__": f"k{number}", "cls": number, **text})
    ds = tarmac.Dataset(path)
    with tarmac.Loader(ds, 4, threads=threads, processes=processes, shuffle=False) as loader:
        with pytest.raises(MismatchedBatch, match=r"different fields: txt") as caught:
            list(loader)
    other = re.search(r'compared with sample "(k\d)"', str(caught.value))[1]
    assert "k2" in {other, caught.value.key}  # with threads, any sample may come first
    assert other != caught.value.key
    assert caught.value.url == str(path)
    assert "to_tuple" in caught.value.hint
    assert len(next(iter(tarmac.Loader(ds.to_tuple("cls"), 4)))[0]) == 4  # as the hint says
    assert len(next(iter(tarmac.Loader(ds.where("not has(txt)"), 3)))["cls"]) == 3
    assert len(next(iter(tarmac.Loader(ds, 4, collate=list)))) == 4


@pytest.mark.parametrize(("threads", "processes"), [(0, 0), (2, 1)])
def test_a_damaged_sample_is_an_error_that_names_it(tmp_path, threads, processes):
    path = tmp_path / "bad.tar"
    with tarmac.TarWriter(path) as writer:
        for number in range(20):
            writer.write({"__key__": f"k{number:02d}", "json": b"{" if number == 7 else b"{}"})
    dataset = tarmac.Dataset(path).decode()
    with tarmac.Loader(dataset, 4, threads=threads, processes=processes) as loader:
        with pytest.raises(DecodeFailed) as caught:
            list(loader)
    assert caught.value.key == "k07"
    assert "bad.tar" in caught.value.url


def test_collate(dataset):
    loader = tarmac.Loader(dataset.to_tuple("__key__", "cls"), 50, threads=2, collate=list, tail="short")
    batches = list(loader)
    assert [len(batch) for batch in batches] == [50] * 4 + [3]
    assert all(key == f"s{number:05d}" for batch in batches for key, number in batch)


def test_stats(dataset):
    loader = tarmac.Loader(dataset, 10, threads=1)
    list(loader)
    stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (20, 200)
    assert min(stats["read"], stats["steps"], stats["collate"], stats["waiting"]) > 0
    assert "samples/s" in stats["verdict"]


@pytest.mark.parametrize("cls", [tarmac.Loader, tarmac.BatchSampler])
@pytest.mark.parametrize("tail", ["drop", "pad", "short"])
def test_the_next_epoch_is_complete_after_stopping_at_the_last_batch(dataset, cls, tail):
    """Trainers know the number of batches and never request one more."""
    loader = cls(dataset, 16, tail=tail)
    epochs = [list(zip(range(len(loader)), loader, strict=False)) for _ in range(3)]
    assert [len(batches) for batches in epochs] == [len(loader)] * 3
    assert loader.epoch == 2
    state = loader.state_dict()
    assert state["position"] > 0  # loaded, it continues with the rest of this epoch: nothing
    loader.load_state_dict(state)
    assert list(loader) == []
    assert len(list(loader)) == len(loader)
    loader.set_epoch(7)
    assert len(list(loader)) == len(loader)
