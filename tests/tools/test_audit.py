"""Compare the answers of the audit with the batches of a real Loader."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

import tarmac
from harness.shards import plain
from tarmac.errors import TooManyShards, UsageError
from tarmac.exact.order.exact import ExactOrder
from tarmac.tools.audit import Occurrence

LENGTHS = (30, 7, 51, 1, 44)
"""133 samples: a remainder for every batch size below."""


def make(folder, prefix="k", lengths=LENGTHS):
    folder.mkdir(exist_ok=True)
    number = 0
    for shard, length in enumerate(lengths):
        files = [
            (f"{prefix}{location:04d}.cls", b"%d" % (location % 3))
            for location in range(number, number + length)
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
    return tarmac.Mix([dataset.take_per_epoch(90), other.repeat(2.5)])


def batches(dataset, rank, options):
    """Return the batches of a real loader, as lists of keys."""
    options = dict(options)
    start = {name: options.pop(name, 0) for name in ("epoch", "position")}
    loader = tarmac.Loader(dataset, rank=rank, threads=0, **{"world_size": 1} | options)
    loader.load_state_dict(loader.state_dict() | start)
    return [list(batch["__key__"]) for batch in loader]


def answers(audit, rank):
    steps = [[sample.key for sample in audit.step(step, rank)] for step in range(audit.steps)]
    return [keys for keys in steps if keys]  # a loader has no empty batches


OPTIONS = [
    {"batch_size": 8},
    {"batch_size": 5, "world_size": 4, "seed": 3, "epoch": 2, "streams": 8, "window": 4},
    {"batch_size": 5, "world_size": 4, "tail": "pad", "epoch": 1},
    {"batch_size": 5, "world_size": 4, "tail": "short", "streams": 4, "window": 10, "seed": "text"},
    {"batch_size": 8, "world_size": 2, "position": 37, "tail": "short", "streams": 2, "window": 16},
    {"batch_size": 8, "world_size": 2, "position": 37, "tail": "pad"},
    {"batch_size": 8, "world_size": 2, "shuffle": False, "position": 16},
    {"batch_size": 100, "world_size": 2, "tail": "pad"},  # more than there are
]
SOURCES = pytest.mark.parametrize("source", ["dataset", "mix"])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@SOURCES
def test_steps_are_those_of_the_loader(source, options, request):
    data = request.getfixturevalue(source)
    audit = tarmac.audit(data, **options)
    for rank in range(options.get("world_size", 1)):
        assert answers(audit, rank) == batches(data, rank, options)


def test_a_loader_that_resumes_with_another_world_size(tmp_path):
    dataset = make(tmp_path / "a")
    loader = tarmac.Loader(dataset, 4, rank=0, world_size=2, threads=0)
    for _ in zip(range(3), loader, strict=False):
        pass
    state = loader.state_dict()
    again = tarmac.Loader(dataset, 6, rank=3, world_size=4, threads=0)
    again.load_state_dict(state)
    assert state["position"] == 24
    audit = tarmac.audit(dataset, batch_size=6, world_size=4, position=24)
    assert [list(batch["__key__"]) for batch in again] == answers(audit, 3)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@SOURCES
def test_key_is_the_inverse_of_step(source, options, request):
    data = request.getfixturevalue(source)
    audit = tarmac.audit(data, **options)
    expected = defaultdict(set)
    for step in range(audit.steps):
        for rank in range(options.get("world_size", 1)):
            for slot, sample in enumerate(audit.step(step, rank)):
                occurrence = Occurrence(options.get("epoch", 0), sample.position, step, rank, slot)
                expected[sample.key].add(occurrence)
    keys = list(data._concatenated.keys() if source == "mix" else data.keys())
    for key in keys[::7]:
        assert {each for each in audit.key(key) if each.step is not None} == expected[key]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@SOURCES
def test_every_epoch_verifies(source, options, request):
    audit = tarmac.audit(request.getfixturevalue(source), **options)
    result, summary = audit.verify(), audit.summary()
    assert result.ok
    assert len(result.steps) == options.get("world_size", 1)
    assert (result.padded, result.dropped) == (summary.padded, summary.dropped)
    assert result.to_dict()["ok"] is True


@pytest.mark.parametrize("position", [0, 5, 132])
def test_a_wrong_order_does_not_verify(dataset, position, monkeypatch):
    audit = tarmac.audit(dataset, batch_size=1)
    at = audit.order.at

    def wrong(epoch, positions):
        numbers = at(epoch, positions)
        return np.where(np.asarray(positions) == position, at(epoch, [(position + 1) % 133])[0], numbers)

    monkeypatch.setattr(audit.order, "at", wrong)
    result = audit.verify()
    assert not result.ok
    assert (result.repeated, result.missing, len(result.examples)) == (1, 1, 2)


def test_all_ranks_in_turn(dataset):
    audit = tarmac.audit(dataset, batch_size=4, world_size=2)
    both = list(audit.step(3))
    assert both == [*audit.step(3, 0), *audit.step(3, 1)]
    assert sorted(sample.position for sample in both) == list(range(24, 32))


def test_occurrences_over_epochs_and_of_dropped_samples(dataset):
    audit = tarmac.audit(dataset, batch_size=8, world_size=4, position=64)
    occurrences = {key: audit.key(key, epochs=3) for key in list(dataset.keys())}
    assert all([each.epoch for each in some] == [0, 1, 2] for some in occurrences.values())
    unread = [some[0].position for some in occurrences.values() if some[0].step is None]
    # Of 133 samples 64 came before, 2 steps of 32 are left, and 5 are dropped.
    assert sorted(unread) == [*range(64), *range(128, 133)]
    assert {some[1].step for some in occurrences.values()} == {0, 1, 2, 3, None}


def test_a_key_that_comes_twice(tmp_path):
    dataset = make(tmp_path / "a", lengths=(5, 6)) + make(tmp_path / "b", lengths=(4,))
    audit = tarmac.audit(dataset, batch_size=5)
    first, second = audit.key("k0002")
    assert first.position < second.position
    assert len(audit.key("k0009")) == 1


def test_where_selects(dataset):
    audit = tarmac.audit(dataset, batch_size=5, tail="short", where="key >= 'k0100'")
    keys = [sample.key for step in range(audit.steps) for sample in audit.step(step)]
    assert sorted(keys) == [f"k{number:04d}" for number in range(100, 133)]
    with pytest.raises(UsageError, match="k0001"):
        audit.key("k0001")


def test_an_empty_selection(dataset):
    audit = tarmac.audit(dataset, batch_size=5, where="key = 'absent'")
    summary = audit.summary()
    assert (summary.samples, summary.steps, summary.dropped, summary.open_shards) == (0, 0, 0, 0)
    assert audit.verify().ok


def test_shards_patterns_and_manifests(tmp_path):
    dataset = make(tmp_path / "a")
    paths = [str(tmp_path / "a" / "0.tar"), str(tmp_path / "a" / "1.tar")]
    assert tarmac.audit(paths, batch_size=5).summary().samples == 37
    pattern = str(tmp_path / "a" / "*.tar")
    assert tarmac.audit(pattern, batch_size=5).summary().fingerprint == dataset.fingerprint


def test_a_mix_is_selected_from_before_mixing(mix):
    with pytest.raises(UsageError, match="`where`"):
        tarmac.audit(mix, batch_size=5, where="key = 'x'")


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 0}, {"world_size": 0}, {"epoch": -1}, {"position": -1}, {"tail": "wag"}, {"window": 0}],
    ids=str,
)
def test_invalid_options(dataset, options):
    with pytest.raises(UsageError, match=next(iter(options)).partition("_")[0]):
        tarmac.audit(dataset, **{"batch_size": 1} | options)


def test_step_and_rank_out_of_range(dataset):
    audit = tarmac.audit(dataset, batch_size=8, world_size=4)
    with pytest.raises(UsageError, match=r"`step`: .*\b4\b"):
        list(audit.step(4))
    with pytest.raises(UsageError, match=r"`rank`: .*\b4\b"):
        list(audit.step(0, 4))


def test_summary(dataset):
    def summary(**options):
        return tarmac.audit(dataset, batch_size=8, world_size=4, **options).summary()

    first = summary()
    assert (first.samples, first.shards, first.steps, first.dropped, first.padded) == (133, 5, 4, 5, 0)
    assert (first.streams, first.window, first.bytes) == (64, 16_384, 133)
    assert first.fingerprint == dataset.fingerprint
    padded, short, resumed = summary(tail="pad"), summary(tail="short"), summary(position=133)
    assert (padded.steps, padded.dropped, padded.padded) == (5, 0, 27)
    assert (short.steps, short.dropped, short.padded) == (5, 0, 0)
    assert (resumed.steps, resumed.dropped, resumed.padded) == (0, 0, 0)


@pytest.mark.parametrize(
    "options", [{"window": 2000}, {"window": 50, "world_size": 4}, {"window": 50}], ids=str
)
def test_open_shards_are_those_of_the_windows(tmp_path, options):
    dataset = make(tmp_path / "a", lengths=(64,) * 32)
    order = ExactOrder(dataset.lengths, streams=4, window=options["window"])

    def around(position):
        starts = range(0, 4, options.get("world_size", 1))
        windows = [order.window_at(0, position - position % 4 + start) for start in starts]
        return len({number // 64 for window in windows for number in order.at(0, list(window)).tolist()})

    expected = max(around(2048 * part // 10) for part in (1, 3, 5, 7, 9))
    audit = tarmac.audit(dataset, batch_size=8, streams=4, **options)
    assert audit.summary().open_shards == expected
    assert (expected > 16) == (options["window"] == 2000)
    twice = tarmac.audit(tarmac.Mix([dataset, dataset]), batch_size=8, streams=4, **options)
    assert twice.summary().open_shards == 2 * expected


def test_without_shuffle_few_shards_are_open(dataset):
    audit = tarmac.audit(dataset, batch_size=8, streams=4, shuffle=False)
    assert audit.summary().open_shards <= 2


def test_access(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain([("a.b.x", b"1"), ("a.c.x", b"2")]))
    source = str(tmp_path / "a.tar")
    audit = tarmac.audit(
        source, batch_size=1, split_name=tarmac.last_dot, cache=tmp_path / "c", progress=False
    )
    assert {sample.key for step in range(2) for sample in audit.step(step)} == {"a.b", "a.c"}
    with pytest.raises(TooManyShards):
        tarmac.audit([source, source], batch_size=1, limits=tarmac.Limits(shards=1))
    with pytest.raises(TypeError, match="split_name"):
        tarmac.audit(source, batch_size=1, split_nam=tarmac.last_dot)


def test_answers_are_readable(dataset):
    audit = tarmac.audit(dataset, batch_size=8, world_size=4)
    assert repr(audit).startswith("<EpochAudit: samples 133, epoch 0, position 0, steps 4, batch_size 8, ")
    assert str(audit.verify()).split("\n")[0] == "128 of 133 samples are read exactly once"
    assert "dropped      5" in str(audit.summary())
