"""Arrangements: all samples in pieces that can be made one by one, in any order, anywhere."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tarmac
from tarmac.errors import UrlError
from tarmac.tools.output import Output
from tarmac.tools.permutations import Shuffled
from tarmac.tools.plan import (
    AT_ONCE,
    IndexedSamples,
    OutputShard,
    StreamedShards,
    any_remote,
    can_index,
    one_to_one,
    open_indexed,
    selects_by_split,
    shard_stem,
)
from tarmac.tools.select import Select
from tools.shards import make

ALL = Select()


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    return make(tmp_path_factory.mktemp("arrange"), 7, 0, 12)


@pytest.fixture
def rows(urls):
    found = open_indexed(urls, ALL)
    yield found
    found.dataset.close()


def sizes(pieces):
    return [piece.stop - piece.start for piece in pieces]


def test_cut_by_samples(rows):
    pieces = list(rows.pieces(Output("x-{i}.tar", max_samples=5)))
    assert [piece.name for piece in pieces] == ["x-0.tar", "x-1.tar", "x-2.tar", "x-3.tar"]
    assert sizes(pieces) == [5, 5, 5, 4]
    assert sizes(rows.pieces(Output("x.tar"))) == [19]
    assert sizes(rows.pieces(Output("x-{i}.tar", max_samples=19))) == [19]


@given(st.integers(1, 700), st.integers(1, 30))
def test_cut_by_bytes(urls, most_bytes, most):
    found = open_indexed(urls, ALL)
    every = [sum(map(len, list(each.values())[2:])) for each in tarmac.read(urls)]
    pieces = list(found.pieces(Output("x-{i}.tar", max_bytes=most_bytes, max_samples=most)))
    assert sum(sizes(pieces)) == 19
    for piece, after in zip(pieces, [*pieces[1:], None], strict=True):
        here = every[piece.start : piece.stop]
        assert len(here) == 1 or sum(here) <= most_bytes
        assert len(here) <= most
        full = after is None or len(here) == most or sum(here) + every[after.start] > most_bytes
        assert full
    found.dataset.close()


@pytest.mark.parametrize("order", [None, Shuffled(19, 1)])
def test_cuts_do_not_depend_on_how_many_sizes_are_asked_for_together(rows, order, monkeypatch):
    ordered = replace(rows, order=order)
    outputs = [Output("x-{i}.tar", max_bytes=most, max_samples=5) for most in (1, 150, 300, 10_000)]
    plainly = [list(ordered.pieces(output)) for output in outputs]
    assert [len(pieces) for pieces in plainly] == sorted({len(pieces) for pieces in plainly})[::-1]
    for at_once in (1, 4, 18, 19):
        monkeypatch.setattr("tarmac.tools.plan.SIZES_AT_ONCE", at_once)
        assert [list(ordered.pieces(output)) for output in outputs] == plainly


@dataclass(frozen=True)
class Watched(IndexedSamples):
    """Rows that note which of them are fetched together."""

    fetches: list = field(default_factory=list)

    def fetch(self, indices):
        self.fetches.append(indices.tolist())
        return super().fetch(indices)


@pytest.mark.parametrize("order", [None, Shuffled(19, 1)])
@pytest.mark.parametrize(("at_once", "most"), [(3, 1 << 20), (19, 200), (4, 1), (5, 300)])
def test_fetches_are_cut_by_samples_and_by_bytes(rows, urls, order, at_once, most, monkeypatch):
    every = list(tarmac.read(urls))
    wanted = every if order is None else [every[number] for number in order.at(0, 19)]
    monkeypatch.setattr("tarmac.tools.plan.BYTES_AT_ONCE", most)
    for start, stop in [(0, 19), (2, 17), (18, 19)]:
        found = Watched(rows.dataset, ALL, order, at_once)
        assert list(found.samples(OutputShard("x", start, stop))) == wanted[start:stop]
        assert len(found.fetches) > (stop - start > 1)
        for numbers in found.fetches:
            assert len(numbers) <= at_once
            assert len(numbers) == 1 or sum(rows.sizes(numbers)) <= most


def test_a_shard_of_more_samples_than_are_fetched_together(tmp_path):
    count = 2 * AT_ONCE + 7
    found = open_indexed(make(tmp_path, count), ALL)
    every = list(found.samples(OutputShard("x", 0, count)))
    assert [each["__key__"] for each in every] == [f"s0/{number:03d}" for number in range(count)]
    found.dataset.close()


def test_cut_at_shards(rows, urls):
    pieces = list(rows.pieces(Output("out/")))
    assert [piece.name for piece in pieces] == ["out/in-0.tar", "out/in-1.tar", "out/in-2.tar"]
    assert sizes(pieces) == [7, 0, 12]
    shuffled = type(rows)(rows.dataset, ALL, Shuffled(19, 1))
    with pytest.raises(UrlError, match="no shard of the old name"):
        list(shuffled.pieces(Output("out/")))


def test_several_shards_need_several_names(rows):
    with pytest.raises(UrlError, match=r"the same name.*\{i:06d\}"):
        list(rows.pieces(Output("x.tar", max_samples=5)))


def test_pieces_can_be_made_anywhere(rows, urls):
    again = pickle.loads(pickle.dumps(rows))
    pieces = list(rows.pieces(Output("x-{i}.tar", max_samples=4)))
    found = {piece.name: list(again.samples(piece)) for piece in reversed(pieces)}
    assert [each for piece in pieces for each in found[piece.name]] == list(tarmac.read(urls))
    again.dataset.close()


def test_streams_shard_by_shard(urls):
    streams = StreamedShards(urls, Select(slice_shard=":2", fields="cls"))
    pieces = list(streams.pieces(Output("out/")))
    assert [piece.name for piece in pieces] == ["out/in-0.tar", "out/in-1.tar", "out/in-2.tar"]
    assert [each["__key__"] for each in streams.samples(pieces[2])] == ["s2/000", "s2/001"]
    assert [len(list(shard)) for shard in streams.shards()] == [7, 0, 12]


def test_fingerprints_change_with_what_there_is(urls, tmp_path, rows):
    copies = make(tmp_path, 7, 0, 12)
    before = StreamedShards(copies, ALL).fingerprint()
    assert StreamedShards(copies, ALL).fingerprint() == before
    os.utime(copies[0], (1, 1))
    assert StreamedShards(copies, ALL).fingerprint() != before
    assert StreamedShards(["-"], ALL).fingerprint() == StreamedShards(["-"], ALL).fingerprint()
    assert rows.fingerprint() != type(rows)(rows.dataset, ALL, Shuffled(19, 1)).fingerprint()
    assert open_indexed(urls[:1], ALL).fingerprint() != rows.fingerprint()


def test_no_index_is_left_beside_the_shards(tmp_path):
    urls = make(tmp_path, 3)
    open_indexed(urls, ALL).dataset.close()
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


def test_what_has_addresses():
    assert can_index(["a.tar", "s3://b/c.tar", "https://d/e.tar?x=.gz"])
    assert not can_index(["a.tar", "-"])
    assert not can_index(["pipe:cat x"])
    assert not can_index(["a.tar.gz"])
    assert not can_index(["https://d/e.tar.zst?x=1"])


def test_manifests_are_taken_as_they_are(tmp_path):
    urls = make(tmp_path, 3, 2)
    from tarmac.tools.index import index

    index(urls, str(tmp_path / "m.json"))
    rows = open_indexed([str(tmp_path / "m.json")], ALL)
    assert [each["__key__"] for each in rows.samples(OutputShard("x", 3, 5))] == ["s1/000", "s1/001"]
    rows.dataset.close()


def test_parts():
    both = Select(part="a=0.5,b=0.5")
    assert [
        (name, select.only) for name, select in selects_by_split(both, Output("{part}-{i}.tar")).items()
    ] == [
        ("a", "a"),
        ("b", "b"),
    ]
    one = Select(part="a=0.5,b=0.5", only="b")
    assert selects_by_split(one, Output("{i}.tar")) == {"": one}
    for select, pattern in [(both, "{i}.tar"), (Select(), "{part}.tar")]:
        with pytest.raises(UrlError, match="--part needs"):
            selects_by_split(select, Output(pattern))


def test_what_can_be_read_shard_by_shard():
    assert one_to_one(Output("out/"), Select(slice_shard=":3", fields="cls"))
    assert one_to_one(Output("out/"), Select(part="a=0.5,b=0.5", only="a"))
    assert not one_to_one(Output("out/"), Select(slice=":3"))
    assert not one_to_one(Output("{part}/{name}.tar"), Select(part="a=0.5,b=0.5"))
    assert not one_to_one(Output("x-{i}.tar"), Select())
    assert any_remote(["a.tar", "s3://b/c.tar"])
    assert not any_remote(["a.tar", "file:b.tar"])
