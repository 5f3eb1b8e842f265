"""The commands that docs/shards.md lists for damaged shards do what it says."""

from __future__ import annotations

import gzip
import io
import re
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest
from PIL import Image

import tarmac
from tarmac import errors
from tarmac.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "shards.md"
ROWS = re.findall(r"^\| (.+?) \| .+? \| .*?`(tarmac .+?)`.* \|$", PAGE.read_text(), re.MULTILINE)
FIELDS = ("cls", "jpg", "txt")


def picture() -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "JPEG")
    return data.getvalue()


def archive(members: list[tuple[str, bytes]]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, payload in members:
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            tar.addfile(info, io.BytesIO(payload))
    return data.getvalue()


def members(keys: range, jpg: bytes) -> list[tuple[str, bytes]]:
    values = {"cls": b"1", "jpg": jpg, "txt": b"text"}
    return [(f"k{key:02d}.{field}", values[field]) for key in keys for field in FIELDS]


@pytest.fixture
def material(tmp_path):
    """Write the shards that the table names."""
    jpg = picture()
    all_members = members(range(10), jpg)
    good = archive(all_members)
    end = len(good.rstrip(b"\0")) + 511 & ~511
    flipped = bytearray(good)
    flipped[good.index(b"k05.cls") + 2] ^= 1
    linked = io.BytesIO()
    with tarfile.open(fileobj=linked, mode="w") as tar:
        info = tarfile.TarInfo("a.jpg")
        info.size = len(jpg)
        tar.addfile(info, io.BytesIO(jpg))
        link = tarfile.TarInfo("b.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "a.jpg"
        tar.addfile(link)
    compressed = gzip.compress(good)
    shards = {
        "good.tar": good,
        "other.tar": good,
        "torn.tar": good[: good.index(b"k08.jpg") + 700],
        "unended.tar": good[:end],
        "joined.tar": good + archive(members(range(10, 15), jpg)),
        "unsorted.tar": archive(sorted(all_members, key=lambda member: member[0][-3:])),
        "flipped.tar": bytes(flipped),
        "linked.tar": linked.getvalue(),
        "page.tar": b"<html>" + b"Not found. " * 100,
        "damaged.tar.gz": compressed[: len(compressed) // 2],
        "partial.tar": archive([each for each in all_members if each[0] != "k03.jpg"]),
        "images.tar": archive([(name, b"?" if name == "k04.jpg" else data) for name, data in all_members]),
    }
    for name, data in shards.items():
        (tmp_path / name).write_bytes(data)
    tarmac.index(str(tmp_path / "good.tar"), str(tmp_path / "good.json"), digests=True)
    return tmp_path


INTACT = {
    "torn.tar": 8,
    "unended.tar": 10,
    "joined.tar": 15,
    "unsorted.tar": 10,
    "flipped.tar": 9,
    "linked.tar": 2,
    "partial.tar": 9,
}
"""The number of samples that the command keeps."""
LISTS = {"page.tar", "damaged.tar.gz", "images.tar", "good.tar other.tar"}
"""Shards of commands that only report, with status 1."""


@pytest.mark.parametrize(("name", "command"), ROWS, ids=[command for _, command in ROWS])
def test_command(name, command, material, monkeypatch, capfd):
    monkeypatch.chdir(material)
    words = shlex.split(command)[1:]
    shard = words[1]
    with pytest.raises(SystemExit) as ended:
        main(words)
    if shard in INTACT:
        fixed = Path("clean", shard) if "--repair" in words else Path("fixed.tar")
        assert sum(1 for _ in tarmac.read(fixed)) == INTACT[shard]
        assert ended.value.code == (1 if "--repair" in words else 0)  # a repair reports its losses
    else:
        assert ended.value.code == (1 if shard in LISTS or "--duplicates" in words else 0)
    capfd.readouterr()


@pytest.mark.processes
def test_errors_of_the_table(material, monkeypatch):
    """Reading each shard raises the error in its row."""
    monkeypatch.chdir(material)
    raised = {}
    for name, command in ROWS:
        shard = shlex.split(command)[2]
        for error in re.findall(r"`(\w+)`", name):
            raised.setdefault(shard, set()).add(getattr(errors, error))
    for shard in (
        "torn.tar",
        "unended.tar",
        "joined.tar",
        "unsorted.tar",
        "flipped.tar",
        "page.tar",
        "damaged.tar.gz",
    ):
        with pytest.raises(tuple(raised[shard])):
            list(tarmac.read(shard))
    with pytest.raises(errors.UnsupportedMember):
        list(tarmac.read("pipe:cat linked.tar"))
    with pytest.raises(errors.MismatchedBatch):
        list(tarmac.Loader(tarmac.Dataset("partial.tar"), 10))
    with pytest.raises(errors.DecodeFailed):
        list(tarmac.Dataset("images.tar").decode("rgb8"))


def test_a_repair_can_write_the_whole_dataset(material, monkeypatch, capfd):
    monkeypatch.chdir(material)
    with pytest.raises(SystemExit):
        main(["check", "torn.tar", "good.tar", "--repair", "--intact", "copy", "-o", "clean/"])
    assert sorted(path.name for path in Path("clean").glob("*.tar")) == ["good.tar", "torn.tar"]
    shutil.rmtree("clean")
    capfd.readouterr()


def test_the_table_is_complete():
    assert len(ROWS) == 13
