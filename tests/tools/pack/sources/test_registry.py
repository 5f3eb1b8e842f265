"""The format of a source is given or guessed, and arguments that do not apply to it are errors."""

from __future__ import annotations

import pickle

import pytest

import tarmac
from tarmac.errors import NotFound, UrlError, UsageError
from tarmac.tools.pack.sources.source import SOURCES, guess_format
from tools.pack.trees import read_all, source, write_tree
from tools.shards import write


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("s3://b/d/", "dir"), ("x/", "dir"), ("t.CSV", "csv"), ("t.tsv.gz", "tsv"), ("t.jsonl", "jsonl"),
        ("t.ndjson.zst", "jsonl"), ("s3://b/t.parquet", "parquet"), ("http://h/t.csv?x=1", "csv"),
        ("x.recipe", "recipe"), ("x.db", "sqlite"), ("x.lmdb", "lmdb"), ("x.tfrecord.gz", "tfrecord"),
    ],
)  # fmt: skip
def test_formats_by_name(name, format):
    assert guess_format(name) == format


def test_names_that_do_not_tell(tmp_path):
    assert guess_format(str(tmp_path)) == "dir"
    write_tree(tmp_path, {"a.txt": b"", "a.tar": b""})
    with pytest.raises(UsageError, match=r"`format`.*a\.txt"):
        guess_format(str(tmp_path / "a.txt"))
    with pytest.raises(UrlError, match=r"a\.tar: "):
        guess_format(str(tmp_path / "a.tar"))
    with pytest.raises(NotFound, match="absent"):
        guess_format(str(tmp_path / "absent"))
    with pytest.raises(UsageError, match="`format`"):
        guess_format("-")
    with pytest.raises(UsageError, match=r"`format`.*'tar'"):
        source(tmp_path, "tar")


@pytest.mark.parametrize("format", [name for name in SOURCES if name != "parquet"])
def test_every_format_opens_a_source_that_pickles_after_use(tmp_path, format):
    text = {"jsonl": b'{"txt": "x"}', "recipe": b"a.txt text:x"}.get(format, b"txt\nx\n")
    write_tree(tmp_path, {"in/cat/a.txt": b"x", "f": text})
    if format in ("hf", "lmdb", "sqlite", "tfrecord"):
        (tmp_path / "f").unlink()
        shard = write(tmp_path / "a.tar", [("a", {"txt": b"x", "jpg": b"y"}), ("b", {"txt": b"z"})])
        tarmac.export(shard, tmp_path / "f", format, jobs=1, progress=False)
    opened = source(tmp_path / ("in" if format in ("dir", "imagefolder") else "f"), format, needs_sizes=True)
    assert opened.format == format
    samples = read_all(opened)[0]
    assert read_all(pickle.loads(pickle.dumps(opened)))[0] == samples


def test_paths_that_do_not_exist(tmp_path):
    write_tree(tmp_path, {"f": b"a\n1\n"})
    for name, options in (("dir", {}), ("imagefolder", {}), ("csv", {"base": str(tmp_path / "absent")})):
        with pytest.raises(NotFound):
            source(tmp_path / "f", name, **options)


@pytest.mark.parametrize(
    "options", [{"key": "k"}, {"files": {"a": "jpg"}}, {"fields": {"a": "txt"}}, {"base": "."}]
)
def test_arguments_that_do_not_apply_to_folders(tmp_path, options):
    with pytest.raises(UsageError, match=str(tmp_path)):
        source(tmp_path, **options)
