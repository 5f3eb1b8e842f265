"""`tarmac join` as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tarmac
from harness.datasets import write_shards
from tarmac.cli import app, main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / ".home"))
    write_shards(tmp_path, [3, 4], index=False)
    (tmp_path / "t.csv").write_text("key,caption\n00001,one\n00005,five\n99999,none\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["join", *map(str, arguments), "-j", "1"])


def failing(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["join", *map(str, arguments), "-j", "1"])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return ended.value.code, err


def test_metadata_is_added_without_unpacking(folder):
    """What webdataset's users asked for in #103 and #481."""
    done = run("s*.tar", "--with", "t.csv", "-o", "out/")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "join: 7 samples in, 7 out, 5 without a partner, 1 rows not used, 84 bytes\n"
    samples = {s["__key__"]: s for s in tarmac.read(["out/s000.tar", "out/s001.tar"])}
    assert samples["00005"]["caption.txt"] == b"five"
    done = run("s*.tar", "--with", "t.csv", "-o", "out/", "--json")
    facts = json.loads(done.stdout)
    assert (facts["kept"], facts["without_a_partner"], facts["rows_not_used"]) == (2, 5, 1)


def test_flags_of_all_groups(folder):
    done = run(
        "s*.tar", "--with", "t.csv", "--how", "inner", "--as", "json", "--prefix", "row.",
        "--fields", "row.json,cls", "--rekey", "{i}", "--index", "-o", "o-{i}.tar",
        "--max-samples", 1, "--tmp", folder,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "2 out, 5 without a partner dropped" in done.stderr
    (first,), (second,) = (list(tarmac.read(f"o-{i}.tar")) for i in (0, 1))
    assert json.loads(first["row.json"]) == {"key": "00001", "caption": "one"}
    assert (second["__key__"], second["cls"]) == ("1", b"5")
    done = run("s*.tar", "--with", "t.csv", "-o", "p/", "--dry-run")
    assert (done.exit_code, done.stderr) == (0, "join: 2 to do\n")


def test_the_first_row_of_a_key_can_be_taken(folder, capsys):
    (folder / "t.csv").write_text("key,caption\n00001,one\n00001,two\n00000,none\n")
    status, err = failing(capsys, "s000.tar", "--with", "t.csv", "-o", "o.tar")
    assert (status, "00001" in err) == (1, True)
    assert not (folder / "o.tar").exists()
    done = run("s000.tar", "--with", "t.csv", "-o", "o.tar", "--duplicates", "first")
    assert done.exit_code == 0, done.stderr
    assert [s.get("caption.txt") for s in tarmac.read("o.tar")] == [b"none", b"one", None]


def test_fields_can_be_replaced(folder, capsys):
    (folder / "t.csv").write_text("key,cls\n00001,77\n")
    status, err = failing(capsys, "s000.tar", "--with", "t.csv", "-o", "o.tar")
    assert (status, "--replace" in err) == (1, True)
    done = run("s000.tar", "--with", "t.csv", "-o", "p.tar", "--replace")
    assert done.exit_code == 0, done.stderr
    assert [s["cls"] for s in tarmac.read("p.tar")] == [b"0", b"77", b"2"]


def test_lost_samples_are_told(folder):
    done = run("s000.tar", "--with", "s001.tar", "--with", "s000.tar", "-o", "o.tar", "--on-error", "skip")
    assert done.exit_code == 1
    assert 'FAILED s000.tar, sample "00000": both have the field "cls".' in done.stderr


def test_mistakes(folder, capsys):
    assert failing(capsys, "absent.tar", "--with", "t.csv", "-o", "o/")[0] == 3
    assert failing(capsys, "s000.tar", "--with", "absent.csv", "-o", "o/")[0] == 3
    assert failing(capsys, "s000.tar", "-o", "o/")[0] == 2
    status, err = failing(capsys, "s000.tar", "--with", "t.csv", "--key", "name", "-o", "o/")
    assert (status, "there is key, caption" in err) == (2, True)
    status, err = failing(capsys, "s000.tar", "--with", "s000.tar", "-o", "p/")
    assert (status, "--replace" in err) == (1, True)
    assert failing(capsys, "s000.tar", "--with", "s001.tar", "--key", "x", "-o", "o/")[0] == 2
    assert failing(capsys, "s000.tar", "--with", "pipe:cat t.csv", "-o", "o/")[0] == 2
    assert not list(folder.glob("o/*.tar"))


def test_through_gnu_tar(folder):
    command = f"cat s000.tar | {sys.executable} -m tarmac join - --with t.csv -o - | tar -tf -"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "00001.caption.txt" in done.stdout.split()
    assert len(done.stdout.split()) == 7
