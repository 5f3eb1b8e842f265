"""The same seed gives the order of webdataset 1.0.2 in the first epoch, wherever that library has a fixed one."""

from __future__ import annotations

import random
from itertools import islice

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac.webdataset as wds
from harness.shards import plain
from harness.workers import all_workers, as_worker
from tarmac.errors import StateMismatch
from tarmac.runtime.worker_info import WorkerInfo

LIBRARIES = (webdataset, wds)
SIZES = st.integers(0, 150)
SEEDS = st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=5))

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*shardshuffle.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:seeding:DeprecationWarning"),
]

differential = settings(deadline=None, derandomize=True, max_examples=60)


def names(count):
    return [f"http://x/{number}.tar" for number in range(count)]


def urls(source, count=None):
    return [shard["url"] for shard in islice(source, count)]


def both(run):
    """Return what each of the libraries gives, as (theirs, ours)."""
    return tuple(run(library) for library in LIBRARIES)


def shard_order(library, count, **options):
    """Return the order in which a WebDataset would read shards."""
    dataset = library.WebDataset(names(count), **options)
    last = next(n for n, stage in enumerate(dataset.pipeline) if "split_by_worker" in str(stage))
    stages = dataset.pipeline[: last + 1 + bool(options["shardshuffle"])]
    return urls(library.DataPipeline(*stages))


# -- shard lists -----------------------------------------------------------------------------------


@differential
@given(st.integers(1, 150), SEEDS)
def test_shard_lists(count, seed):
    theirs, ours = both(lambda library: urls(library.SimpleShardList(names(count), seed=seed)))
    assert ours == theirs


@differential
@given(st.integers(1, 150), st.one_of(st.booleans(), SIZES), st.integers(), st.booleans())
def test_shardshuffle(count, size, seed, detshuffle):
    options = {"shardshuffle": size, "seed": seed, "detshuffle": detshuffle}
    theirs, ours = both(lambda library: shard_order(library, count, **options))
    assert ours == theirs


@pytest.mark.parametrize("size", [True, 7])
def test_shardshuffle_on_each_reader(size):
    for info in all_workers(2, 3):
        with as_worker(info):
            orders = both(
                lambda library: shard_order(
                    library, 20, shardshuffle=size, seed=3, nodesplitter=library.split_by_node
                )
            )
        assert len(set(map(tuple, orders))) == 1


@differential
@given(st.lists(st.one_of(st.none(), SEEDS), min_size=1, max_size=4), st.integers(0, 3))
def test_a_seed_assigned_in_each_epoch(seeds, previous):
    """`dataset.stage(0).seed = epoch` fixes the order, however often the dataset was read before."""

    def run(library):
        dataset = library.DataPipeline(library.SimpleShardList(names(9)), library.split_by_worker)
        for _ in range(previous if library is wds else 0):
            next(iter(dataset))
        orders = []
        for seed in seeds:
            dataset.stage(0).seed = seed
            orders.append([urls(dataset), urls(dataset)])
        return orders

    theirs, ours = both(run)
    assert ours == theirs


def test_an_assigned_seed_of_a_state():
    def dataset(seed=None):
        result = wds.DataPipeline(wds.SimpleShardList(names(9), seed=4))
        if seed is not None:
            result.stage(0).seed = seed
        return result

    saved = dataset(4)
    list(saved)
    items = iter(saved)
    next(items)
    state = saved.state_dict()
    resumed = dataset(4)
    resumed.load_state_dict(state)
    assert list(resumed) == list(items)
    for other in (dataset(), dataset(5)):
        with pytest.raises(StateMismatch, match="seeds"):
            other.load_state_dict(state)


# -- shuffles --------------------------------------------------------------------------------------


@differential
@given(st.integers(0, 300), SIZES, SIZES, SEEDS)
def test_shuffle(count, bufsize, initial, seed):
    theirs, ours = both(
        lambda library: list(library.shuffle(bufsize, initial, seed=seed)(iter(range(count))))
    )
    assert ours == theirs


@pytest.mark.parametrize("before_split", [True, False])
def test_shuffle_in_a_pipeline_on_each_reader(before_split):
    for info in all_workers(2, 2):
        with as_worker(info):

            def run(library):
                stages = [library.shuffle(10, seed=3), library.split_by_node]
                return urls(
                    library.DataPipeline(
                        library.SimpleShardList(names(40)), *(stages if before_split else stages[::-1])
                    )
                )

            theirs, ours = both(run)
        assert ours == theirs


@pytest.mark.filterwarnings("ignore:.*unclosed file:ResourceWarning")  # of the webdataset library
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("detshuffle", [True, False])
def test_samples_of_a_dataset(tmp_path, detshuffle):
    for number in range(12):
        files = [(f"{number}-{i}.txt", b"") for i in range(9)]
        (tmp_path / f"{number}.tar").write_bytes(plain(files))
    paths = [str(tmp_path / f"{number}.tar") for number in range(12)]

    def run(library):
        dataset = library.WebDataset(paths, shardshuffle=5, seed=3, detshuffle=detshuffle)
        return [sample["__key__"] for sample in dataset.shuffle(30, initial=10, seed=4)]

    theirs, ours = both(run)
    assert ours == theirs != sorted(ours)


def test_a_state_keeps_whether_a_seed_was_given():
    """On other readers than the first, the order of the first epoch depends on it."""
    given_seed, default = (wds.DataPipeline(range(9), wds.shuffle(5, seed=seed)) for seed in (0, None))
    with pytest.raises(StateMismatch, match="seeds"):
        default.load_state_dict(given_seed.state_dict())


@differential
@given(st.integers(0, 200), SIZES, SIZES, st.integers(), st.integers(-3, 40), st.integers(0, 40))
def test_detshuffle_in_every_epoch(count, bufsize, initial, seed, epoch, later):
    def run(library):
        stage = library.detshuffle(bufsize, initial, seed, epoch)
        orders = [list(stage.run(iter(range(count)))) for _ in range(3)]
        numbers = [stage.epoch]
        stage.epoch = later
        orders += [list(stage.run(iter(range(count)))) for _ in range(2)]
        return orders, [*numbers, stage.epoch]

    theirs, ours = both(run)
    assert ours == theirs


@differential
@given(st.integers(0, 5), st.integers(-1, 9), st.integers(0, 9), st.booleans())
def test_detshuffle_in_a_pipeline(seed, epoch, later, split):
    def run(library):
        splitter = [library.split_by_node] if split else []
        stage = library.detshuffle(100, seed=seed, epoch=epoch)
        dataset = library.DataPipeline(library.SimpleShardList(names(30)), stage, *splitter)
        orders = [urls(dataset) for _ in range(2)]
        dataset.stage(1).epoch = later
        orders += [urls(dataset) for _ in range(2)]
        return orders, dataset.stage(1).epoch

    theirs, ours = both(run)
    assert ours == theirs


@pytest.mark.parametrize("kind", ["epoch", "seed"])
@pytest.mark.parametrize("set_epoch", [True, False])
def test_the_split_does_not_depend_on_peeks(kind, set_epoch):
    """After an assignment before a split, one reader looks at a sample; together they still read all shards."""
    read = []
    for info in all_workers(3, 1):
        with as_worker(info):
            stages = [wds.SimpleShardList(names(30), seed=1), wds.detshuffle(9), wds.split_by_node]
            dataset = wds.DataPipeline(*stages)
            for epoch in range(3):
                if kind == "epoch":
                    dataset.stage(1).epoch = 4 * epoch
                else:
                    dataset.stage(0).seed = epoch
                if info.rank == epoch:
                    next(iter(dataset))
                if set_epoch:
                    dataset.set_epoch(epoch + 2)
                read.append((epoch, urls(dataset)))
                read.append((epoch + 10, urls(dataset)))
    for epoch in (0, 1, 2, 10, 11, 12):
        assert sorted(url for number, order in read if number == epoch for url in order) == sorted(names(30))


# -- draws with replacement ------------------------------------------------------------------------


@differential
@given(
    st.integers(1, 300),
    st.integers(),
    st.one_of(st.none(), st.integers(), st.floats(allow_nan=False)),
    st.integers(0, 3),
    st.integers(0, 7),
)
def test_resampled_shards(count, seed, worker_seed, rank, worker):
    options = {"seed": seed, "deterministic": True, "nshards": 20}
    if worker_seed is not None:
        options["worker_seed"] = lambda: worker_seed

    def run(library):
        shards = library.ResampledShards(names(count), **options)
        return [urls(shards) for _ in range(4)]

    with as_worker(WorkerInfo(rank, 4, worker, 8)):
        theirs, ours = both(run)
    assert ours == theirs


@differential
@given(
    st.lists(st.tuples(st.integers(-1, 29), st.integers()), min_size=1, max_size=3),
    st.integers(0, 3),
    st.booleans(),
)
def test_the_seed_and_epoch_of_resampled_shards_can_be_set(settings_, previous, pipeline):
    def run(library):
        shards = library.ResampledShards(names(50), nshards=10, deterministic=True)
        dataset = library.DataPipeline(shards, library.split_by_worker) if pipeline else shards
        stage = dataset.stage(0) if pipeline else shards
        for _ in range(previous if library is wds else 0):
            list(dataset)
        result = []
        for epoch, seed in settings_:
            stage.epoch, stage.seed = epoch, seed
            result.append((urls(dataset), stage.epoch))
        return result

    theirs, ours = both(run)
    assert ours == theirs


def test_resampled_datasets_use_their_seed():
    """webdataset ignores it: its order is a new one in each run."""
    theirs = webdataset.ResampledShards(names(50), seed=5, deterministic=True)
    ours = wds.WebDataset(names(50), resampled=True, seed=5, shardshuffle=False)
    assert urls(ours.stage(0), 100) == urls(theirs, 100)


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_epoch_that_was_set_is_part_of_states(deterministic):
    def dataset():
        shards = wds.ResampledShards(names(50), nshards=10, deterministic=deterministic)
        return wds.DataPipeline(shards, wds.detshuffle(5, seed=1, epoch=3))

    saved = dataset()
    saved.stage(0).epoch = 6
    saved.stage(1).epoch = 8
    before = saved.state_dict()
    items = iter(saved)
    head = list(islice(items, 4))
    state, rest, following = saved.state_dict(), list(items), list(saved)
    for position, expected in ((before, head + rest), (state, rest)):
        resumed = dataset()
        resumed.load_state_dict(position)
        assert list(resumed) == expected
        assert list(resumed) == following
        assert (resumed.stage(0).epoch, resumed.stage(1).epoch) == (8, 10)


@pytest.mark.parametrize("mixed", [True, False])
def test_states_of_other_orders_are_refused(mixed):
    shards = wds.ResampledShards(names(50), nshards=10, deterministic=True)
    dataset = wds.RoundRobin([shards]) if mixed else wds.DataPipeline(shards)
    with pytest.raises(StateMismatch, match="version"):
        dataset.load_state_dict({**dataset.state_dict(), "version": 2})


# -- helpers ---------------------------------------------------------------------------------------


@differential
@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False)), max_size=5))
def test_make_seed(parts):
    theirs, ours = both(lambda library: library.utils.make_seed(*parts))
    assert ours == theirs


def test_make_seed_of_text_is_the_same_in_each_process():
    assert wds.utils.make_seed("text", 1) == 873841297


def test_a_generator_of_the_program():
    theirs, ours = both(lambda library: list(library.shuffle(9, rng=random.Random(3))(iter(range(99)))))
    assert ours == theirs
