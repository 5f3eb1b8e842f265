"""Every command of the table for users of tarp, tarproc and widsindex writes the right samples."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

import tarmac
from tarmac.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "tools.md"
ROWS = re.findall(r"^\| (.*?`.*?|.*?) \| `(tarmac .*)` \|$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Write the shards, files, tables and lists that the commands name."""
    folder = tmp_path_factory.mktemp("material")
    names = ["a", "b", *(f"imgs-{number:03d}" for number in range(4))]
    (folder / "photos").mkdir()
    Image.new("RGB", (8, 6), (200, 10, 30)).save(folder / "one.jpg")
    picture = (folder / "one.jpg").read_bytes()
    for name in names:
        with tarmac.TarWriter(folder / f"{name}.tar") as writer:
            for number in range(15):
                text = f"text number {number} of {name}"
                writer.write(
                    {"__key__": f"{name}-{number:03d}", "jpg": picture, "cls": number % 4, "txt": text}
                )
    for number in range(6):
        (folder / "photos" / f"{number}.jpg").write_bytes(picture)
        (folder / "photos" / f"{number}.txt").write_text(f"photo {number}")
        (folder / "classes" / f"c{number % 2}").mkdir(parents=True, exist_ok=True)
        (folder / "classes" / f"c{number % 2}" / f"{number}.jpg").write_bytes(picture)
    (folder / "recipe.txt").write_text(
        "0.jpg photos/0.jpg\n0.txt text:hello there\n1.txt file:photos/1.txt\n"
    )
    (folder / "pipes.txt").write_text("0.txt pipe:echo hello\n")
    (folder / "lines.txt").write_text("one\ntwo\nthree\n")
    (folder / "table.tsv").write_text("name\ttxt\t@jpg\na\thello\tphotos/0.jpg\nb\tthere\tphotos/1.jpg\n")
    (folder / "list.txt").write_text("a.tar\nb.tar\n")
    (folder / "keys.txt").write_text("imgs-001-003\nimgs-002-000\n")
    urls = [str(folder / f"imgs-{number:03d}.tar") for number in range(4)]
    tarmac.index(urls, output=str(folder / "train.json"))
    return folder


A, B = ([f"{name}-{number:03d}" for number in range(15)] for name in "ab")
IMAGES = [f"imgs-{shard:03d}-{number:03d}" for shard in range(4) for number in range(15)]
EXPECTED = {
    "--slice 10:20": IMAGES[10:20],
    "--slice 5:20": IMAGES[5:20],
    "--slice-shard :5": [key for key in IMAGES if key[-3:] < "005"],
    "--rekey": [f"{number:09d}" for number in range(30)],
    "--interleave": [f"imgs-{shard:03d}-{number:03d}" for number in range(15) for shard in range(4)],
    "--multi": [f"{key}/{number:06d}" for key in A for number in range(2)],
    "--by cls": sorted(A + B, key=lambda key: int(key[-3:]) % 4),
    "--keys": ["imgs-001-003", "imgs-002-000"],
    "--where": [key for key in IMAGES if key[-3:] == "001" or key[-3:-1] == "01"],
}
"""The keys that commands with these flags write, in order."""

PACKED = {
    "recipe.txt": {"0": b"hello there", "1": b"photo 1"},
    "pipes.txt": {"0": b"hello\n"},
    "lines.txt": {"000000000": b"one", "000000001": b"two", "000000002": b"three"},
    "table.tsv": {"a": b"hello", "b": b"there"},
    "photos/": {str(number): f"photo {number}".encode() for number in range(6)},
    "classes/": {f"c{number % 2}/{number}": b"%d" % (number % 2) for number in range(6)},
}
"""The keys and texts, or classes, that `tarmac pack` writes from these sources."""

PRINTED = {
    "show a.tar --at 0 --raw txt": "text number 0 of a",
    "show train.json --at 17 --raw txt": "text number 2 of imgs-001",
    "show train.json --at 17": "imgs-001-002\t",
    "show train.json --info": "name\ttrain\nshards\t4\nsamples\t60\n",
    "check 'imgs-*.tar' --all-errors --max-errors 10": "ok    imgs-000.tar: 15 samples, ",
}
"""How the output of these commands begins."""


def expected(line):
    """Return the keys that copy, sort or map must write, and whether their order is fixed."""
    if "--mix" in line:
        return A + B[:6], False
    listed = "@list" in line
    inputs = [
        *(IMAGES if "imgs" in line else []),
        *(A if "a.tar" in line or listed else []),
        *(B if "b.tar" in line or listed else []),
    ]
    for flag, keys in EXPECTED.items():
        if flag in line:
            return [key for key in keys if flag != "--by cls" or key in inputs], True
    return inputs, not ("--shuffle" in line or "random" in line)


def exported(form, out):
    """Return the keys and the texts that `tarmac export` wrote, to standard output or a file."""
    if form == "sqlite":
        with closing(sqlite3.connect("out.db")) as database:
            return database.execute("SELECT key, txt FROM samples ORDER BY key").fetchall()
    if form == "lmdb":
        lmdb = pytest.importorskip("lmdb")
        with (
            lmdb.open("out.lmdb", subdir=False, lock=False, readonly=True) as stored,
            stored.begin() as reader,
        ):
            entries = [(name.decode(), data) for name, data in reader.cursor()]
        return [(name[:-4], data.decode()) for name, data in entries if name.endswith(".txt")]
    lines = out.splitlines()
    if form == "jsonl":
        return [(row["__key__"], row["txt"]) for row in map(json.loads, lines)]
    if form == "tsv":
        return [tuple(line.split("\t")[:2]) for line in lines[1:]]
    assert form == "yaml"
    keys, texts = (
        [line.partition(": ")[2] for line in lines if line.startswith(name)] for name in ("__key__", "txt")
    )
    return list(zip(keys, texts, strict=True))


def check_shards(line, out, shards):
    """Compare the keys of the shards that copy, sort or map wrote."""
    keys = [sample["__key__"] for shard in shards for sample in tarmac.read(str(shard))]
    wanted, ordered = expected(line)
    assert (keys if ordered else sorted(keys)) == (wanted if ordered else sorted(wanted))


def check_packed(line, out, shards):
    samples = [sample for shard in shards for sample in tarmac.read(str(shard))]
    packed = [(sample["__key__"], sample.get("txt", sample.get("cls"))) for sample in samples]
    assert sorted(packed) == sorted(PACKED[line.split()[2]].items())


def check_exported(line, out, shards):
    form = line.partition("--to ")[2].split()[0]
    assert exported(form, out.decode()) == [(key, f"text number {n} of a") for n, key in enumerate(A)]


def check_indexed(line, out, shards):
    (manifest,) = re.findall(r"-o (\S+)", line)
    assert [sample["__key__"] for sample in tarmac.Dataset(manifest)] == IMAGES
    assert tarmac.read_manifest(manifest).name == line.partition("--name ")[2]


def check_printed(line, out, shards):
    if "--sheet" in line:
        with Image.open("sheet.png") as sheet:
            assert sheet.size[0] > 8
    else:
        assert out.decode().startswith(PRINTED[line.removeprefix("tarmac ")])


CHECKS = {
    "pack": check_packed,
    "export": check_exported,
    "index": check_indexed,
    "show": check_printed,
    "check": check_printed,
}


def test_the_table_is_complete():
    assert len(ROWS) > 45
    verbs = {command.split()[1] for _, command in ROWS}
    assert verbs >= {"pack", "copy", "sort", "map", "index", "show", "export"}


@pytest.mark.parametrize(("before", "command"), ROWS, ids=[command[:70] for _, command in ROWS])
def test_the_command_works(before, command, material, tmp_path, monkeypatch, capfdbinary):
    shutil.copytree(material, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    line = command.replace(r"\|", "|")
    existing = set(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as done:
        main(shlex.split(line)[1:])
    captured = capfdbinary.readouterr()
    assert not done.value.code, captured.err.decode()
    files = [path for path in set(tmp_path.rglob("*")) - existing if path.is_file()]
    files = [path for path in files if ".tarmac" not in path.parts]
    if "--delete-after" in line:
        assert not files
        return
    shards = sorted(path for path in files if ".tar" in path.suffixes and path.suffix != ".arrow")
    if " -o - " in line:
        (tmp_path / "stdout.tar").write_bytes(captured.out)
        shards = [tmp_path / "stdout.tar"]
    CHECKS.get(line.split()[1], check_shards)(line, captured.out, shards)
