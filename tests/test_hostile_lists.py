"""Files that list shards are data: whatever they say, no command runs and no forbidden file is opened.

Every verb and every door of the library, with every kind of list, near and far, with and without secure mode.
Audit hooks see each command that is started and each file that is opened, so nothing depends on a verb's
showing what it read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tarmac
import tarmac.webdataset as wds
from harness.folder import folder
from tarmac.cli import main
from tarmac.compat.shardlist import ShardListDataset
from tarmac.errors import TarmacError, UnsafeUrl
from tarmac.storage.urls import ShardUrl, expand
from tools.shards import make

CANARY = "canary-of-a-command"
OUTSIDE = "not-for-lists"


@dataclass
class Watch:
    """What happened that must not happen."""

    on: bool = False
    seen: list[str] = field(default_factory=list)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event in ("open", "subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"):
            text = os.fsdecode(args[0]) if event == "open" and isinstance(args[0], bytes | str) else str(args)
            opened = event == "open" and OUTSIDE in text and os.path.lexists(text)
            if opened or (CANARY in text and event != "open"):
                self.seen.append(f"{event} {text}")


WATCH = Watch()
sys.addaudithook(WATCH)


@contextmanager
def watched() -> Iterator[None]:
    """Fail if a command of a list starts, or a file opens that no list may name."""
    WATCH.on, WATCH.seen = True, []
    try:
        yield
    finally:
        WATCH.on = False
    assert WATCH.seen == []


@dataclass
class Place:
    """A directory with a sound shard and its index, and the same directory on a web server."""

    root: Path
    url: str

    @property
    def outside(self) -> str:
        """A shard of this machine beside the directory."""
        return str(self.root.parent / OUTSIDE / "s0.tar")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("lists") / "served"
    root.mkdir()
    make(root, 2, name="s{}.tar")
    (root.parent / OUTSIDE).mkdir()
    make(root.parent / OUTSIDE, 2, name="s{}.tar")
    (root / "more.txt").write_text(f"pipe:touch {CANARY}\n")
    with folder(root) as url:
        yield Place(root, url)


@pytest.fixture(params=[False, True], ids=["", "secure"])
def place(request, served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WDS_COMMAND", "pipe")
    monkeypatch.setenv("WDS_WHERE", os.path.dirname(served.outside))
    monkeypatch.setenv("TARMAC_SECURE", "1" if request.param else "")
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    tarmac.TarWriter("good.tar").close()
    return served


COMMANDS = [
    f"./s0.tar::pipe:touch {CANARY}",
    f"pipe:touch {CANARY}",
    f"{{pipe,pipe}}:touch {CANARY}",
    f"s0.tar::{{pipe,pipe}}:touch {CANARY}",
    f"${{COMMAND}}:touch {CANARY}",
    f"s0.tar::${{COMMAND}}:touch {CANARY}",
    f"PIPE://x; touch {CANARY}",
    "@more.txt",
    "./s0.tar::@more.txt",
]
"""Entries that ask for a command, in so many words or after one more step."""


def files(place: Place) -> list[str]:
    """Entries that ask for a file of this machine, which a remote list may not have."""
    name = place.outside
    quick = name.replace("/s0", "/s[0]")
    entries = [name, f"file://{name}", f"file:{name}", f"./s0.tar::{name}", f"s0.tar::file://{name}", quick]
    return [*entries, "${WHERE}/s0.tar", "s0.tar::${WHERE}/s0.tar", f"{{{name},{name}}}", f"FILE://{name}"]


def listed(entry: str) -> str:
    return f"{entry}\n"


def manifest(entry: str) -> str:
    shard = {"url": entry, "nsamples": 2, "index": entry}
    return json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [shard]})


def shardspec(entry: str) -> str:
    return json.dumps({"datasets": [{"shards": [entry]}]})


def recipe(entry: str) -> str:
    return f"a.txt {entry}\n"


KINDS: dict[str, tuple[str, str, Callable[[str], str]]] = {
    "list": ("@", "list.txt", listed),
    "manifest": ("", "list.json", manifest),
    "shardspec": ("", "list.yaml", shardspec),
    "recipe": ("", "list.recipe", recipe),
}

VERBS: dict[str, list[str]] = {
    "pack": ["pack", "SOURCE", "-o", "p-{i}.tar", "-j", "1"],
    "pack-recipe": ["pack", "SOURCE", "--from", "recipe", "-o", "p-{i}.tar", "-j", "1"],
    "pack-base": ["pack", "SOURCE", "--base", ".", "--from", "recipe", "-o", "p-{i}.tar", "-j", "1"],
    "copy": ["copy", "SOURCE", "-o", "c-{i}.tar", "-j", "1"],
    "copy-mix": ["copy", "--mix", "SOURCE=1", "--mix", "good.tar=1", "-o", "c-{i}.tar", "-j", "1"],
    "sort": ["sort", "SOURCE", "-o", "s-{i}.tar", "-j", "1"],
    "map": ["map", "SOURCE", "-c", "true", "-o", "m-{i}.tar", "-j", "1"],
    "join": ["join", "SOURCE", "--with", "good.tar", "-o", "j-{i}.tar", "-j", "1"],
    "join-with": ["join", "good.tar", "--with", "SOURCE", "-o", "j-{i}.tar", "-j", "1"],
    "index": ["index", "SOURCE", "-o", "i.json", "-j", "1"],
    "index-stale": ["index", "SOURCE", "--stale"],
    "check": ["check", "SOURCE", "-j", "1"],
    "check-against": ["check", "good.tar", "--against", "SOURCE", "-j", "1"],
    "check-repair": ["check", "SOURCE", "--repair", "-o", "r/", "-j", "1"],
    "show": ["show", "SOURCE"],
    "show-at": ["show", "SOURCE", "--at", "0"],
    "show-total": ["show", "SOURCE", "--total"],
    "show-info": ["show", "SOURCE", "--info"],
    "export": ["export", "SOURCE", "-o", "e.jsonl", "-j", "1"],
    "export-dir": ["export", "SOURCE", "--to", "dir", "-o", "e", "-j", "1"],
    "order": ["order", "SOURCE", "--batch-size", "2"],
    "cache-warm": ["cache", "warm", "SOURCE", "--cache", "kept"],
    "cache-evict": ["cache", "evict", "SOURCE", "--cache", "kept"],
}
MAY_END_WELL = ("cache-warm", "cache-evict", "show-info", "index-stale", "order")
"""These need not open a shard that a list names: they may only look for it, or at its manifest."""


def run(arguments: list[str]) -> Any:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return done.value.code


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_verb_does_what_a_list_asks(place, kind, verb, capfd):
    mark, name, write = KINDS[kind]
    for far in (False, True):
        for entry in [*COMMANDS, *(files(place) if far else ())]:
            (place.root / name).write_text(write(entry))
            source = f"{mark}{place.url}/{name}" if far else f"{mark}{place.root}/{name}"
            with watched():
                status = run([source if each == "SOURCE" else each.replace("SOURCE", source)
                              for each in VERBS[verb]])  # fmt: skip
            shown = capfd.readouterr()
            where = (verb, kind, far, entry, shown.err)
            assert status in (1, 2, 3) or (status in (0, None) and verb in MAY_END_WELL), where
            assert "Traceback" not in shown.err, where
            assert not [path for path in (Path(CANARY), place.root / CANARY) if path.exists()], where


TYPED = [
    "pipe:touch CANARY", "good.tar::pipe:touch CANARY", "{pipe,pipe}:touch CANARY", "@pipe:touch CANARY",
    "${COMMAND}:touch CANARY", "pipe:touch CANARY;x.json", "p*",
]  # fmt: skip


@pytest.mark.parametrize("verb", [verb for verb in VERBS if not verb.startswith("pack")])
def test_commands_on_the_command_line_need_permission_however_they_are_written(place, verb, capfd):
    """The gate looks at the URLs that would be opened. A file called `pipe:x` is a file."""
    Path(f"pipe:touch {CANARY}").touch()
    for entry in TYPED:
        source = entry.replace("CANARY", CANARY)
        with watched():
            run([source if each == "SOURCE" else each.replace("SOURCE", source) for each in VERBS[verb]])
        assert not Path(CANARY).exists(), (verb, entry)
        assert "Traceback" not in capfd.readouterr().err


DOORS: dict[str, Callable[[str], Any]] = {
    "read": lambda source: list(tarmac.read(source)),
    "WebDataset": lambda source: list(tarmac.WebDataset(source, shardshuffle=False)),
    "Dataset": lambda source: tarmac.Dataset(source)[0],
    "SimpleShardList": lambda source: list(tarmac.read([s["url"] for s in wds.SimpleShardList(source)])),
    "ShardListDataset": lambda source: ShardListDataset(source.removeprefix("@"))[0],
    "MultiShardSample": lambda source: list(
        tarmac.read(wds.MultiShardSample(source.removeprefix("@")).get_shards_for_epoch())
    ),
    "ResampledShards": lambda source: list(wds.ResampledShards(source, 1)),
    "expanded twice": lambda source: list(tarmac.read(expand(expand(source)))),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_door_of_the_library_does_what_a_list_asks(place, kind, door):
    mark, name, write = KINDS[kind]
    for far in (False, True):
        for entry in [*COMMANDS, *(files(place) if far else ())]:
            (place.root / name).write_text(write(entry))
            source = f"{mark}{place.url}/{name}" if far else f"{mark}{place.root}/{name}"
            with watched():
                try:
                    DOORS[door](source)
                except TarmacError:
                    continue
            assert door == "ResampledShards", (kind, far, entry)  # which opens nothing


def test_urls_stay_as_they_are_once_they_are_expanded(place):
    hostile = [ShardUrl(entry) for entry in COMMANDS]
    assert expand(hostile) == hostile
    assert all(type(url) is ShardUrl for url in expand(["a::b", "{c,d}.tar", *hostile]))
    with pytest.raises(UnsafeUrl):
        expand(hostile, allow_exec=False)


def test_a_recipe_from_elsewhere_stays_below_the_base_that_was_named(place, capfd):
    """--base may be local although the recipe is not; names that lead out of it are refused."""
    Path("base").mkdir()
    Path("base/in.txt").write_text("fine")
    pack = ["pack", f"{place.url}/list.recipe", "--base", "base", "-o", "p.tar", "-j", "1"]
    for name in (place.outside, os.path.relpath(place.outside, "base"), f"x/../../{OUTSIDE}"):
        (place.root / "list.recipe").write_text(f"a.txt {name}\n")
        with watched():
            assert run(pack) == 2
    (place.root / "list.recipe").write_text("a.txt in.txt\n")
    assert not run(pack)
    assert [sample["txt"] for sample in tarmac.read("p.tar")] == [b"fine"]


@pytest.mark.parametrize("door", [expand, wds.SimpleShardList])
@pytest.mark.parametrize("kind", ["list", "manifest", "shardspec"])
def test_names_from_a_list_stay_harmless_as_plain_strings(place, kind, door, monkeypatch):
    """Code that copies names loses their type, and with it what keeps them from being expanded."""
    mark, name, write = KINDS[kind]
    monkeypatch.chdir(place.root)  # names are relative to the list, so that nothing stands before them
    for entry in [*COMMANDS, *files(place), f"@pipe:touch {CANARY}", f"s0.tar::~/{OUTSIDE}"]:
        Path(name).write_text(write(entry))
        with watched_commands():
            try:
                found = door(f"{mark}{name}")
                list(
                    tarmac.read(["".join(each["url"] if isinstance(each, dict) else each) for each in found])
                )
            except TarmacError:
                continue
        assert entry in files(place), (kind, entry)


@contextmanager
def watched_commands() -> Iterator[None]:
    """Fail if a command of a list starts; a local list may name any file."""
    WATCH.on, WATCH.seen = True, []
    try:
        yield
    finally:
        WATCH.on = False
    assert [each for each in WATCH.seen if not each.startswith("open ")] == []


@pytest.mark.parametrize("kind", ["list", "manifest", "shardspec"])
def test_names_with_separators_and_variables_are_refused(place, kind, tmp_path):
    mark, name, write = KINDS[kind]
    for entry in ("s0.tar::http://h/x.tar", "s0.tar::d/x.tar", "s0.tar::pipe:true", "http://h/a::/etc/x.tar"):
        (tmp_path / name).write_text(write(entry))
        with pytest.raises(UnsafeUrl, match="special meaning"):
            expand(f"{mark}{tmp_path / name}")
    for entry in ("http://[::1]/a.tar", "http://[::1]:80/a.tar", "http://[fe80::1]/d/a.tar", "a::b.tar"):
        (tmp_path / name).write_text(write(entry))
        (found,) = expand(f"{mark}{tmp_path / name}")
        assert found.endswith(entry)
    if kind != "shardspec":  # where variables are replaced
        (tmp_path / name).write_text(write("${WHERE}/s0.tar"))
        with pytest.raises(UnsafeUrl, match="special meaning"):
            expand(f"{mark}{tmp_path / name}")


def test_shards_in_directories_with_odd_names_can_be_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("a::b", "${X}")):
        Path(name).mkdir()
        (path,) = make(Path(name), 2)
        assert not run(["index", path, "-o", f"m{number}.json", "-j", "1"])
        assert len(tarmac.Dataset(f"m{number}.json")) == 2
        assert len(list(tarmac.read([str(url) for url in expand(f"m{number}.json")]))) == 2
