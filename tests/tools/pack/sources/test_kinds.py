"""Kinds are guessed only where that is safe."""

from __future__ import annotations

import pickle

import pytest

from tarmac.errors import NotFound, UrlError
from tarmac.tools.pack.sources.columns import Columns
from tarmac.tools.pack.sources.kinds import KINDS, Reading, guess_kind, make_sources
from tools.pack.sources.packing import grow, read_all


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("s3://b/d/", "dir"), ("x/", "dir"), ("t.CSV", "csv"), ("t.tsv.gz", "tsv"), ("t.jsonl", "jsonl"),
        ("t.ndjson.zst", "jsonl"), ("s3://b/t.parquet", "parquet"), ("http://h/t.csv?x=1", "csv"),
        ("x.recipe", "recipe"),
    ],
)  # fmt: skip
def test_guesses(name, kind):
    assert guess_kind(name) == kind


def test_what_is_not_guessed(tmp_path):
    assert guess_kind(str(tmp_path)) == "dir"
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.tar").touch()
    with pytest.raises(UrlError, match="--from dir"):
        guess_kind(str(tmp_path / "a.txt"))
    with pytest.raises(UrlError, match="tarmac copy"):
        guess_kind(str(tmp_path / "a.tar"))
    with pytest.raises(NotFound):
        guess_kind(str(tmp_path / "absent"))
    with pytest.raises(UrlError, match="--from"):
        guess_kind("-")


def test_every_kind_makes_its_source(tmp_path):
    (tmp_path / "f").write_bytes(b"a\n1\n")
    for kind in KINDS:
        where = tmp_path if kind in ("dir", "imagefolder") else tmp_path / "f"
        (source,) = make_sources([str(where)], Reading(kind), str(tmp_path), False)
        assert source.kind == kind


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "lines", "dir", "imagefolder", "recipe"])
def test_sources_travel_after_they_were_used(tmp_path, kind):
    grow(tmp_path / "in", {"cat/a.txt": b"x"})
    text = {"jsonl": b'{"txt": "x"}', "recipe": b"a.txt text:x"}.get(kind, b"txt\nx\n")
    grow(tmp_path, {"f": text})
    where = tmp_path / ("in" if kind in ("dir", "imagefolder") else "f")
    (source,) = make_sources([str(where)], Reading(kind), str(tmp_path), True)
    samples = read_all(source)[0]
    assert read_all(pickle.loads(pickle.dumps(source)))[0] == samples


def test_mistakes(tmp_path):
    (tmp_path / "f").write_bytes(b"a\n1\n")
    for reading in (Reading("dir"), Reading("imagefolder"), Reading("csv", base=str(tmp_path / "absent"))):
        with pytest.raises(NotFound):
            make_sources([str(tmp_path / "f")], reading, str(tmp_path), False)
    with pytest.raises(UrlError, match="lines have no columns"):
        make_sources([str(tmp_path / "f")], Reading("lines", Columns("key")), str(tmp_path), False)


def test_flags_of_tables_are_not_for_folders(tmp_path):
    for reading in (
        Reading(columns=Columns("k")),
        Reading(columns=Columns(files={"a": "jpg"})),
        Reading(columns=Columns(plain={"a": "txt"})),
        Reading(base=str(tmp_path)),
    ):
        with pytest.raises(UrlError, match=r"no table|recipes and tables"):
            make_sources([str(tmp_path)], reading, "", False)
