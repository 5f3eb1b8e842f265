"""Every line of the table for users of tarp, tarproc and widsindex does what it says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

import tarmac
from tarmac.cli import main
from tarmac.tools.index import index

PAGE = Path(__file__).parent.parent / "docs" / "tools.md"
ROWS = re.findall(r"^\| (.*?`.*?|.*?) \| `(tarmac .*)` \|$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Shards, files, tables and lists as the commands name them."""
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
    index([str(folder / f"imgs-{number:03d}.tar") for number in range(4)], str(folder / "train.json"))
    return folder


def test_the_table_is_there():
    assert len(ROWS) > 45
    assert {command.split()[1] for _, command in ROWS} >= {
        "pack",
        "copy",
        "sort",
        "map",
        "index",
        "show",
        "export",
    }


@pytest.mark.parametrize(("before", "command"), ROWS, ids=[command[:70] for _, command in ROWS])
def test_the_command_works(before, command, material, tmp_path, monkeypatch, capfdbinary):
    shutil.copytree(material, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    line = command.replace(r"\|", "|")
    there = set(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as done:
        main(shlex.split(line)[1:])
    shown = capfdbinary.readouterr()
    assert not done.value.code, shown.err.decode()
    made = [found for found in set(tmp_path.rglob("*")) - there if found.is_file()]
    made = [found for found in made if found.parent.name != ".tarmac"]
    if "--add" in line:
        assert '"better"' in (tmp_path / "train.json").read_text()
    elif "--rm" in line:
        assert not made
    elif " -o " in line and " -o - " not in line:
        assert made, "nothing was made"
    else:
        assert shown.out or made, "nothing was said"
    shards = [found for found in made if ".tar" in found.suffixes and found.suffix != ".arrow"]
    assert all(list(tarmac.read(str(shard))) for shard in shards)
