"""DALI's index files give the same index as reading the shard."""

from __future__ import annotations

import pytest

from harness.shards import header_offsets, plain
from tarmac.errors import IndexingError, NotFound
from tarmac.indexing.build import index_shard
from tarmac.indexing.dali import dali_url, read_dali

FILES = [
    ("d/a b.jpg", b"one"),
    ("d/a b.seg.png", b""),
    ("c.JPG", b"x" * 600),
    ("e.jpg", b"7"),
    ("e.cls", b"8"),
]


def index_of(files, version="v1.2"):
    """What wds2idx writes: the extension after the first dot, where the payload is, its size, its name."""
    lines, last = [], None
    for (name, data), header in zip(files, header_offsets(plain(files)), strict=True):
        extension = name.rpartition("/")[2].partition(".")[2]
        key = name[: len(name) - len(extension) - 1]
        if key != last or not extension:
            lines.append([])
        last = key
        lines[-1].append(f"{extension or name} {header + 512} {len(data)} {name}")
    return f"{version} {len(lines)}\n" + "".join(" ".join(line) + "\n" for line in lines)


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain(FILES))
    return path


def test_the_url():
    assert dali_url("x/train-0.tar") == "x/train-0.idx"
    assert dali_url("odd") == "odd.idx"


def test_the_same_as_indexing(shard):
    shard.with_suffix(".idx").write_text(index_of(FILES))
    assert read_dali(str(shard)) == index_shard(str(shard))


def test_files_without_a_field_are_skipped(shard):
    files = [("README", b"x"), *FILES]
    shard.write_bytes(plain(files))
    shard.with_suffix(".idx").write_text(index_of(files))
    assert read_dali(str(shard)) == index_shard(str(shard))


def test_no_samples(shard):
    shard.write_bytes(plain([]))
    shard.with_suffix(".idx").write_text("v1.2 0\n")
    assert read_dali(str(shard)) == index_shard(str(shard))


def test_missing(shard):
    with pytest.raises(NotFound):
        read_dali(str(shard))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "DALI"),
        ("v1.2\n", "DALI"),
        ("v1.2 x\n", "DALI"),
        ("v1.1 1\njpg 512 3\n", "version v1.1"),
        ("v1.2 2\njpg 512 3 a.jpg\n", r"\b2 .*\b1\b"),
        ("v1.2 0\njpg 512 3 a.jpg\n", r"\b0 .*\b1\b"),
        ("v1.2 1\n\n", "line 2"),
        ("v1.2 1\njpg 512 3\n", "line 2"),
        ("v1.2 1\njpg 512 x a.jpg\n", "line 2"),
        ("v1.2 1\njpg 512 3 a.png\n", "line 2"),
        ("v1.2 1\njpg 512 3 a.jpg cls 1536 1 b.cls\n", "line 2"),
        ("v1.2 1\njpg 512 3 a.jpg JPG 1536 1 a.JPG\n", "line 2"),
        ("v1.2 2\njpg 512 3 a.jpg\ncls 1536 1 a.cls\n", "line 3.*'a'"),
        ("v1.2 1\njpg 99999999999999999999 3 a.jpg\n", "line 2"),
    ],
)
def test_invalid_files(shard, text, match):
    shard.with_suffix(".idx").write_text(text)
    with pytest.raises(IndexingError, match=match) as caught:
        read_dali(str(shard))
    assert "a.idx" in str(caught.value)
