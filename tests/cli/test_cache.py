"""`tarmac cache` as a person runs it."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from cli.running import numbers
from harness.servers import nginx, required
from harness.shards import plain
from tarmac.cli import main, program


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for number in range(3):
        (folder / f"s{number}.tar").write_bytes(plain([(f"{number}.txt", b"x" * 100)]))
    with required(nginx(folder)) as url:
        yield url


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("WDS_CACHE_SIZE", raising=False)
    return tmp_path / "kept"


def run(*arguments):
    return CliRunner().invoke(program, ["cache", *map(str, arguments)])


def failing(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["cache", *map(str, arguments)])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return ended.value.code, err


def test_fill_list_check_and_empty(site, home):
    done = run("warm", f"{site}/s{{0..1}}.tar")
    assert (done.exit_code, done.stdout) == (0, "")
    assert numbers(done.stderr) == [2, 0, 0, 0]
    done = run("warm", f"{site}/s{{0..2}}.tar", "--json", "-j", 2)
    assert json.loads(done.stdout) == {"fetched": 1, "present": 2, "not_kept": 0, "failed": 0, "errors": []}
    done = run("ls")
    assert numbers(done.stderr) == [3, 6144]
    assert all(line.split()[0] == "2048" and f"{site}/s" in line for line in done.stdout.splitlines())
    listed = [json.loads(line) for line in run("ls", "--json").stdout.splitlines()]
    assert {entry["url"] for entry in listed} == {f"{site}/s{number}.tar" for number in range(3)}
    done = run("verify")
    assert (done.exit_code, numbers(done.stderr)) == (0, [3, 0])
    done = run("evict", f"{site}/s0.tar", f"{site}/s9.tar")
    assert numbers(done.stderr) == [1, 2048, 4096, 1]
    assert json.loads(run("evict", "--max-bytes", 3000, "--json").stdout)["left"] == 2048
    assert numbers(run("evict", "--all").stderr) == [1, 2048, 0]
    assert [name for name in os.listdir(home) if name != ".tarmac"] == []


def test_damage(site, tmp_path):
    location = tmp_path / "c"
    assert run("warm", f"{site}/s0.tar", "--cache", location).exit_code == 0
    (entry,) = (path for path in location.iterdir() if path.is_file())
    entry.write_bytes(bytes(2048))
    done = run("verify", "--cache", location, "--keep")
    assert (done.exit_code, done.stdout) == (1, f"DAMAGED {site}/s0.tar\n")
    done = run("verify", "--cache", location, "--json")
    assert (done.exit_code, json.loads(done.stdout)["removed"]) == (1, True)
    assert not entry.exists()


def test_shards_that_are_not_there(site, home):
    done = run("warm", f"{site}/s0.tar", f"{site}/absent.tar")
    assert done.exit_code == 3
    assert "FAILED" in done.stderr
    assert numbers(done.stderr.splitlines()[-1]) == [1, 0, 0, 1]


def test_mistakes(capsys, monkeypatch, tmp_path, home):
    assert failing(capsys, "warm", "pipe:cat x")[0] == 2
    assert failing(capsys, "evict")[0] == 2
    assert failing(capsys, "evict", "--all", "--max-bytes", "3")[0] == 2
    monkeypatch.delenv("WDS_CACHE")
    code, err = failing(capsys, "ls")
    assert code == 2
    assert "--cache" in err
    assert "WDS_CACHE" in err
    assert run("warm", "--help").exit_code == 0


def test_a_size_from_the_environment(site, home, monkeypatch):
    monkeypatch.setenv("WDS_CACHE_SIZE", "4096")
    run("warm", f"{site}/s{{0..2}}.tar", "-j", 1)
    assert numbers(run("ls").stderr) == [2, 4096]
    assert run("warm", f"{site}/s0.tar", "--max-bytes", 100).stderr.startswith("not cached: ")
