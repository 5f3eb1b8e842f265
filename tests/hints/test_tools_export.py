"""Hints of `tarmac export`."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

import tarmac
from harness.hints import follows, hinted
from hints.commands import done, refused
from tools.shards import make, write

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def shard(tmp_path):
    return make(tmp_path, 3)[0]


def lines(name):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


@follows("one of {}.")
def test_an_output_of_an_unknown_format(shard, capsys):
    with hinted("one of {}.") as caught:
        tarmac.export(shard, "out.data")
    formats = caught.value.hint.removeprefix("one of ").rstrip(".").split(", ")
    for each in formats:
        done(capsys, "export", shard, "-o", f"out.{each}", "--to", each)
    assert "jsonl" in formats
    assert len(lines("out.jsonl")) == 3


@follows("a name without the compression extension.")
def test_a_compressed_output(shard):
    with hinted("a name without the compression extension."):
        tarmac.export(shard, "out.jsonl.gz", "jsonl")
    tarmac.export(shard, "out.jsonl", "jsonl")
    assert len(lines("out.jsonl")) == 3


@follows("a file as the output.")
@pytest.mark.parametrize("format", ["parquet", "sqlite", "lmdb", "tfrecord"])
def test_a_stream_as_the_output(shard, format):
    with hinted("a file as the output."):
        tarmac.export(shard, "-", format)
    tarmac.export(shard, f"out.{format}", format)
    assert Path(f"out.{format}").stat().st_size


@follows("a directory as the output.")
def test_a_stream_for_the_hub(shard):
    with hinted("a directory as the output."):
        tarmac.export(shard, "-", "hf")
    tarmac.export(shard, "out", "hf")
    assert Path("out/README.md").exists()


@follows("`drop_fields` {}; or tarmac copy, to plain shards, whose fields are known.")
def test_a_field_without_a_column(capsys, monkeypatch):
    """Standard input is read once, so the fields of later samples are unknown."""
    samples = [(f"{number:05d}", {"txt": b"x"}) for number in range(2000)]
    write("in.tar", [*samples, ("z", {"txt": b"x", "cls": b"1"})])

    def again(function, *arguments):
        with open("in.tar") as file:
            monkeypatch.setattr("sys.stdin", file)
            return function(*arguments)

    with hinted("`drop_fields` {}; or tarmac copy, to plain shards, whose fields are known."):
        again(tarmac.export, "-", "out.csv")
    hint = again(refused, capsys, "export", "-", "-o", "out.csv")
    assert hint == "--drop-fields cls; or tarmac copy, to plain shards, whose fields are known."
    again(done, capsys, "export", "-", "-o", "less.csv", "--drop-fields", "cls")
    again(done, capsys, "copy", "-", "-o", "plain.tar")
    done(capsys, "export", "plain.tar", "-o", "all.csv")
    for name, columns in (("less.csv", 2), ("all.csv", 3)):
        rows = Path(name).read_text().splitlines()
        assert {row.count(",") for row in rows} == {columns - 1}
        assert len(rows) == 2002


@follows("`fields` {}, to rename it.")
def test_a_column_that_the_database_has(capsys):
    write("in.tar", [("a", {"number": b"7", "txt": b"A"})])
    with hinted("`fields` {}, to rename it."):
        tarmac.export("in.tar", "out.sqlite")
    hint = refused(capsys, "export", "in.tar", "-o", "out.sqlite")
    assert hint == "--fields other=number,txt, to rename it."
    done(capsys, "export", "in.tar", "-o", "out.sqlite", "--fields", "other=number,txt")
    connection = sqlite3.connect("out.sqlite")
    assert connection.execute("SELECT key, other, txt FROM samples").fetchall() == [("a", b"7", "A")]
    connection.close()


@follows("`drop_fields` to drop it, or `kinds` {}=text if it is text.")
def test_bytes_in_a_table_of_text(capsys):
    write("in.tar", [("a", {"bin": b"B", "txt": b"A"})])
    with hinted("`drop_fields` to drop it, or `kinds` {}=text if it is text."):
        tarmac.export("in.tar", "out.csv")
    hint = refused(capsys, "export", "in.tar", "-o", "out.csv")
    assert hint == "--drop-fields to drop it, or --kinds bin=text if it is text."
    done(capsys, "export", "in.tar", "-o", "less.csv", "--drop-fields", "bin")
    done(capsys, "export", "in.tar", "-o", "text.csv", "--kinds", "bin=text")
    assert "B" not in Path("less.csv").read_text().splitlines()[1]
    assert "B" in Path("text.csv").read_text().splitlines()[1]


@follows("`kinds` {}=text to export it as it is, or `drop_fields` to drop it.")
@pytest.mark.parametrize("format", ["jsonl", "csv", "tsv", "yaml", "parquet", "sqlite"])
def test_a_field_that_is_not_what_its_extension_says(capsys, format):
    write("in.tar", [("a", {"cls": b"seven", "json": b"{}"})])
    hint = "`kinds` {}=text to export it as it is, or `drop_fields` to drop it."
    with hinted(hint):
        tarmac.export("in.tar", f"out.{format}")
    hint = refused(capsys, "export", "in.tar", "-o", f"out.{format}")
    assert hint == "--kinds cls=text to export it as it is, or --drop-fields to drop it."
    done(capsys, "export", "in.tar", "-o", f"text.{format}", "--kinds", "cls=text")
    done(capsys, "export", "in.tar", "-o", f"less.{format}", "--drop-fields", "cls")
    assert b"seven" in Path(f"text.{format}").read_bytes()
    assert b"seven" not in Path(f"less.{format}").read_bytes()


@follows("`drop_fields` to drop it, or `kinds` {}=bytes in formats other than tsv and csv.")
@pytest.mark.parametrize("format", ["jsonl", "csv", "tsv", "yaml", "parquet", "sqlite"])
@pytest.mark.parametrize("field", ["txt", "cls", "json"])
def test_a_field_that_is_not_text(capsys, field, format):
    write("in.tar", [("a", {field: b"\xff", "caption.txt": b"A"})])
    with hinted("`drop_fields` to drop it, or `kinds` {}=bytes in formats other than tsv and csv."):
        tarmac.export("in.tar", f"out.{format}")
    done(capsys, "export", "in.tar", "-o", f"less.{format}", "--drop-fields", field)
    if format not in ("csv", "tsv"):
        done(capsys, "export", "in.tar", "-o", f"bytes.{format}", "--kinds", f"{field}=bytes")


@follows("`format` dir, lmdb or tfrecord, which keep the bytes; or tarmac copy --rekey '{i:09d}'.")
def test_a_key_that_is_not_utf8(capsys):
    write("in.tar", [("\udcff", {"txt": b"A"})])
    hint = "`format` dir, lmdb or tfrecord, which keep the bytes; or tarmac copy --rekey '{i:09d}'."
    with hinted(hint):
        tarmac.export("in.tar", "out.jsonl")
    hint = refused(capsys, "export", "in.tar", "-o", "out.jsonl")
    assert hint == "--to dir, lmdb or tfrecord, which keep the bytes; or tarmac copy --rekey '{i:09d}'."
    for each in ("dir", "lmdb", "tfrecord"):
        done(capsys, "export", "in.tar", "-o", f"out.{each}", "--to", each)
    done(capsys, "copy", "--rekey", "{i:09d}", "in.tar", "-o", "numbers.tar")
    done(capsys, "export", "numbers.tar", "-o", "out.jsonl")
    assert lines("out.jsonl") == [{"__key__": "000000000", "txt": "A"}]


@follows("keys must be unique: tarmac copy --rekey '{i:09d}'.")
def test_equal_keys_in_a_database(capsys):
    write("one.tar", [("a", {"txt": b"A"})])
    write("two.tar", [("a", {"txt": b"B"})])
    with hinted("keys must be unique: tarmac copy --rekey '{i:09d}'."):
        tarmac.export(["one.tar", "two.tar"], "out.lmdb")
    done(capsys, "copy", "--rekey", "{i:09d}", "one.tar", "two.tar", "-o", "x.tar")
    assert tarmac.export("x.tar", "out.lmdb").written == 2


@follows("another directory, or `overwrite` to replace it; if keys repeat, tarmac copy --rekey '{i:09d}'.")
@pytest.mark.parametrize("verb", ["export", "show"])
def test_a_file_with_other_content(shard, capsys, verb):
    def job(source, output):
        how = ["-o", output, "--to", "dir"] if verb == "export" else ["--extract", output]
        return [verb, source, *how]

    Path("out/s0").mkdir(parents=True)
    Path("out/s0/000.txt").write_text("mine")
    hint = refused(capsys, *job(shard, "out"))
    assert (
        hint
        == "another directory, or --overwrite to replace it; if keys repeat, tarmac copy --rekey '{i:09d}'."
    )
    done(capsys, *job(shard, "other"))
    done(capsys, *job(shard, "out"), "--overwrite")
    assert Path("out/s0/000.txt").read_text() == Path("other/s0/000.txt").read_text() != "mine"


@follows(
    "another directory, or `overwrite` to replace it; if keys repeat, tarmac copy --rekey '{i:09d}'.",
    "unique keys: tarmac copy --rekey '{i:09d}'.",
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_equal_keys(capsys, overwrite):
    write("one.tar", [("a", {"txt": b"A"})])
    write("two.tar", [("a", {"txt": b"B"})])
    hint = "another directory, or `overwrite` to replace it; if keys repeat, tarmac copy --rekey '{i:09d}'."
    with hinted("unique keys: tarmac copy --rekey '{i:09d}'." if overwrite else hint):
        tarmac.export(["one.tar", "two.tar"], "out", "dir", overwrite=overwrite)
    done(capsys, "copy", "--rekey", "{i:09d}", "one.tar", "two.tar", "-o", "x.tar")
    tarmac.export("x.tar", "files", "dir", overwrite=overwrite)
    assert Path("files/000000001.txt").read_text() == "B"


@follows("tarmac copy, to plain shards.")
def test_sizes_of_streams(shard, capsys):
    Path("in.tar.gz").write_bytes(gzip.compress(Path(shard).read_bytes()))
    with hinted("tarmac copy, to plain shards."):
        tarmac.export("in.tar.gz", "out-{i}.jsonl", max_samples=2)
    done(capsys, "copy", "in.tar.gz", "-o", "plain.tar")
    tarmac.export("plain.tar", "out-{i}.jsonl", max_samples=2)
    assert len(lines("out-0.jsonl") + lines("out-1.jsonl")) == 3
