"""Shard lists are data: whatever they contain, no command runs and no forbidden file is opened.

Every verb and every function of the library is tested with every type of list, local and remote, with and
without secure mode. Audit hooks record all started commands and opened files.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tarmac
import tarmac.webdataset as wds
from harness.commands import run
from harness.folder import folder
from tarmac.compat.wids.wids import ShardListDataset
from tarmac.errors import TarmacError, UnsafeUrl
from tarmac.storage.urls import ShardUrl, expand
from tools.shards import make

CANARY = "canary-of-a-command"
OUTSIDE = "not-for-lists"


@dataclass
class Watch:
    """Forbidden actions that happened."""

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
    """Fail if a command from a list starts, or a forbidden file is opened."""
    WATCH.on, WATCH.seen = True, []
    try:
        yield
    finally:
        WATCH.on = False
    assert WATCH.seen == []


@dataclass
class Site:
    """A directory with an intact shard and its index, which is also on a web server."""

    root: Path
    url: str

    @property
    def outside(self) -> str:
        """A local shard outside of the directory."""
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
        yield Site(root, url)


@pytest.fixture(params=[False, True], ids=["", "secure"])
def site(request, served, tmp_path, monkeypatch):
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
"""Entries that would run a command, directly or after another expansion."""


def files(site: Site) -> list[str]:
    """Return entries that name local files, which a remote list must not contain."""
    name = site.outside
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
    "copy-keys": ["copy", "good.tar", "--keys", "SOURCE", "-o", "c-{i}.tar", "-j", "1"],
    "show-keys": ["show", "good.tar", "--keys", "SOURCE"],
    "check-manifest": ["check", "good.tar", "--manifest", "SOURCE", "-j", "1"],
    "check-repair": ["check", "SOURCE", "--repair", "-o", "r/", "-j", "1"],
    "show": ["show", "SOURCE"],
    "show-at": ["show", "SOURCE", "--at", "0"],
    "show-total": ["show", "SOURCE", "--total"],
    "show-info": ["show", "SOURCE", "--info"],
    "export": ["export", "SOURCE", "-o", "e.jsonl", "-j", "1"],
    "export-dir": ["export", "SOURCE", "--to", "dir", "-o", "e", "-j", "1"],
    "audit": ["audit", "SOURCE", "--batch-size", "2"],
    "cache-warm": ["cache", "warm", "SOURCE", "--cache", "kept"],
    "cache-evict": ["cache", "evict", "SOURCE", "--cache", "kept"],
}
MAY_END_WELL = ("copy-keys", "show-keys", "cache-warm", "cache-evict", "show-info", "index-stale", "audit")
"""These read a list of keys, or look for a shard or read its manifest without opening it."""


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", KINDS)
def test_verbs_do_not_obey_lists(site, kind, verb, capfd):
    mark, name, write = KINDS[kind]
    for remote in (False, True):
        for entry in [*COMMANDS, *(files(site) if remote else ())]:
            (site.root / name).write_text(write(entry))
            source = f"{mark}{site.url}/{name}" if remote else f"{mark}{site.root}/{name}"
            with watched():
                status = run([source if each == "SOURCE" else each.replace("SOURCE", source)
                              for each in VERBS[verb]])  # fmt: skip
            shown = capfd.readouterr()
            where = (verb, kind, remote, entry, shown.err)
            assert status in (1, 2, 3) or (status in (0, None) and verb in MAY_END_WELL), where
            assert "Traceback" not in shown.err, where
            assert not [path for path in (Path(CANARY), site.root / CANARY) if path.exists()], where


TYPED = [
    "pipe:touch CANARY", "good.tar::pipe:touch CANARY", "{pipe,pipe}:touch CANARY", "@pipe:touch CANARY",
    "${COMMAND}:touch CANARY", "pipe:touch CANARY;x.json", "p*",
]  # fmt: skip


@pytest.mark.parametrize("verb", [verb for verb in VERBS if not verb.startswith("pack")])
def test_all_notations_of_commands_need_permission(site, verb, capfd):
    """The check applies to the URLs that would be opened. A file with the name `pipe:x` is a file."""
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
def test_library_functions_do_not_obey_lists(site, kind, door):
    mark, name, write = KINDS[kind]
    for remote in (False, True):
        for entry in [*COMMANDS, *(files(site) if remote else ())]:
            (site.root / name).write_text(write(entry))
            source = f"{mark}{site.url}/{name}" if remote else f"{mark}{site.root}/{name}"
            with watched():
                try:
                    DOORS[door](source)
                except TarmacError:
                    continue
            assert door == "ResampledShards", (kind, remote, entry)  # it opens nothing


def test_expanding_twice_changes_nothing(site):
    hostile = [ShardUrl(entry) for entry in COMMANDS]
    assert expand(hostile) == hostile
    assert all(type(url) is ShardUrl for url in expand(["a::b", "{c,d}.tar", *hostile]))
    with pytest.raises(UnsafeUrl):
        expand(hostile, allow_exec=False)


def test_remote_recipes_stay_below_their_base(site, capfd):
    """--base may be local although the recipe is remote; names outside of it are rejected."""
    Path("base").mkdir()
    Path("base/in.txt").write_text("fine")
    pack = ["pack", f"{site.url}/list.recipe", "--base", "base", "-o", "p.tar", "-j", "1"]
    for name in (site.outside, os.path.relpath(site.outside, "base"), f"x/../../{OUTSIDE}"):
        (site.root / "list.recipe").write_text(f"a.txt {name}\n")
        with watched():
            assert run(pack) == 2
    (site.root / "list.recipe").write_text("a.txt in.txt\n")
    assert not run(pack)
    assert [sample["txt"] for sample in tarmac.read("p.tar")] == [b"fine"]


@pytest.mark.parametrize("door", [expand, wds.SimpleShardList])
@pytest.mark.parametrize("kind", ["list", "manifest", "shardspec"])
def test_names_from_a_list_stay_harmless_as_plain_strings(site, kind, door, monkeypatch):
    """Code that copies names loses the type `ShardUrl`, which prevents another expansion."""
    mark, name, write = KINDS[kind]
    monkeypatch.chdir(site.root)  # names are relative to the list, so they have no prefix
    for entry in [*COMMANDS, *files(site), f"@pipe:touch {CANARY}", f"s0.tar::~/{OUTSIDE}"]:
        Path(name).write_text(write(entry))
        with watched_commands():
            try:
                result = door(f"{mark}{name}")
                list(
                    tarmac.read(["".join(each["url"] if isinstance(each, dict) else each) for each in result])
                )
            except TarmacError:
                continue
        assert entry in files(site), (kind, entry)


@contextmanager
def watched_commands() -> Iterator[None]:
    """Fail if a command from a list starts; a local list may name any file."""
    WATCH.on, WATCH.seen = True, []
    try:
        yield
    finally:
        WATCH.on = False
    assert [each for each in WATCH.seen if not each.startswith("open ")] == []


@pytest.mark.parametrize("kind", ["list", "manifest", "shardspec"])
def test_names_with_separators_and_variables_are_rejected(site, kind, tmp_path):
    mark, name, write = KINDS[kind]
    for entry in ("s0.tar::http://h/x.tar", "s0.tar::d/x.tar", "s0.tar::pipe:true", "http://h/a::/etc/x.tar"):
        (tmp_path / name).write_text(write(entry))
        with pytest.raises(UnsafeUrl, match=re.escape(repr(entry))):
            expand(f"{mark}{tmp_path / name}")
    for entry in ("http://[::1]/a.tar", "http://[::1]:80/a.tar", "http://[fe80::1]/d/a.tar", "a::b.tar"):
        (tmp_path / name).write_text(write(entry))
        (result,) = expand(f"{mark}{tmp_path / name}")
        assert result.endswith(entry)
    if kind != "shardspec":  # which replaces variables
        (tmp_path / name).write_text(write("${WHERE}/s0.tar"))
        with pytest.raises(UnsafeUrl, match=r"\$\{WHERE\}/s0\.tar"):
            expand(f"{mark}{tmp_path / name}")


def test_shards_in_directories_with_special_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("a::b", "${X}")):
        Path(name).mkdir()
        (path,) = make(Path(name), 2)
        assert not run(["index", path, "-o", f"m{number}.json", "-j", "1"])
        assert len(tarmac.Dataset(f"m{number}.json")) == 2
        assert len(list(tarmac.read([str(url) for url in expand(f"m{number}.json")]))) == 2
