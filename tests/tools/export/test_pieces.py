"""Which samples go into which file."""

from __future__ import annotations

import pytest

from tarmac.tools.export import pieces
from tarmac.tools.export.pieces import EVERYTHING, Once, Target, Whole, columns_of, look_at
from tarmac.tools.plan import StreamedShards, open_indexed
from tarmac.tools.select import Select
from tools.export.samples import odd, write


@pytest.mark.parametrize(
    ("target", "by_shard"),
    [
        (Target("x.csv"), False),
        (Target("x-{i}.csv"), True),
        (Target("x-{i}.csv", max_samples=5), False),
        (Target("{name}.csv"), True),
        (Target("dir/", suffix=".csv"), True),
    ],
)
def test_a_file_for_each_shard(target, by_shard):
    assert target.by_shard is by_shard
    assert Target("dir/", suffix=".csv").name(0, "a") == "dir/a.csv"


def test_columns(tmp_path):
    first = odd(tmp_path, [("a.txt", b""), ("a.cls", b"")], "a.tar")
    second = odd(tmp_path, [("b.cls", b""), ("b.jpg", b"")], "b.tar")
    rows = open_indexed([first, second], Select())
    assert columns_of([rows], Select()) == ("txt", "cls", "jpg")
    assert columns_of([rows], Select(fields="-cls")) == ("txt", "jpg")


def test_all_of_several_streams(tmp_path, monkeypatch):
    whole = Whole(StreamedShards(write(tmp_path, [2, 3]), Select(slice="1:4")))
    assert [sample["__key__"] for sample in whole.samples(EVERYTHING)] == ["k/001", "k/002", "k/003"]
    assert [piece.name for piece in whole.pieces(Target("x.csv"))] == ["x.csv"]
    monkeypatch.setattr(pieces, "LOOKED_AT", 1)
    samples, columns = look_at(whole.samples(EVERYTHING))
    assert columns == ("cls", "png", "txt", "json")
    once = Once(samples)
    assert [piece.name for piece in once.pieces(Target("x.csv"))] == ["x.csv"]
    assert [sample["__key__"] for sample in once.samples(EVERYTHING)] == ["k/001", "k/002", "k/003"]
    assert once.fingerprint() == ""
    assert whole.fingerprint() == Whole(whole.streams).fingerprint() != ""
