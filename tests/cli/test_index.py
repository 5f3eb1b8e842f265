"""`tarmac index`: output and exit status."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from cli.running import numbers
from harness.datasets import write_shards
from harness.shards import plain
from tarmac.cli import main, program
from tarmac.exact.dataset import Dataset
from tarmac.indexing.manifest import read_manifest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_shards(tmp_path, [3, 4], index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(program, ["index", *map(str, arguments)])


def failing(capsys, *arguments):
    """The exit status and the one line that says why."""
    with pytest.raises(SystemExit) as ended:
        main(["index", *map(str, arguments)])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return ended.value.code, err


def test_index(folder):
    done = run("s*.tar", "-o", "all.json", "-j", 1)
    size = sum(path.stat().st_size for path in folder.glob("*.tar"))
    assert done.exit_code == 0
    assert numbers(done.stderr) == [2, 7, size, 2, 0]
    assert done.stderr.endswith(" -> all.json\n")
    assert done.stdout == ""
    done = run("s*.tar", "-o", "all.json", "-j", 1, "--json")
    fingerprint = read_manifest("all.json").fingerprint
    facts = {
        "manifest": "all.json",
        "shards": 2,
        "samples": 7,
        "bytes": size,
        "built": 0,
        "kept": 2,
        "fingerprint": fingerprint,
    }
    assert json.loads(done.stdout).items() >= facts.items()
    assert len(list(Dataset("all.json"))) == 7


def test_only_say_what_there_is_to_do(folder):
    done = run("s*.tar", "-o", "all.json", "--dry-run")
    assert (done.exit_code, done.stdout, numbers(done.stderr)) == (0, "", [2, 0])
    assert sorted(path.suffix for path in folder.iterdir()) == [".tar", ".tar"]
    assert run(next(folder.glob("*.tar")), "-j", 1).exit_code == 0
    done = run("s*.tar", "-o", "all.json", "--dry-run")
    assert numbers(done.stderr) == [1, 1]
    facts = json.loads(run("s*.tar", "--dry-run", "--json").stdout)
    assert (facts["built"], facts["kept"]) == (1, 1)
    assert not (folder / "all.json").exists()


def test_processes(folder):
    assert run("s*.tar", "-o", "all.json", "-j", 2).exit_code == 0
    assert len(list(Dataset("all.json"))) == 7


def test_the_default_manifest_is_named(folder):
    done = run("s000.tar", "s001.tar")
    assert done.exit_code == 0
    assert done.stderr.endswith(" -> s.json\n")
    names = ["s.json", "s000.tar", "s000.tar.arrow", "s001.tar", "s001.tar.arrow"]
    assert sorted(os.listdir(folder)) == names
    assert len(list(Dataset("s.json"))) == 7


def test_options(folder):
    (folder / "about.txt").write_text("what it is")
    arguments = ["--digests", "--meta", "cls,txt.size", "--sidecars", "idx", "--name", "N", "-j", 1]
    assert run("s000.tar", "-o", "all.json", "--info", "about.txt", *arguments).exit_code == 0
    assert run("s001.tar", "-o", "all.json", "--add", *arguments).exit_code == 0
    results = read_manifest("all.json")
    assert (results.name, results.info, results.samples) == ("N", "what it is", 7)
    assert sorted(os.listdir("idx")) == ["s000.tar.arrow", "s001.tar.arrow"]
    ds = Dataset("all.json", verify=True)
    assert [s["__key__"] for s in ds.where("cls >= 2 and cls < 5 and txt.size = 10")] == [
        "00002",
        "00003",
        "00004",
    ]
    (folder / "about.json").write_text('{"licence": "free"}')
    assert run("s*.tar", "-o", "b.json", "--info", "about.json", "-j", 1).exit_code == 0
    assert read_manifest("b.json").info == {"licence": "free"}


def test_damaged_metadata(folder, capsys):
    (folder / "bad.tar").write_bytes(plain([("a.json", b"{")]))
    status, err = failing(capsys, "bad.tar", "--meta", "json.w", "-j", 1)
    assert status == 1
    assert 'sample "a"' in err
    assert (
        run("bad.tar", "-o", "bad.json", "--meta", "json.w", "--on-bad-meta", "null", "-j", 1).exit_code == 0
    )
    assert len(Dataset("bad.json").where("json.w is null")) == 1


def test_stale(folder):
    run("s*.tar", "-o", "all.json", "-j", 1)
    done = run("all.json", "--stale")
    assert (done.exit_code, done.stdout, numbers(done.stderr)) == (0, "", [])
    os.utime("s001.tar", ns=(5, 5))
    assert run("all.json", "--stale").exit_code == 0  # a copy has another time
    content = bytearray((folder / "s001.tar").read_bytes())
    content[0] ^= 1
    (folder / "s001.tar").write_bytes(content)
    done = run("all.json", "--stale")
    assert (done.exit_code, numbers(done.stderr)) == (1, [1])
    assert done.stdout.startswith("STALE ")
    done = run("all.json", "--stale", "--json")
    assert done.exit_code == 1
    record = json.loads(done.stdout)
    assert record["kind"] == "IndexStale"
    assert record["url"].endswith("s001.tar")
    content[0] ^= 1
    (folder / "s001.tar").write_bytes(content)
    assert run("all.json", "-o", "all.json", "-j", 1).exit_code == 0  # a manifest stands for its shards
    assert run("all.json", "--stale").exit_code == 0


def test_errors(folder, capsys):
    assert failing(capsys, "absent.tar")[0] == 3
    assert failing(capsys, "s000.tar", "s000.tar")[0] == 2
    status, err = failing(capsys, "s000.tar", "--meta", "jpg.widht")
    assert status == 2
    assert "jpg.width?" in err
    assert run("s001.tar", "-o", "m.json").exit_code == 0
    assert failing(capsys, "m.json", "--add")[0] == 2
    assert failing(capsys, "s000.tar", "--dali", "--digests")[0] == 2
    assert failing(capsys, "s000.tar", "--dali")[0] == 3  # there is no s000.idx
    status, err = failing(capsys, "s000.tar", "--info", "absent.txt")
    assert (status, "absent.txt" in err) == (2, True)
    assert failing(capsys, "s000.tar", "--stale")[0] == 1
    (folder / "s000.idx").write_text("v1.2 0\n")
    assert run("s000.tar", "--dali", "-o", "d.json").exit_code == 0
    assert read_manifest("d.json").samples == 0
