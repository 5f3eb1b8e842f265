"""Every command of the table for users of tarp, tarproc and widsindex writes the right samples."""

from __future__ import annotations

import re
import shlex
import shutil
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


def expected(line):
    """Return the keys that copy, sort or map must write, and whether their order is fixed; None for other verbs."""
    verb = line.split()[1]
    if verb not in ("copy", "sort", "map") or "--mix" in line:
        return None
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
    files = [path for path in files if path.parent.name != ".tarmac"]
    if "--add" in line:
        assert '"better"' in (tmp_path / "train.json").read_text()
    elif "--delete-after" in line:
        assert not files
        return
    elif " -o " in line and " -o - " not in line:
        assert files, "nothing was written"
    else:
        assert captured.out or files, "nothing was printed"
    shards = sorted(path for path in files if ".tar" in path.suffixes and path.suffix != ".arrow")
    if " -o - " in line and line.split()[1] == "copy":
        (tmp_path / "stdout.tar").write_bytes(captured.out)
        shards = [tmp_path / "stdout.tar"]
    keys = [sample["__key__"] for shard in shards for sample in tarmac.read(str(shard))]
    wanted = expected(line)
    if wanted is not None:
        assert (keys if wanted[1] else sorted(keys)) == (wanted[0] if wanted[1] else sorted(wanted[0]))
    elif shards:
        assert keys
