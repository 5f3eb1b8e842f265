"""A file at the path of a manifest is replaced only by the job that wrote it, or with --overwrite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tarmac
from harness.folder import folder
from tarmac.cli import main
from tools.shards import make

VERBS: dict[str, list[str]] = {
    "pack": ["pack", "files", "-o", "out/p-{i}.tar"],
    "copy": ["copy", "in-0.tar", "-o", "out/c-{i}.tar"],
    "copy-stream": ["copy", "in-0.tar.gz", "-o", "out/g-{i}.tar"],
    "sort": ["sort", "in-0.tar", "-o", "out/s-{i}.tar"],
    "map": ["map", "in-0.tar", "-c", "true", "-o", "out/m-{i}.tar"],
    "map-by-name": ["map", "in-0.tar", "-c", "true", "-o", "out/"],
    "join": ["join", "in-0.tar", "--with", "with-0.tar", "-o", "out/j-{i}.tar"],
}
MINE = '{"mine": 1}\n'


def run(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as done:
        main([*arguments, "-j", "1"])
    return done.value.code or 0


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path, 4)
    Path("files").mkdir()
    Path("files/a.txt").write_text("1")
    with tarmac.TarWriter("with-0.tar") as writer:
        for sample in tarmac.read("in-0.tar"):
            writer.write({"__key__": sample["__key__"], "more": b"1"})
    with tarmac.TarWriter("in-0.tar.gz") as writer:
        for sample in tarmac.read("in-0.tar"):
            writer.write(sample)


@pytest.mark.processes
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_replaces_the_file_of_another(verb, capsys):
    manifest = Path("p.json")
    command = [*VERBS[verb], "--manifest", "p.json"]
    manifest.write_text(MINE)
    assert run(*command) == 2
    err = capsys.readouterr().err
    assert ("p.json: " in err, "--overwrite" in err) == (True, True)
    assert manifest.read_text() == MINE
    assert not list(Path("out").glob("*.tar"))
    assert run(*command, "--overwrite") == 0
    written = manifest.read_text()
    assert len(tarmac.Dataset("p.json")) == (1 if verb == "pack" else 4)
    assert run(*command) == 0  # nothing to do
    assert manifest.read_text() == written
    manifest.write_text(MINE)
    assert run(*command) == 2
    assert manifest.read_text() == MINE
    manifest.unlink()
    assert run(*command) == 0
    assert manifest.read_text() == written


def test_the_manifest_of_another_job_stays(capsys):
    assert run("copy", "in-0.tar", "-o", "c-{i}.tar", "--manifest", "p.json") == 0
    before = Path("p.json").read_text()
    assert run("copy", "in-0.tar", "-o", "d-{i}.tar", "--manifest", "p.json") == 2
    assert run("sort", "in-0.tar", "-o", "s-{i}.tar", "--manifest", "p.json") == 2
    assert Path("p.json").read_text() == before
    assert run("sort", "in-0.tar", "-o", "s-{i}.tar", "--manifest", "p.json", "--overwrite") == 0
    after = Path("p.json").read_text()
    assert run("copy", "in-0.tar", "-o", "c-{i}.tar", "--manifest", "p.json") == 2
    assert Path("p.json").read_text() == after


@pytest.mark.processes
def test_a_rewritten_shard_is_in_the_manifest():
    command = ["map", "in-0.tar", "-c", "date +%N > sample.txt", "-o", "m-{i}.tar", "--manifest", "p.json"]
    assert run(*command) == 0
    Path("m-0.tar").unlink()
    assert run(*command) == 0
    assert len(list(tarmac.Dataset("p.json", cache=None))) == 4


def test_indexing_updates_manifests_and_nothing_else(capsys):
    manifest = Path("p.json")
    for mine in (MINE, "not JSON", "[1]", '{"shardlist": 3}', '{"__kind__": "other", "shardlist": []}'):
        manifest.write_text(mine)
        assert run("index", "in-0.tar", "-o", "p.json") == 2
        assert "p.json: " in capsys.readouterr().err
        assert manifest.read_text() == mine
        assert not Path("in-0.tar.arrow").exists()
    manifest.write_text("")  # mktemp creates such files
    assert run("index", "in-0.tar", "-o", "p.json") == 0
    assert run("index", "in-0.tar", "with-0.tar", "-o", "p.json") == 0
    assert [shard["url"] for shard in json.loads(manifest.read_text())["shardlist"]] == [
        "in-0.tar",
        "with-0.tar",
    ]


@pytest.mark.processes
def test_a_file_on_a_web_server_is_not_replaced_either(tmp_path):
    root = tmp_path / "served"
    root.mkdir()
    (root / "p.json").write_text(MINE)
    with folder(root) as url:
        command = ["copy", "in-0.tar", "-o", f"{url}/c-{{i}}.tar", "--manifest", f"{url}/p.json"]
        assert run(*command) == 2
        assert run("index", f"{url}/c-0.tar", "-o", f"{url}/p.json") == 2
        assert (root / "p.json").read_text() == MINE
        (root / "p.json").unlink()
        assert run(*command) == 0
        assert len(tarmac.Dataset(f"{url}/p.json")) == 4


def test_a_command_is_not_run_to_read_a_manifest(tmp_path):
    run("index", "in-0.tar", "-o", "pipe:echo once >> ran; cat > got.json")
    assert not Path("ran").exists() or Path("ran").read_text() == "once\n"
