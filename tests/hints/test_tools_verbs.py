"""Hints of `tarmac sort`, `map`, `show`, `audit`, `check`, `cache` and `index`, and of selections."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

import pytest

import tarmac
from harness.folder import folder
from harness.hints import follows, hinted
from harness.shards import plain
from hints.commands import done, refused
from tarmac.tools import cache
from tools.shards import content, keys, make, write

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def shard(tmp_path):
    return make(tmp_path, 3)[0]


# Selections


@follows('`missing`="skip" skips such samples.')
@pytest.mark.parametrize("verb", ["copy", "sort"])
def test_a_sample_without_a_field(capsys, verb):
    write("in.tar", [("a", {"cls": b"1"}), ("b", {"txt": b"B"})])
    more = ["--fields", "cls"] if verb == "copy" else ["--by", "cls"]
    with hinted('`missing`="skip" skips such samples.'):
        tarmac.copy("in.tar", "x.tar", fields=["cls"]) if verb == "copy" else tarmac.sort(
            "in.tar", "x.tar", by="cls"
        )
    hint = refused(capsys, verb, "in.tar", "-o", "x.tar", *more)
    assert hint == '--missing="skip" skips such samples.'
    done(capsys, verb, "in.tar", "-o", "x.tar", *more, "--missing=skip")
    assert keys("x.tar") == ["a"]


@follows("`tarmac sort --reverse` reverses the order.")
@pytest.mark.parametrize("argument", ["slice", "slice_shard"])
def test_a_negative_step(shard, capsys, argument):
    with hinted("`tarmac sort --reverse` reverses the order."):
        tarmac.copy(shard, "x.tar", **{argument: slice(None, None, -1)})
    done(capsys, "sort", "--reverse", shard, "-o", "x.tar")
    assert keys("x.tar") == keys(shard)[::-1]


@follows("keys as `tarmac show` prints them, such as {}.")
def test_unknown_keys(shard, capsys):
    with hinted("keys as `tarmac show` prints them, such as {}.") as caught:
        tarmac.copy(shard, "x.tar", keys=["000"])
    (example,) = re.findall("'(.*)'", caught.value.hint)
    assert example in done(capsys, "show", shard)
    tarmac.copy(shard, "x.tar", keys=[example])
    assert keys("x.tar") == [example]


# Sort


@follows('`unique` "keep" keeps both, "first" keeps the first.')
def test_equal_values(capsys):
    write("in.tar", [("a", {"cls": b"1"}), ("b", {"cls": b"1"})])
    with hinted('`unique` "keep" keeps both, "first" keeps the first.'):
        tarmac.sort("in.tar", "x.tar", by="cls", unique="error")
    job = ["sort", "in.tar", "--by", "cls", "--unique"]
    hint = refused(capsys, *job, "error", "-o", "x.tar")
    assert hint == '--unique "keep" keeps both, "first" keeps the first.'
    done(capsys, *job, "keep", "-o", "x.tar")
    done(capsys, *job, "first", "-o", "y.tar")
    assert (keys("x.tar"), keys("y.tar")) == (["a", "b"], ["a"])


@follows('`rekey` "{i:09d}" makes new keys; tarmac sort --by key --unique first keeps one.')
@pytest.mark.parametrize("by", ["key", "cls", "random"])
def test_equal_keys(capsys, by):
    write("one.tar", [("a", {"cls": b"1"}), ("b", {"cls": b"1"})])
    write("two.tar", [("a", {"cls": b"2"})])
    job = ["sort", "--by", by, "one.tar", "two.tar", "-o", "x.tar"]
    with hinted('`rekey` "{i:09d}" makes new keys; tarmac sort --by key --unique first keeps one.'):
        tarmac.sort(["one.tar", "two.tar"], "x.tar", by=by)
    assert refused(capsys, *job).startswith('--rekey "{i:09d}" ')
    done(capsys, *job, "--rekey", "{i:09d}")
    done(capsys, "sort", "--by", "key", "--unique", "first", "one.tar", "two.tar", "-o", "y.tar")
    assert len(keys("x.tar")) == 3
    assert keys("y.tar") == ["a", "b"]


@follows('`on_error` "skip" leaves such samples out; `type` "bytes" accepts any value.')
def test_a_value_that_is_no_number(capsys):
    write("in.tar", [("a", {"txt": b"x"}), ("b", {"txt": b"1"})])
    job = ["sort", "in.tar", "--by", "txt", "--type"]
    with hinted('`on_error` "skip" leaves such samples out; `type` "bytes" accepts any value.'):
        tarmac.sort("in.tar", "x.tar", by="txt", type="int")
    hint = refused(capsys, *job, "int", "-o", "x.tar")
    assert hint == '--on-error "skip" leaves such samples out; --type "bytes" accepts any value.'
    done(capsys, *job, "int", "-o", "x.tar", "--on-error", "skip", status=1)
    done(capsys, *job, "bytes", "-o", "y.tar")
    assert (keys("x.tar"), keys("y.tar")) == (["b"], ["b", "a"])


WHOLE = [("a.cls", b"1"), ("a.txt", b"A"), ("b.cls", b"2"), ("a.txt", b"A"), ("a.cls", b"1")]
PARTS = [("a.cls", b"1"), ("a.txt", b"A"), ("b.cls", b"2"), ("a.json", b"{}"), ("a.cls", b"3")]


@follows(
    "`repeated` keep with `rekey` '{i:09d}', if whole samples repeat; or tarmac check SHARD --repair -o DIR/.",
    "tarmac check SHARD --repair -o DIR/ writes a copy without it.",
)
@pytest.mark.parametrize("files", [WHOLE, PARTS])
def test_two_fields_of_a_name_in_a_scattered_sample(capsys, files):
    Path("in.tar").write_bytes(plain(files))
    with hinted(
        "`repeated` keep with `rekey` '{i:09d}', if whole samples repeat; or tarmac check SHARD --repair -o DIR/."
    ):
        tarmac.sort("in.tar", "x.tar")
    job = ["sort", "in.tar", "-o", "x.tar"]
    assert refused(capsys, *job).startswith("--repeated keep with --rekey '{i:09d}', if")
    if files is WHOLE:
        done(capsys, *job, "--repeated", "keep", "--rekey", "{i:09d}")
        assert len(keys("x.tar")) == 3
    else:
        with hinted("tarmac check SHARD --repair -o DIR/ writes a copy without it."):
            tarmac.sort("in.tar", "x.tar", repeated="keep")
        done(capsys, "check", "in.tar", "--repair", "-o", "clean/", status=1)
        done(capsys, "sort", "clean/in.tar", "-o", "x.tar")
        assert keys("x.tar") == ["b"]


# Working files


@follows("`tmp`, a directory that is writable and has free space.")
@pytest.mark.parametrize("verb", ["sort", "join"])
def test_a_working_directory_that_does_not_exist(shard, capsys, verb):
    os.mkdir("space")
    job = ["sort", shard] if verb == "sort" else ["join", shard, "--with", shard, "--prefix", "x."]
    hint = refused(capsys, *job, "-o", "x.tar", "--tmp", "absent")
    assert hint == "--tmp, a directory that is writable and has free space."
    with hinted("`tmp`, a directory that is writable and has free space."):
        tarmac.sort(shard, "x.tar", tmp="absent")
    done(capsys, *job, "-o", "x.tar", "--tmp", "space")
    assert keys("x.tar") == keys(shard)


@pytest.fixture
def full_disk(monkeypatch):
    """Databases in the directory `full` cannot be written."""
    os.mkdir("full")
    os.mkdir("space")
    connect = sqlite3.connect

    def fail(path, **options):
        if "/full/" in os.path.abspath(path):
            raise sqlite3.OperationalError("disk I/O error")
        return connect(path, **options)

    monkeypatch.setattr(sqlite3, "connect", fail)


def use(monkeypatch, directory):
    """Set TMPDIR, which Python reads once in each process."""
    monkeypatch.setenv("TMPDIR", directory)
    monkeypatch.setattr("tempfile.tempdir", None)


@follows("`tmp`, a directory that is writable and has free space.")
def test_no_room_to_join(shard, full_disk):
    Path("t.csv").write_text("key,caption\ns0/000,A\n")
    with hinted("`tmp`, a directory that is writable and has free space."):
        tarmac.join(shard, "t.csv", "x.tar", tmp="full")
    tarmac.join(shard, "t.csv", "x.tar", tmp="space")
    assert content("x.tar")[0]["caption"] == b"A"


@follows("set TMPDIR to a directory with free space.")
def test_no_room_to_check(shard, full_disk, monkeypatch):
    use(monkeypatch, os.path.abspath("full"))
    with hinted("set TMPDIR to a directory with free space."):
        tarmac.check(shard, duplicates=True)
    use(monkeypatch, os.path.abspath("space"))
    assert tarmac.check(shard, duplicates=True).ok


@pytest.mark.processes
@follows("set TMPDIR to a directory with free space.")
def test_no_room_for_a_command(shard, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", os.path.abspath("absent"))
    with hinted("set TMPDIR to a directory with free space."):
        tarmac.map(shard, "x.tar", command="true")
    os.mkdir("space")
    use(monkeypatch, os.path.abspath("space"))
    tarmac.map(shard, "x.tar", command="true")
    assert keys("x.tar") == keys(shard)


@pytest.mark.processes
@follows("see its files in {}.")
def test_a_command_that_fails(shard):
    with hinted("see its files in {}.") as caught:
        tarmac.map(shard, "x.tar", command="echo oh; false", keep_dir="kept")
    kept = Path(caught.value.hint.removeprefix("see its files in ").removesuffix("."))
    assert any("oh" in path.read_text() for path in kept.iterdir())
    assert any(path.name.endswith("txt") for path in kept.iterdir())


# Show, audit and check


@follows("tarmac show lists the keys.")
@pytest.mark.parametrize("at", ["000", "7"])
def test_an_unknown_sample(shard, capsys, at):
    with hinted("tarmac show lists the keys."):
        list(tarmac.show(shard, at=[at]))
    refused(capsys, "show", shard, "--at", at)
    assert all(key in done(capsys, "show", shard) for key in keys(shard))
    assert done(capsys, "show", shard, "--at", keys(shard)[1])


@follows("tarmac show lists the keys.")
def test_the_audit_of_an_unknown_key(shard, capsys):
    with hinted("tarmac show lists the keys."):
        tarmac.audit(shard, batch_size=1).key("000")
    assert keys(shard)[1] in done(capsys, "show", shard)
    assert tarmac.audit(shard, batch_size=1).key(keys(shard)[1])


@follows("tarmac show --fields-only lists the fields.")
def test_a_sheet_without_images(shard, capsys):
    assert refused(capsys, "show", shard, "--sheet", "x.png") == "tarmac show --fields-only lists the fields."
    fields = done(capsys, "show", "--fields-only", shard)
    assert all(name in fields for name in ("cls", "json", "txt"))


@follows("tarmac index --digests SHARDS", "download or write the shard again.")
def test_digests(shard, capsys):
    whole = Path(shard).read_bytes()
    done(capsys, "index", shard)
    with hinted("tarmac index --digests SHARDS"):
        raise tarmac.check(shard, digests=True).shards[0].error
    done(capsys, "index", "--digests", shard)
    assert tarmac.check(shard, digests=True).ok
    times = os.stat(shard)
    Path(shard).write_bytes(whole.replace(b"text 1 of 0", b"text 7 of 0", 1))
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    with hinted("download or write the shard again."):
        raise tarmac.check(shard, digests=True).shards[0].error
    Path(shard).write_bytes(whole)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert tarmac.check(shard, digests=True).ok


# Index


@follows("tarmac check SHARD --repair -o DIR/, and index the copy.")
def test_an_index_of_a_lenient_read(shard, capsys):
    Path(shard).write_bytes(Path(shard).read_bytes()[:-2600])
    with hinted("tarmac check SHARD --repair -o DIR/, and index the copy."):
        tarmac.index(shard, tar=tarmac.TarOptions(end="lenient"))
    done(capsys, "check", shard, "--repair", "-o", "mended/", status=1)
    done(capsys, "index", "mended/in-0.tar")
    assert len(tarmac.Dataset("mended/in.json")) == 2


@follows("a file or an object.")
def test_an_index_of_standard_input(shard):
    with hinted("a file or an object."):
        tarmac.index("-")
    assert tarmac.index(shard).read == 3


@follows("`add` to keep them, or `output` to name a manifest.")
def test_a_manifest_of_other_shards(tmp_path, capsys):
    one, other = make(tmp_path, 2, 3)
    tarmac.index(one)
    with hinted("`add` to keep them, or `output` to name a manifest."):
        tarmac.index(other)
    assert refused(capsys, "index", other) == "--add to keep them, or --output to name a manifest."
    done(capsys, "index", other, "--output", "other.json")
    done(capsys, "index", other, "--add")
    assert (len(tarmac.Dataset("other.json")), len(tarmac.Dataset("in.json"))) == (3, 5)


@follows("one directory of indexes for each directory of shards.")
def test_indexes_of_one_name(tmp_path, capsys):
    for name in "ab":
        os.mkdir(name)
        make(tmp_path / name, 2)
    with hinted("one directory of indexes for each directory of shards."):
        tarmac.index(["a/in-0.tar", "b/in-0.tar"], sidecars="indexes")
    for name in "ab":
        done(capsys, "index", f"{name}/in-0.tar", "--sidecars", f"indexes/{name}")
    assert len(tarmac.Dataset(["indexes/a/in.json", "indexes/b/in.json"])) == 4


@follows("`sidecars` with a writable directory.")
def test_a_place_where_no_index_can_be_written(shard, capsys):
    Path("taken").write_text("")
    with hinted("`sidecars` with a writable directory."):
        tarmac.index(shard, sidecars="taken")
    assert refused(capsys, "index", shard, "--sidecars", "taken") == "--sidecars with a writable directory."
    done(capsys, "index", shard, "--sidecars", "indexes")
    assert len(tarmac.Dataset("indexes/in.json")) == 3


# The cache


@follows("`cache`, or set WDS_CACHE.")
def test_no_cache_directory(capsys, monkeypatch):
    monkeypatch.delenv("WDS_CACHE", raising=False)
    with hinted("`cache`, or set WDS_CACHE."):
        cache.verify()
    assert refused(capsys, "cache", "ls") == "--cache, or set WDS_CACHE."
    done(capsys, "cache", "ls", "--cache", "here")
    monkeypatch.setenv("WDS_CACHE", "here")
    done(capsys, "cache", "ls")


@pytest.mark.processes
@follows("pass shards, `everything`, or `max_bytes`.")
@pytest.mark.parametrize("options", [{}, {"everything": True}, {"max_bytes": 1}])
def test_nothing_to_evict(tmp_path, shard, options):
    with folder(tmp_path) as url:
        remote = f"{url}/in-0.tar"
        cache.warm("here", remote)
    with hinted("pass shards, `everything`, or `max_bytes`."):
        cache.evict("here")
    assert len(cache.evict("here", [] if options else [remote], **options).removed) == 1
