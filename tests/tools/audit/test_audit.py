"""The audit speaks of what the Loader does: its answers are compared with real batches."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

import tarmac
from harness.shards import plain
from tarmac.exact.order.exact import ExactOrder
from tarmac.tools.audit.audit import Coming, OrderOptions, audit

LENGTHS = (30, 7, 51, 1, 44)
"""133 samples: a remainder for every batch size below."""


def make(folder, prefix="k", lengths=LENGTHS):
    folder.mkdir(exist_ok=True)
    number = 0
    for shard, length in enumerate(lengths):
        files = [
            (f"{prefix}{place:04d}.cls", b"%d" % (place % 3)) for place in range(number, number + length)
        ]
        (folder / f"{shard}.tar").write_bytes(plain(files))
        number += length
    return tarmac.Dataset(str(folder / "*.tar"))


@pytest.fixture
def dataset(tmp_path):
    return make(tmp_path / "a")


@pytest.fixture
def mix(tmp_path, dataset):
    other = make(tmp_path / "b", "other", (20, 13))
    return tarmac.Mix([dataset.choose(90), other.repeat(2.5)])


def batches(dataset, options, rank, **more):
    """What a real loader hands out, as lists of keys."""
    loader = tarmac.Loader(
        dataset,
        options.batch_size,
        seed=options.seed,
        shuffle=options.shuffle,
        rank=rank,
        world_size=options.world_size,
        threads=0,
        tail=options.tail,
        streams=options.streams,
        window=options.window,
        **more,
    )
    state = loader.state_dict() | {"epoch": options.epoch, "position": options.position}
    loader.load_state_dict(state)
    return [list(batch["__key__"]) for batch in loader]


def answers(found, rank):
    steps = [[seen.key for seen in found.what(step, rank)] for step in range(found.steps)]
    return [keys for keys in steps if keys]  # a loader has no empty batches


OPTIONS = [
    OrderOptions(8),
    OrderOptions(5, 4, seed=3, epoch=2, streams=8, window=4),
    OrderOptions(5, 4, tail="pad", epoch=1),
    OrderOptions(5, 4, tail="short", streams=4, window=10, seed="text"),
    OrderOptions(8, 2, position=37, tail="short", streams=2, window=16),
    OrderOptions(8, 2, position=37, tail="pad"),
    OrderOptions(8, 2, shuffle=False, position=16),
    OrderOptions(100, 2, tail="pad"),  # more than there are
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["dataset", "mix"])
def test_what_is_what_the_loader_hands_out(kind, options, request):
    data = request.getfixturevalue(kind)
    found = audit(data, options)
    for rank in range(options.world_size):
        assert answers(found, rank) == batches(data, options, rank)


def test_a_loader_that_stops_and_goes_on_with_other_ranks(tmp_path):
    """The position of a real state, taken over by another number of ranks."""
    dataset = make(tmp_path / "a")
    loader = tarmac.Loader(dataset, 4, rank=0, world_size=2, threads=0)
    for _ in zip(range(3), loader, strict=False):
        pass
    state = loader.state_dict()
    options = OrderOptions(6, 4, position=state["position"])
    again = tarmac.Loader(dataset, 6, rank=3, world_size=4, threads=0)
    again.load_state_dict(state)
    assert state["position"] == 24
    assert [list(batch["__key__"]) for batch in again] == answers(audit(dataset, options), 3)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["dataset", "mix"])
def test_when_is_the_inverse_of_what(kind, options, request):
    found = audit(request.getfixturevalue(kind), options)
    comings = defaultdict(set)
    for step in range(found.steps):
        for rank in range(options.world_size):
            for place, seen in enumerate(found.what(step, rank)):
                comings[seen.key].add(Coming(options.epoch, seen.position, step, rank, place))
    for key in list(found.together.keys())[::7]:
        asked = {coming for coming in found.when(key) if coming.step is not None}
        assert asked == comings[key]


def test_all_ranks_in_turn(dataset):
    found = audit(dataset, OrderOptions(4, 2))
    together = list(found.what(3))
    assert together == [*found.what(3, 0), *found.what(3, 1)]
    assert sorted(seen.position for seen in together) == list(range(24, 32))
    assert {seen.step for seen in together} == {3}


def test_when_over_epochs_and_where_nobody_gets_it(dataset):
    found = audit(dataset, OrderOptions(8, 4, position=64))
    comings = {key: found.when(key, epochs=3) for key in list(dataset.keys())}
    assert all([coming.epoch for coming in each] == [0, 1, 2] for each in comings.values())
    firsts = [each[0] for each in comings.values()]
    # Of 133 samples 64 came before, then 2 steps of 32 are left, and 5 are left out.
    assert sorted(coming.position for coming in firsts if coming.step is None) == [
        *range(64),
        *range(128, 133),
    ]
    seconds = [each[1] for each in comings.values()]
    assert sorted(coming.position for coming in seconds if coming.step is None) == list(range(128, 133))
    assert {coming.step for coming in seconds} == {0, 1, 2, 3, None}


def test_when_a_key_is_there_twice(tmp_path):
    dataset = make(tmp_path / "a", lengths=(5, 6)) + make(tmp_path / "b", lengths=(4,))
    comings = audit(dataset, OrderOptions(5)).when("k0002")
    assert len(comings) == 2
    assert comings[0].position < comings[1].position
    assert len(audit(dataset, OrderOptions(5)).when("k0009")) == 1


def test_where_chooses(dataset):
    found = audit(dataset, OrderOptions(5, tail="short"), where="key >= 'k0100'")
    seen = [seen.key for step in range(found.steps) for seen in found.what(step)]
    assert sorted(seen) == [f"k{number:04d}" for number in range(100, 133)]
    with pytest.raises(KeyError, match="none of the 33 samples"):
        found.when("k0001")


def test_nothing_chosen(dataset):
    found = audit(dataset, OrderOptions(5), where="key = 'absent'")
    summary = found.summary()
    assert (summary.samples, summary.steps, summary.left_out, summary.shards_at_once) == (0, 0, 0, 0)
    with pytest.raises(IndexError, match="outside of the epoch"):
        list(found.what(0))


def test_shards_and_manifests_are_opened(tmp_path):
    dataset = make(tmp_path / "a")
    found = audit([str(tmp_path / "a" / "0.tar"), str(tmp_path / "a" / "1.tar")], OrderOptions(5))
    assert found.samples == 37
    assert audit(str(tmp_path / "a" / "*.tar"), OrderOptions(5)).dataset.fingerprint == dataset.fingerprint


def test_a_mix_has_no_where_and_no_stream(mix):
    with pytest.raises(ValueError, match="before they are mixed"):
        audit(mix, OrderOptions(5), where="key = 'x'")
    with pytest.raises(ValueError, match="no stream"):
        audit(mix, OrderOptions(5)).stream(10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "at least 1 sample"),
        ({"batch_size": 1, "world": 3}, "shared evenly"),
        ({"batch_size": 1, "world": 0}, "at least one"),
        ({"batch_size": 1, "epoch": -1}, "counted from 0"),
        ({"batch_size": 1, "position": -1}, "positions count from 0"),
        ({"batch_size": 1, "tail": "wag"}, "drop, pad, short"),
    ],
)
def test_options_check_themselves(options, message):
    with pytest.raises(ValueError, match=message):
        OrderOptions(**options)


def test_step_and_rank_outside(dataset):
    found = audit(dataset, OrderOptions(8, 4))
    with pytest.raises(IndexError, match="it has 4"):
        list(found.what(4))
    with pytest.raises(ValueError, match="rank 4 of 4"):
        list(found.what(0, 4))


def test_summary(dataset):
    summary = audit(dataset, OrderOptions(8, 4)).summary()
    assert (summary.samples, summary.shards, summary.steps) == (133, 5, 4)
    assert (summary.left_out, summary.padded) == (5, 0)
    assert (summary.streams, summary.window) == (64, 16_384)
    assert summary.fingerprint == dataset.fingerprint
    assert 0.8 < summary.quality <= 1
    padded = audit(dataset, OrderOptions(8, 4, tail="pad")).summary()
    assert (padded.steps, padded.left_out, padded.padded) == (5, 0, 27)
    short = audit(dataset, OrderOptions(8, 4, tail="short")).summary()
    assert (short.steps, short.left_out, short.padded) == (5, 0, 0)
    resumed = audit(dataset, OrderOptions(8, 4, position=133)).summary()
    assert (resumed.steps, resumed.left_out, resumed.padded) == (0, 0, 0)


def test_quality_of_other_orders(tmp_path):
    dataset = make(tmp_path / "a", lengths=(100,) * 20)
    assert audit(dataset, OrderOptions(32, shuffle=False)).quality() == pytest.approx(0, abs=1e-9)
    found = audit(dataset, OrderOptions(32))
    assert found.stream_quality(50) < 0.6 < 0.95 < found.quality()


def test_quality_of_a_mix_allows_for_its_shares(tmp_path):
    """Most batches come from the small dataset, as they must: that is no lack of shuffling."""
    large, small = make(tmp_path / "a", lengths=(100,) * 20), make(tmp_path / "b", lengths=(20,) * 5)
    mix = tarmac.Mix([large.choose(200), small.repeat(18)])
    assert audit(mix, OrderOptions(40)).quality() > 0.95
    assert audit(mix, OrderOptions(40, shuffle=False)).quality() < 0.5


@pytest.mark.parametrize("options", [{"window": 2000}, {"window": 50, "world": 4}, {"window": 50}], ids=str)
def test_shards_at_once_are_those_of_the_windows(tmp_path, options):
    dataset = make(tmp_path / "a", lengths=(64,) * 32)
    found = audit(dataset, OrderOptions(8, streams=4, **options))
    order = ExactOrder(dataset.lengths, streams=4, window=options["window"])

    def around(position):
        windows = [
            order.window_at(0, position - position % 4 + s) for s in range(0, 4, found.options.world_size)
        ]
        return len({shard for window in windows for shard in order.at(0, list(window))[0].tolist()})

    expected = max(around(2048 * part // 10) for part in (1, 3, 5, 7, 9))
    assert found.summary().shards_at_once == expected
    assert (expected > 16) == (options["window"] == 2000)
    twice = audit(tarmac.Mix([dataset, dataset]), OrderOptions(8, streams=4, **options))
    assert twice.summary().shards_at_once == 2 * expected


def test_in_order_few_shards_are_read_at_once(dataset):
    assert audit(dataset, OrderOptions(8, streams=4, shuffle=False)).summary().shards_at_once <= 2


def test_keys_of_are_those_of_the_dataset(dataset):
    some = dataset.where("key >= 'k0010'")[::3]
    numbers = np.array([7, 0, 40, 7, 3])
    assert some.keys_of(numbers) == [some.key_of(number) for number in numbers.tolist()]
    assert some.keys_of(numbers[:0]) == []
