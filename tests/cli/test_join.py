"""`tarmac join` as a user types it."""

from __future__ import annotations

import json

import pytest

from cli.running import numbers, run, shell
from harness.datasets import write_shards
from tools.shards import content


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / ".home"))
    write_shards(tmp_path, [3, 4], index=False)
    (tmp_path / "t.csv").write_text("key,caption\n00001,one\n00005,five\n99999,none\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_join(folder, capsys):
    command = "join", "s*.tar", "--with", "t.csv", "-o", "out/", "-j", 1
    status, out, err = run(capsys, *command)
    assert (status, out) == (0, "")
    assert numbers(err) == [7, 7, 5, 1, 84]
    assert content("out/*.tar")[5]["caption"] == b"five"
    report = json.loads(run(capsys, *command, "--json")[1])
    assert (report["kept"], report["without_a_partner"], report["rows_not_used"]) == (2, 5, 1)


def test_flags_of_all_groups(folder, capsys):
    status, _, err = run(
        capsys, "join", "s*.tar", "--with", "t.csv", "--how", "inner", "--rows", "json", "--prefix", "row.",
        "--fields", "row.json,cls", "--rekey", "{i}", "--index", "-o", "o-{i}.tar",
        "--max-samples", 1, "--tmp", folder,
    )  # fmt: skip
    assert status == 0, err
    assert numbers(err)[:3] == [7, 2, 5]
    first, second = content("o-*.tar")
    assert json.loads(first["row.json"]) == {"key": "00001", "caption": "one"}
    assert (second["__key__"], second["cls"]) == ("1", b"5")
    status, _, err = run(
        capsys, "join", "s*.tar", "--with", "t.csv", "--columns", "caption=txt", "--replace", "-o", "r.tar"
    )
    assert status == 0, err
    assert content("r.tar")[1]["txt"] == b"one"


def test_on_duplicate(folder, capsys):
    (folder / "t.csv").write_text("key,caption\n00001,one\n00001,two\n00000,none\n")
    status, _, err = run(capsys, "join", "s000.tar", "--with", "t.csv", "-o", "o.tar")
    assert (status, "00001" in err, "--on-duplicate" in err) == (1, True, True)
    assert not (folder / "o.tar").exists()
    assert (
        run(capsys, "join", "s000.tar", "--with", "t.csv", "-o", "o.tar", "--on-duplicate", "first")[0] == 0
    )
    assert [sample.get("caption") for sample in content("o.tar")] == [b"none", b"one", None]


def test_failed_samples(folder, capsys):
    command = "join", "s000.tar", "--with", "s001.tar", "--with", "s000.tar", "-o", "o.tar"
    status, _, err = run(capsys, *command, "--on-error", "skip")
    assert status == 1
    assert 'FAILED s000.tar, sample "00000"' in err
    assert "--replace" in err


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["absent.tar", "--with", "t.csv"], 3, "absent.tar"),
        (["s000.tar", "--with", "absent.csv"], 3, "absent.csv"),
        (["s000.tar"], 2, "--with"),
        (["s000.tar", "--with", "t.csv", "--key", "name"], 2, "--key"),
        (["s000.tar", "--with", "t.csv", "--columns", "a,a"], 2, "--columns"),
        (["s000.tar", "--with", "s000.tar"], 1, "--replace"),
        (["s000.tar", "--with", "s001.tar", "--key", "x"], 2, "--key"),
        (["s000.tar", "--with", "pipe:cat t.csv"], 2, "pipe:"),
    ],
)
def test_errors(folder, capsys, arguments, status, words):
    code, out, err = run(capsys, "join", *arguments, "-o", "o/")
    assert (code, out) == (status, "")
    assert words in err
    assert not list(folder.glob("o/*.tar"))


@pytest.mark.processes
def test_through_gnu_tar(folder):
    done = shell("cat s000.tar | tarmac join - --with t.csv -o - | tar -tf -")
    assert done.returncode == 0, done.stderr
    names = done.stdout.decode().split()
    assert ("00001.caption" in names, len(names)) == (True, 7)
