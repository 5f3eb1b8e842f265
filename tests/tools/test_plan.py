"""Plan: output shards that can be written one by one, in any order, anywhere."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tarmac
from tarmac.errors import UsageError
from tarmac.indexing.manifest import Inputs
from tarmac.tools import plan as module
from tarmac.tools.options import Access
from tarmac.tools.order import Order, Shuffled
from tarmac.tools.output import Output
from tarmac.tools.plan import (
    BATCH,
    IndexedSamples,
    OutputShard,
    StreamedShards,
    can_index,
    open_indexed,
    plan,
    selects_by_split,
    shard_stem,
)
from tarmac.tools.select import Select
from tools.shards import make

ALL = Select()


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    return make(tmp_path_factory.mktemp("plan"), 7, 0, 12)


@pytest.fixture
def indexed(urls):
    samples = open_indexed(Inputs(urls), ALL, Access())
    yield samples
    samples.dataset.close()


def sizes(shards):
    return [shard.stop - shard.start for shard in shards]


def test_shards_by_samples(indexed):
    shards = list(indexed.shards(Output("x-{i}.tar", max_samples=5)))
    assert [shard.name for shard in shards] == ["x-0.tar", "x-1.tar", "x-2.tar", "x-3.tar"]
    assert sizes(shards) == [5, 5, 5, 4]
    assert sizes(indexed.shards(Output("x.tar"))) == [19]
    assert sizes(indexed.shards(Output("x-{i}.tar", max_samples=19))) == [19]


@given(st.integers(1, 700), st.integers(1, 30))
def test_shards_by_bytes(urls, most_bytes, most):
    samples = open_indexed(Inputs(urls), ALL, Access())
    every = [sum(map(len, list(each.values())[2:])) for each in tarmac.read(urls)]
    shards = list(samples.shards(Output("x-{i}.tar", max_bytes=most_bytes, max_samples=most)))
    assert sum(sizes(shards)) == 19
    for shard, after in zip(shards, [*shards[1:], None], strict=True):
        here = every[shard.start : shard.stop]
        assert len(here) == 1 or sum(here) <= most_bytes
        assert len(here) <= most
        full = after is None or len(here) == most or sum(here) + every[after.start] > most_bytes
        assert full
    samples.dataset.close()


@pytest.mark.parametrize("order", [None, Shuffled(19, 1)])
def test_shards_do_not_depend_on_the_batch_of_sizes(indexed, order, monkeypatch):
    ordered = replace(indexed, permutation=order)
    outputs = [Output("x-{i}.tar", max_bytes=most, max_samples=5) for most in (1, 150, 300, 10_000)]
    plainly = [list(ordered.shards(output)) for output in outputs]
    assert [len(shards) for shards in plainly] == sorted({len(shards) for shards in plainly})[::-1]
    for batch in (1, 4, 18, 19):
        monkeypatch.setattr("tarmac.tools.plan.SIZES_BATCH", batch)
        assert [list(ordered.shards(output)) for output in outputs] == plainly


@dataclass(frozen=True)
class Watched(IndexedSamples):
    """Samples that record which of them are fetched in a batch."""

    fetches: list = field(default_factory=list)

    def fetch(self, indices):
        self.fetches.append(indices.tolist())
        return super().fetch(indices)


@pytest.mark.parametrize("order", [None, Shuffled(19, 1)])
@pytest.mark.parametrize(("batch", "max_bytes"), [(3, 1 << 20), (19, 200), (4, 1), (5, 300)])
def test_batches_are_bounded_by_samples_and_by_bytes(indexed, urls, order, batch, max_bytes, monkeypatch):
    every = list(tarmac.read(urls))
    expected = every if order is None else [every[number] for number in order.at(0, 19)]
    monkeypatch.setattr("tarmac.tools.plan.BATCH_BYTES", max_bytes)
    for start, stop in [(0, 19), (2, 17), (18, 19)]:
        samples = Watched(indexed.dataset, ALL, order, batch)
        assert list(samples.samples(OutputShard("x", start, stop))) == expected[start:stop]
        assert len(samples.fetches) > (stop - start > 1)
        for numbers in samples.fetches:
            assert len(numbers) <= batch
            assert len(numbers) == 1 or sum(indexed.sizes(numbers)) <= max_bytes


def test_a_shard_of_several_batches(tmp_path):
    count = 2 * BATCH + 7
    samples = open_indexed(Inputs(make(tmp_path, count)), ALL, Access())
    every = list(samples.samples(OutputShard("x", 0, count)))
    assert [each["__key__"] for each in every] == [f"s0/{number:03d}" for number in range(count)]
    samples.dataset.close()


def test_shards_by_input_shard(indexed, urls):
    shards = list(indexed.shards(Output("out/")))
    assert [shard.name for shard in shards] == ["out/in-0.tar", "out/in-1.tar", "out/in-2.tar"]
    assert sizes(shards) == [7, 0, 12]
    shuffled = type(indexed)(indexed.dataset, ALL, Shuffled(19, 1))
    with pytest.raises(UsageError, match="out/"):
        list(shuffled.shards(Output("out/")))


def test_several_shards_need_several_names(indexed):
    with pytest.raises(UsageError, match=r"x\.tar"):
        list(indexed.shards(Output("x.tar", max_samples=5)))


def test_shards_can_be_written_anywhere(indexed, urls):
    again = pickle.loads(pickle.dumps(indexed))
    shards = list(indexed.shards(Output("x-{i}.tar", max_samples=4)))
    samples = {shard.name: list(again.samples(shard)) for shard in reversed(shards)}
    assert [each for shard in shards for each in samples[shard.name]] == list(tarmac.read(urls))
    again.dataset.close()


def test_streams_shard_by_shard(urls):
    streams = StreamedShards(urls, Select(slice_shard=slice(2), fields=["cls"]))
    shards = list(streams.shards(Output("out/")))
    assert [shard.name for shard in shards] == ["out/in-0.tar", "out/in-1.tar", "out/in-2.tar"]
    assert [each["__key__"] for each in streams.samples(shards[2])] == ["s2/000", "s2/001"]
    everything = StreamedShards(urls, ALL)
    assert [len(list(everything.samples(shard))) for shard in shards] == [7, 0, 12]


def test_fingerprints_change_with_the_samples(urls, tmp_path, indexed):
    copies = make(tmp_path, 7, 0, 12)
    streamed, first = StreamedShards(copies, ALL), OutputShard("x")
    before, earlier, status = streamed.fingerprint(), streamed.earlier_fingerprint(), streamed.statuses(first)
    os.utime(copies[0], (1, 1))
    assert StreamedShards(copies, ALL).fingerprint() == before
    assert streamed.earlier_fingerprint() != earlier
    assert streamed.statuses(first) != status
    assert StreamedShards(copies[:2], ALL).fingerprint() != before
    assert StreamedShards(["-"], ALL).fingerprint() == StreamedShards(["-"], ALL).fingerprint()
    assert indexed.fingerprint() != type(indexed)(indexed.dataset, ALL, Shuffled(19, 1)).fingerprint()
    assert open_indexed(Inputs(urls[:1]), ALL, Access()).fingerprint() != indexed.fingerprint()


def test_no_index_is_left_beside_the_shards(tmp_path):
    urls = make(tmp_path, 3)
    open_indexed(Inputs(urls), ALL, Access()).dataset.close()
    assert [path.name for path in tmp_path.iterdir()] == ["in-0.tar"]


@pytest.mark.parametrize(
    ("url", "stem"),
    [
        ("a/b-1.tar", "b-1"),
        ("s3://x/c.TAR.gz?v=1", "c"),
        ("d.tar.zst", "d"),
        ("e", "e"),
        ("f.tar.tar", "f.tar"),
    ],
)
def test_the_name_of_a_shard(url, stem):
    assert shard_stem(url) == stem


def test_what_can_be_indexed():
    assert can_index(["a.tar", "s3://b/c.tar", "https://d/e.tar?x=.gz"])
    assert not can_index(["a.tar", "-"])
    assert not can_index(["pipe:cat x"])
    assert not can_index(["a.tar.gz"])
    assert not can_index(["https://d/e.tar.zst?x=1"])


def test_splits():
    both = Select(split={"a": 0.5, "b": 0.5})
    selects = selects_by_split(both, Output("{split}-{i}.tar"))
    assert [(name, select.only) for name, select in selects.items()] == [("a", "a"), ("b", "b")]
    one = replace(both, only="b")
    assert selects_by_split(one, Output("{i}.tar")) == {"": one}
    for select, pattern in [(both, "{i}.tar"), (Select(), "{split}.tar")]:
        with pytest.raises(UsageError, match="split"):
            selects_by_split(select, Output(pattern))


SPLIT = {"split": {"a": 0.5, "b": 0.5}}


@pytest.mark.parametrize(
    ("source", "output", "select", "order", "expected"),
    [
        ("plain", "x-{i}.tar", {}, {}, "indexed"),
        ("plain", "out/", {}, {}, "indexed"),
        ("plain", "-", {}, {}, "indexed, one pass"),
        ("plain", "{split}.tar", SPLIT, {}, "indexed"),
        ("remote", "out/", {}, {}, "by shard"),
        ("remote", "out/", {"slice": slice(3)}, {}, "indexed"),
        ("remote", "x-{i}.tar", {}, {}, "indexed"),
        ("packed", "out/", {"slice_shard": slice(3), "fields": ["cls"]}, {}, "by shard"),
        ("packed", "out/", {**SPLIT, "only": "a"}, {}, "by shard"),
        ("packed", "x-{i}.tar", {"slice": slice(3)}, {"shuffle": True}, "one pass"),
        ("packed", "-", {}, {"interleave": 2}, "one pass"),
        ("packed", "out/", {"slice": slice(3)}, {}, UsageError),
        ("packed", "out/", {}, {"shuffle": True}, UsageError),
        ("packed", "{split}/{name}.tar", SPLIT, {}, UsageError),
        ("packed", "x-{i}.tar", {}, {"weights": (1.0,)}, UsageError),
    ],
)  # fmt: skip
def test_how_samples_are_read(urls, monkeypatch, source, output, select, order, expected):
    """Indexed, shard by shard, or in one pass: the decision depends on these alone."""
    monkeypatch.setattr(module, "any_remote", lambda _: source == "remote")
    shards = [f"{url}.gz" for url in urls] if source == "packed" else urls
    arguments = [Inputs(shards)], Select(**select), Output(output), Access()
    if expected is UsageError:
        with pytest.raises(UsageError):
            plan(*arguments, order=Order(**order))
        return
    planned = plan(*arguments, order=Order(**order))
    (samples, *_) = planned.sources.values()
    decision = "indexed" if isinstance(samples, IndexedSamples) else "by shard"
    if planned.one_pass:
        decision = "indexed, one pass" if decision == "indexed" else "one pass"
    assert decision == expected
