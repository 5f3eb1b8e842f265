"""Every sample exactly once, in any number of threads and processes; stopped anywhere, gone on anywhere."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest

import tarmac
from exact.conftest import write_shards
from harness.resume import assert_resumes
from tarmac.errors import DecodeFailed, MismatchedBatch, StateMismatch

N = 203


def keys_of(batches):
    return [key for batch in batches for key in batch["__key__"]]


def noisy(sample, rng):
    return sample | {"noise": rng.random(3)}


def shapes(sample):
    return {"a": np.zeros(2 + sample["cls"] % 2), "__key__": sample["__key__"]}


def plain(batch):
    """A batch as something that can be compared."""
    return {name: np.asarray(value).tolist() for name, value in batch.items() if name != "__url__"}


class Plain:
    """A loader whose batches can be compared."""

    def __init__(self, loader):
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self):
        return map(plain, self.loader)


@pytest.mark.parametrize("processes", [0, 1, 2])
@pytest.mark.parametrize("threads", [0, 2, 4])
def test_an_epoch_has_every_sample_once_in_the_same_order_however_it_is_made(dataset, threads, processes):
    expected = [plain(batch) for batch in tarmac.Loader(dataset, 10, seed=5, tail="short", threads=0)]
    with tarmac.Loader(dataset, 10, seed=5, tail="short", threads=threads, processes=processes) as loader:
        assert [plain(batch) for batch in loader] == expected
        assert len(expected) == len(loader) == 21
        found = keys_of(expected)
        assert sorted(found) == [f"s{number:05d}" for number in range(N)]
        assert found != sorted(found)
        again = keys_of(loader)  # the next epoch, from the same workers
        assert sorted(again) == sorted(found)
        assert again != found


@pytest.fixture(scope="module")
def few_shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("few"), (3, 9, 1, 8, 4))


@pytest.fixture
def few(few_shards):
    """Enough samples for a few batches and a rest: every step can be tried on every kind of loader."""
    dataset = tarmac.Dataset(few_shards).decode()
    yield dataset
    dataset.close()


def sources(dataset):
    """What is loaded, and how many samples an epoch of it has."""
    mix = tarmac.Mix([(dataset[:18], 0.7), (dataset[18:], 0.3)], samples=22)
    chosen = dataset.where("key < 's00014'")
    return {"all": (dataset, 25), "where": (chosen, 14), "mix": (mix, 22)}


def shared_workers(make):
    """Fresh loaders that hand their work to the processes of the first, and that first loader."""
    first = make()

    def fresh():
        loader = make()
        loader._processes = first._processes
        return Plain(loader)

    return first, fresh


@pytest.mark.parametrize("source", ["all", "where", "mix"])
@pytest.mark.parametrize("processes", [0, 1, 2])
@pytest.mark.parametrize("threads", [0, 2, 4])
def test_resumes_at_every_step(few, threads, processes, source):
    chosen, samples = sources(few)[source]
    assert len(chosen) == samples
    noise = chosen.map(noisy, random=True)
    for shuffle, tail in itertools.product((True, False), ("drop", "pad", "short")):

        def make(shuffle=shuffle, tail=tail):
            return tarmac.Loader(
                noise, 4, seed="s", shuffle=shuffle, tail=tail, threads=threads, processes=processes
            )

        first, fresh = shared_workers(make)
        with first:
            steps = samples // 4 + (tail != "drop")
            assert assert_resumes(fresh, max_state_bytes=400) == steps + 1


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("threads", [0, 2, 4])
def test_workers_that_were_not_there_before_go_on_from_a_state(dataset, threads, processes):
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
    """Let `world` ranks go on from a state for some steps; return the keys and the new state of each."""
    found, after = Counter(), []
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
            found.update(batch["__key__"])
        else:
            after.append(loader.state_dict())
        batches.close()
    return found, after


@pytest.mark.parametrize("later", [1, 2, 4, 16])
def test_saved_on_eight_ranks_continued_on_another_number(dataset, later):
    seen, states = consume(dataset, None, 8, 3, 4)
    assert len(states) == 8
    assert all(state == states[0] for state in states)  # the same on every rank
    more, _ = consume(dataset, states[0], later, 2, 10_000)
    assert seen.total() == 96
    assert seen + more == Counter({f"s{number:05d}": 1 for number in range(N)})


def test_many_changes_of_world_and_batch_size_in_one_epoch(dataset):
    seen, state = Counter(), None
    for world_size, batch_size, steps in ((2, 5, 3), (8, 1, 2), (1, 7, 4), (4, 2, 5), (16, 1, 10_000)):
        more, states = consume(dataset, state, world_size, batch_size, steps)
        seen += more
        state = states[0] if states else None
    assert seen == Counter({f"s{number:05d}": 1 for number in range(N)})


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_every_rank_has_as_many_full_batches(dataset, tail):
    sizes = []
    for rank in range(4):
        loader = tarmac.Loader(dataset, 6, rank=rank, world_size=4, tail=tail, threads=0)
        sizes.append([len(batch["__key__"]) for batch in loader])
        assert len(loader) == len(sizes[-1])
    assert all(size == sizes[0] for size in sizes)
    assert set(sizes[0]) == {6}
    assert len(sizes[0]) == (8 if tail == "drop" else 9)


def test_random_steps_depend_on_seed_epoch_and_position_only(dataset):
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


def test_set_epoch_goes_to_an_epoch(dataset):
    loader = tarmac.Loader(dataset, 50, threads=0)
    first = keys_of(loader)
    assert (loader.epoch, loader.position) == (1, 0)
    second = keys_of(loader)
    loader.set_epoch(0)
    assert keys_of(loader) == first
    batches = iter(loader)
    next(batches)
    batches.close()
    loader.set_epoch(1)  # as training loops do at the top of each epoch, also after a resume
    assert loader.position == 50
    assert keys_of(loader) == second


def test_an_early_break_leaves_nothing_behind(dataset):
    with tarmac.Loader(dataset, 10, threads=2, processes=2, tail="short") as loader:
        found = []
        for batch in loader:
            found += batch["__key__"]
            if len(found) == 30:
                break
        assert loader.position == 30
        again = keys_of(loader)
        assert again[:30] == found
        assert sorted(again) == [f"s{number:05d}" for number in range(N)]


def test_a_state_of_other_data_is_refused_with_what_changed(dataset, shards, tmp_path):
    state = tarmac.Loader(dataset, 10).state_dict()
    with pytest.raises(StateMismatch, match="shards was 10 and is 9; samples was 203 and is 177"):
        tarmac.Loader(tarmac.Dataset(shards[:-1]), 10).load_state_dict(state)
    with pytest.raises(StateMismatch, match="streams was 64 and is 32"):
        tarmac.Loader(dataset, 10, streams=32).load_state_dict(state)
    with pytest.raises(StateMismatch, match="some shards were written again"):
        other = tarmac.Dataset([*shards[1:], shards[0]])
        tarmac.Loader(other, 10).load_state_dict(state)
    with pytest.raises(StateMismatch, match="not the state of a Loader"):
        tarmac.Loader(dataset, 10).load_state_dict({"epoch": 1})
    with pytest.raises(StateMismatch, match="version 9"):
        tarmac.Loader(dataset, 10).load_state_dict(state | {"tarmac_loader": 9})


def test_a_state_brings_its_seed(dataset):
    with tarmac.Loader(dataset, 10, seed=1, processes=1, threads=0) as loader:
        saved = tarmac.Loader(dataset, 10, seed=2, threads=0)
        list(loader)
        loader.load_state_dict(saved.state_dict())
        assert keys_of(loader) == keys_of(saved)


def test_options_that_make_no_sense_are_refused(dataset):
    for options, match in (
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1, "threads": -1}, "threads"),
        ({"batch_size": 1, "tail": "cut"}, "tail="),
        ({"batch_size": 1, "world_size": 3, "rank": 0}, "64 streams cannot be shared evenly by 3 ranks"),
        ({"batch_size": 1, "world_size": 2, "rank": 2}, "rank 2 of 2"),
        ({"batch_size": 1, "bad": -1}, "bad"),
    ):
        with pytest.raises(ValueError, match=match):
            tarmac.Loader(dataset, **options)
    with pytest.raises(ValueError, match="a Dataset or a Mix"):
        tarmac.Loader([1, 2], 3)


@pytest.mark.parametrize(("threads", "processes"), [(0, 0), (2, 0), (0, 1)])
def test_errors_come_in_order_with_their_place(shards, threads, processes):
    with (
        tarmac.Loader(
            tarmac.Dataset(shards).decode().map(shapes), 8, threads=threads, processes=processes
        ) as loader,
        pytest.raises(MismatchedBatch, match=r'field "a" has shape'),
    ):
        list(loader)


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


def test_collate_makes_what_the_user_wants(dataset):
    loader = tarmac.Loader(dataset.to_tuple("__key__", "cls"), 50, threads=2, collate=list, tail="short")
    batches = list(loader)
    assert [len(batch) for batch in batches] == [50] * 4 + [3]
    assert all(key == f"s{number:05d}" for batch in batches for key, number in batch)


def test_stats_say_where_the_time_went(dataset):
    loader = tarmac.Loader(dataset, 10, threads=1)
    assert loader.stats()["verdict"] == "nothing was loaded yet"
    list(loader)
    stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (20, 200)
    assert min(stats["read"], stats["steps"], stats["collate"], stats["waiting"]) > 0
    assert "samples/s" in stats["verdict"]


@pytest.mark.parametrize("make", [tarmac.Loader, tarmac.BatchSampler])
@pytest.mark.parametrize("tail", ["drop", "pad", "short"])
def test_who_stops_at_the_last_batch_gets_a_whole_epoch_the_next_time(dataset, make, tail):
    """As trainers do, which know how many batches there are and never ask for one more."""
    loader = make(dataset, 16, tail=tail)
    epochs = [list(zip(range(len(loader)), loader, strict=False)) for _ in range(3)]
    assert [len(batches) for batches in epochs] == [len(loader)] * 3
    assert loader.epoch == 2
    state = loader.state_dict()
    assert state["position"] > 0  # saved now, it goes on with what is left of this epoch: nothing
    loader.load_state_dict(state)
    assert list(loader) == []
    assert len(list(loader)) == len(loader)
    loader.set_epoch(7)
    assert len(list(loader)) == len(loader)
