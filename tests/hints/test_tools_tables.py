"""Hints on the columns of tables, which `tarmac pack` and `tarmac join` read."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tarmac
from harness.hints import follows, hinted
from hints.commands import done, refused
from tools.shards import content, keys, write

pytestmark = pytest.mark.usefixtures("home")


def table(*rows, name="t.jsonl"):
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return name


@pytest.fixture
def shard():
    """Two samples to join with."""
    return write("in.tar", [("a", {"cls": b"0"}), ("b", {"cls": b"1"})])


@follows("one of {}.")
@pytest.mark.parametrize("argument", ["key", "columns", "files"])
def test_an_unknown_column(capsys, argument):
    Path("a.txt").write_text("A")
    source = table({"id": "a", "txt": "a.txt"})
    with hinted("one of {}.") as caught:
        tarmac.pack(source, "x.tar", **{argument: "name" if argument == "key" else ["name"]})
    assert caught.value.hint == "one of id, txt."
    done(capsys, "pack", source, "-o", "x.tar", f"--{argument}", "id" if argument == "key" else "txt")
    assert content("x.tar")[0]["txt"] == (b"A" if argument == "files" else b"a.txt")


@follows("one of {}.")
def test_a_table_without_keys(shard, capsys):
    source = table({"id": "a", "txt": "A"})
    with hinted("one of {}."):
        tarmac.join(shard, source, "x.tar")
    done(capsys, "join", shard, "--with", source, "-o", "x.tar", "--key", "id")
    assert content("x.tar")[0]["txt"] == b"A"


@follows("`columns` selects and renames columns.")
@pytest.mark.parametrize("row", [{"a/b": "A"}, {"txt": "A", "TXT": "A"}])
def test_columns_that_cannot_be_fields(capsys, row):
    source = table({"key": "x"} | row)
    with hinted("`columns` selects and renames columns."):
        tarmac.pack(source, "x.tar")
    assert refused(capsys, "pack", source, "-o", "x.tar") == "--columns selects and renames columns."
    done(capsys, "pack", source, "-o", "x.tar", "--columns", f"{next(iter(row))}=caption")
    assert content("x.tar") == [{"__key__": "x", "caption": b"A"}]


@follows("`files` {}={}.{}")
def test_files_of_one_extension(capsys):
    Path("a.jpg").write_bytes(b"A")
    Path("b.jpg").write_bytes(b"B")
    source = table({"key": "x", "image": "a.jpg", "jpg": base64.b64encode(b"B").decode()})
    with hinted("`files` {}={}.{}") as caught:
        tarmac.pack(source, "x.tar", files=["image"])
    assert caught.value.hint == "`files` image=image.*"
    assert refused(capsys, "pack", source, "-o", "x.tar", "--files", "image") == "--files image=image.*"
    done(capsys, "pack", source, "-o", "x.tar", "--files", "image=image.*")
    (sample,) = tarmac.read("x.tar")
    assert (sample["image.jpg"], sample["jpg"]) == (b"A", b"B")


@follows("`files` {}=FIELD.")
def test_a_file_without_an_extension(capsys):
    Path("picture").write_bytes(b"A")
    source = table({"key": "x", "image": "picture"})
    with hinted("`files` {}=FIELD."):
        tarmac.pack(source, "x.tar", files=["image"])
    assert refused(capsys, "pack", source, "-o", "x.tar", "--files", "image") == "--files image=FIELD."
    done(capsys, "pack", source, "-o", "x.tar", "--files", "image=jpg")
    assert [each["jpg"] for each in tarmac.read("x.tar")] == [b"A"]


@follows("`columns` {}=FIELD.")
def test_content_without_a_name(capsys):
    pq.write_table(pa.table({"key": ["x"], "image": [{"bytes": b"A", "path": None}]}), "t.parquet")
    with hinted("`columns` {}=FIELD."):
        tarmac.pack("t.parquet", "x.tar", columns={"image": "*"})
    hint = refused(capsys, "pack", "t.parquet", "-o", "x.tar", "--columns", "image=*")
    assert hint == "--columns image=FIELD."
    done(capsys, "pack", "t.parquet", "-o", "x.tar", "--columns", "image=jpg")
    assert [each["jpg"] for each in tarmac.read("x.tar")] == [b"A"]


@follows("tarmac pack --files {}.path")
@pytest.mark.parametrize("verb", ["pack", "join"])
def test_the_path_of_a_file_instead_of_its_bytes(shard, capsys, verb):
    Path("a.jpg").write_bytes(b"A")
    pq.write_table(
        pa.table({"key": ["a"], "cls": [7], "image": [{"bytes": None, "path": "a.jpg"}]}), "t.parquet"
    )
    with hinted("tarmac pack --files {}.path"):
        if verb == "pack":
            tarmac.pack("t.parquet", "x.tar")
        else:
            tarmac.join(shard, "t.parquet", "x.tar", replace=True)
    done(capsys, "pack", "--files", "image.path", "t.parquet", "-o", "y.tar")
    (sample,) = tarmac.read("y.tar")
    assert (sample["jpg"], sample["cls"]) == (b"A", b"7")
    done(capsys, "join", shard, "--with", "y.tar", "-o", "x.tar", "--replace")


@follows("`columns` {}=txt, if it is text; tarmac pack --files {}={}, if it names files.")
@pytest.mark.parametrize("verb", ["pack", "join"])
def test_text_where_bytes_are_expected(shard, capsys, verb):
    Path("a.jpg").write_bytes(b"A")
    source, more = table({"key": "a", "image": "a.jpg"}), ["--columns", "image=jpg"]
    hint = "`columns` {}=txt, if it is text; tarmac pack --files {}={}, if it names files."
    with hinted(hint):
        if verb == "pack":
            tarmac.pack(source, "x.tar", columns={"image": "jpg"})
        else:
            tarmac.join(shard, source, "x.tar", columns={"image": "jpg"})
    job = ["pack", source] if verb == "pack" else ["join", shard, "--with", source]
    hint = refused(capsys, *job, "-o", "x.tar", *more)
    assert hint == "--columns image=txt, if it is text; tarmac pack --files image=jpg, if it names files."
    done(capsys, *job, "-o", "x.tar", "--columns", "image=txt")
    assert content("x.tar")[0]["txt"] == b"a.jpg"
    done(capsys, "pack", "--files", "image=jpg", source, "-o", "y.tar")
    assert [each["jpg"] for each in tarmac.read("y.tar")] == [b"A"]


@follows("`replace` takes the new field; `prefix` renames the new fields.")
def test_both_sides_have_a_field(shard, capsys):
    source = table({"key": "a", "cls": 7})
    with hinted("`replace` takes the new field; `prefix` renames the new fields."):
        tarmac.join(shard, source, "x.tar")
    hint = refused(capsys, "join", shard, "--with", source, "-o", "x.tar")
    assert hint == "--replace takes the new field; --prefix renames the new fields."
    done(capsys, "join", shard, "--with", source, "-o", "x.tar", "--replace")
    done(capsys, "join", shard, "--with", source, "-o", "y.tar", "--prefix", "new.")
    assert content("x.tar")[0] == {"__key__": "a", "cls": b"7"}
    assert content("y.tar")[0] == {"__key__": "a", "cls": b"0", "new.cls": b"7"}


@follows("`key`, if another column of the table has the keys; keys are compared as text.")
def test_no_key_matches(capsys):
    shard = write("in.tar", [("1", {"cls": b"0"})])
    source = table({"key": "x", "id": 1, "txt": "A"})
    with hinted("`key`, if another column of the table has the keys; keys are compared as text."):
        tarmac.join(shard, source, "x.tar")
    hint = refused(capsys, "join", shard, "--with", source, "-o", "x.tar")
    assert hint == "--key, if another column of the table has the keys; keys are compared as text."
    done(capsys, "join", shard, "--with", source, "-o", "x.tar", "--key", "id")
    assert content("x.tar")[0]["txt"] == b"A"


@follows('`on_duplicate` "first" takes the first occurrence.')
def test_a_key_that_occurs_twice(shard, capsys):
    source = table({"key": "a", "txt": "A"}, {"key": "a", "txt": "B"})
    with hinted('`on_duplicate` "first" takes the first occurrence.'):
        tarmac.join(shard, source, "x.tar")
    hint = refused(capsys, "join", shard, "--with", source, "-o", "x.tar")
    assert hint == '--on-duplicate "first" takes the first occurrence.'
    done(capsys, "join", shard, "--with", source, "-o", "x.tar", "--on-duplicate", "first")
    assert content("x.tar")[0]["txt"] == b"A"
    assert keys("x.tar") == ["a", "b"]
