"""Keys, fields and file names from data cannot control the terminal.

Every verb reads shards whose keys and fields contain escape sequences, line breaks, C1 controls and direction
overrides. Its output, on success and in errors, must be printable text without additional lines.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

import tarmac
from harness.commands import run
from harness.shards import plain
from tarmac.indexing.manifest import Manifest, Shard

NASTY = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "line\nok    forged: 1 samples",
    "c1\x9b31m",
    "bidi\u202egnp",
    "\r\x08\x7f",
]


def shard(path: Path, names: list[str], content: bytes = b"x") -> None:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    shard(Path("keys.tar"), [f"k{number}{name}.txt" for number, name in enumerate(NASTY)])
    shard(Path("fields.tar"), [f"k{number}.f{name}" for number, name in enumerate(NASTY)])
    shard(Path("twice.tar"), [f"a{NASTY[0]}.txt", f"b{NASTY[2]}.txt", f"a{NASTY[0]}.txt"])
    shard(Path("same.tar"), [f"a{NASTY[1]}.txt{NASTY[3]}", f"a{NASTY[1]}.txt{NASTY[3]}"])
    shard(Path("content.tar"), ["a.txt", "a.json", "a.cls", "a.jpg"], "".join(NASTY).encode())
    shard(Path(f"name{NASTY[0]}{NASTY[2].replace('/', '')}.tar"), ["a.txt"])
    whole = Path("keys.tar").read_bytes()
    Path("torn.tar").write_bytes(whole[: len(whole) - 3000])
    Path("list.txt").write_text("".join(f"missing{name}.tar\n" for name in NASTY))
    Path("m.json").write_text(
        json.dumps(
            {"wids_version": 1, "shardlist": [{"url": f"x{name}.tar", "nsamples": 1} for name in NASTY]}
        )
    )
    Path("t.csv").write_text("key,txt\n" + "".join(f'"{name}",1\n' for name in NASTY))
    return sorted(str(path) for path in tmp_path.glob("*.tar"))


VERBS: dict[str, list[str]] = {
    "pack": ["pack", "t.csv", "--key", "key", "-o", "p-{i}.tar", "-j", "1"],
    "pack-dir": ["pack", "DIR", "-o", "p-{i}.tar", "-j", "1"],
    "copy": ["copy", "SOURCE", "-o", "c-{i}.tar", "-j", "1", "--fields", "nothing"],
    "copy-where": ["copy", "SOURCE", "-o", "c-{i}.tar", "-j", "1", "--where", "nothing = 3"],
    "sort": ["sort", "SOURCE", "-o", "s-{i}.tar", "-j", "1", "--unique", "error"],
    "sort-by": ["sort", "SOURCE", "-o", "s-{i}.tar", "-j", "1", "--by", "txt", "--type", "int"],
    "map": ["map", "SOURCE", "-c", "ls >&2; false", "-o", "m-{i}.tar", "-j", "1"],
    "join": ["join", "SOURCE", "--with", "keys.tar", "-o", "j-{i}.tar", "-j", "1"],
    "index": ["index", "SOURCE", "-o", "i.json", "-j", "1", "--meta", "cls"],
    "check": ["check", "SOURCE", "-j", "1", "--require", "jpg", "--all-errors"],
    "check-decode": ["check", "SOURCE", "-j", "1", "--decode"],
    "check-twice": ["check", "SOURCE", "SOURCE", "-j", "1", "--duplicates"],
    "check-json": ["check", "SOURCE", "-j", "1", "--require", "jpg", "--all-errors", "--json"],
    "check-repair": ["check", "SOURCE", "-j", "1", "--repair", "-o", "r/"],
    "show": ["show", "SOURCE"],
    "show-content": ["show", "SOURCE", "--content"],
    "show-json": ["show", "SOURCE", "--content", "--json"],
    "show-at": ["show", "SOURCE", "--at", "nothing"],
    "show-raw": ["show", "SOURCE", "--raw", "nothing"],
    "show-stats": ["show", "SOURCE", "--stats"],
    "show-total": ["show", "SOURCE", "--total"],
    "show-fields": ["show", "SOURCE", "--fields-only"],
    "show-extract": ["show", "SOURCE", "--extract", "x"],
    "export": ["export", "SOURCE", "-o", "e.tsv", "-j", "1"],
    "export-dir": ["export", "SOURCE", "--to", "dir", "-o", "e", "-j", "1"],
    "audit": ["audit", "SOURCE", "--batch-size", "2", "--step", "0"],
    "audit-key": ["audit", "SOURCE", "--batch-size", "2", "--key", "nothing\x1b"],
    "cache": ["cache", "warm", "SOURCE", "--cache", "kept"],
}


@pytest.mark.processes
@pytest.mark.parametrize("verb", VERBS)
def test_hostile_names_are_printed_escaped(names, verb, capfd):
    Path("DIR").mkdir()
    Path(f"DIR/a{NASTY[0]}.txt").touch()
    Path(f"DIR/b{NASTY[2]}").touch()
    existing = {path.name for path in Path().iterdir()}
    for source in [*names, "@list.txt", "m.json"]:
        run([source if each == "SOURCE" else each for each in VERBS[verb]])
        shown = capfd.readouterr()
        for line in (shown.out + shown.err).split("\n"):
            assert line.replace("\t", "").isprintable(), (source, line)
            assert not line.startswith("ok    forged"), source
        assert "Traceback" not in shown.err, source
        for path in Path().iterdir():  # outputs of one source would conflict with the next
            if path.name not in existing:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_reprs_show_hostile_names_escaped(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(plain([(f"a.x\x1b[31m{name}", b"1") for name in ("y", "z\u202e")]))
    dataset = tarmac.Dataset(str(path))
    manifest = Manifest([Shard("x\x1b.tar", 1)], name="n\x1b\n")
    shown = [repr(dataset), dataset._repr_html_(), repr(manifest), manifest._repr_html_()]
    assert all(text.isprintable() for text in shown)
