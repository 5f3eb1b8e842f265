"""`tarmac export` as a person runs it."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import lmdb
import pytest
from typer.testing import CliRunner

from harness.datasets import write_shards
from harness.shards import plain
from tarmac.cli import app, main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_shards(tmp_path, [3, 4], index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def failing(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["export", *map(str, arguments)])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return ended.value.code, err


def tarmac(*arguments, **options):
    command = [sys.executable, "-m", "tarmac", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, **options)


def test_a_table_in_a_database(folder):
    done = run("s*.tar", "-o", "x.sqlite", "--fields", "cls", "--where", "cls >= 5")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "export: 7 samples in, 2 selected, 2 out, 2 bytes\n"
    with closing(sqlite3.connect("x.sqlite")) as database:
        assert database.execute("SELECT key, cls FROM samples").fetchall() == [("00005", 5), ("00006", 6)]
    again = run("s*.tar", "-o", "x.sqlite", "--fields", "cls", "--where", "cls >= 5")
    assert "nothing to do" in again.stderr
    assert run("s*.tar", "--to", "lmdb", "-o", "y").exit_code == 0
    with lmdb.open("y", subdir=False, lock=False, readonly=True) as database, database.begin() as reader:
        assert reader.get(b"00006.cls") == b"6"
        assert reader.stat()["entries"] == 14


def test_standard_output(folder):
    rows = list(csv.reader(io.StringIO(run("s*.tar", "--to", "csv", "-o", "-", "--slice", ":2").stdout)))
    assert rows == [["__key__", "cls", "txt"], ["00000", "0", "x" * 10], ["00001", "1", "x" * 10]]
    bare = run("s*.tar", "--to", "tsv", "-o", "-", "--fields", "cls", "--nokey", "--noheader")
    assert bare.stdout == "".join(f"{number}\n" for number in range(7))
    assert bare.stderr == "export: 7 samples in, 7 out, 7 bytes\n"


def test_standard_input_and_commands(folder, capsys):
    with open("s001.tar", "rb") as file:
        done = tarmac("export", "-", "--to", "jsonl", "-o", "-", stdin=file)
    assert [json.loads(line)["cls"] for line in done.stdout.splitlines()] == [3, 4, 5, 6]
    with open("s001.tar", "rb") as file:
        done = tarmac("export", "-", "-o", "in.parquet", stdin=file)
    assert (done.returncode, done.stderr) == (0, b"export: 4 samples in, 4 out, 44 bytes\n")
    code, err = failing(capsys, "pipe:cat s000.tar", "-o", "x.jsonl")
    assert code == 2
    assert "--allow-exec" in err
    assert run("pipe:cat s000.tar", "-o", "x.jsonl", "--allow-exec").exit_code == 0
    assert failing(capsys, "pipe:cat s000.tar", "-o", "x.jsonl", "--allow-exec")[0] == 2  # it is there now


def test_a_reader_that_has_seen_enough(folder):
    (folder / "many.tar").write_bytes(plain([(f"{i:06d}.txt", b"y" * 100) for i in range(20_000)]))
    command = f"{sys.executable} -m tarmac export many.tar --to jsonl -o - | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["__key__"] == "000000"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_files_of_many(folder):
    done = run("s*.tar", "-o", "out/x-{i:02d}.jsonl", "-j", 2, "--json")
    told = json.loads(done.stdout)
    assert (told["verb"], told["units"], told["done"], told["written"]) == ("export", 2, 2, 7)
    assert run("s*.tar", "-o", "out2/", "--to", "tfrecord", "--dry-run").stderr == "export: 2 to do\n"
    assert not (folder / "out2").exists()
    assert run("s*.tar", "-o", "d", "--to", "dir").exit_code == 0
    assert (folder / "d/00006.cls").read_bytes() == b"6"


def test_exit_codes(folder, capsys):
    assert failing(capsys, "s*.tar", "-o", "x")[0] == 2
    assert failing(capsys, "s*.tar", "-o", "x.parquet", "--to", "nonsense")[0] == 2
    assert failing(capsys, "s*.tar", "-o", "-", "--to", "jsonl", "--json")[0] == 2
    assert failing(capsys, "s*.tar", "-o", "x.csv", "--as", "txt=bytes")[0] == 2
    assert failing(capsys, "absent.tar", "-o", "x.jsonl")[0] == 3
    (folder / "bad.tar").write_bytes((folder / "s000.tar").read_bytes()[:1500])
    assert failing(capsys, "bad.tar", "-o", "x.jsonl")[0] == 1
    (folder / "odd.tar").write_bytes(plain([("a.cls", b"x"), ("b.cls", b"1"), ("../c.cls", b"2")]))
    code, err = failing(capsys, "odd.tar", "-o", "x.jsonl")
    assert code == 1
    assert err.count("\n") == 1
    done = run("odd.tar", "-o", "y.jsonl", "--on-error", "skip")
    assert done.exit_code == 1
    assert "FAILED" in done.stderr
    assert "3 samples in, 2 out, 1 FAILED" in done.stderr
    assert failing(capsys, "odd.tar", "-o", "z.jsonl", "--on-error", "skip", "--max-errors", "0")[0] == 1
    code, err = failing(capsys, "odd.tar", "--to", "dir", "-o", "d/e")
    assert code == 1
    assert not (folder / "d/c.cls").exists()


def test_too_many_errors_on_standard_output(folder, capsys):
    bad = [(f"{number}.cls", b"x") for number in range(5)]
    (folder / "bad.tar").write_bytes(plain([("a.cls", b"1"), *bad]))
    flags = ("bad.tar", "--to", "jsonl", "-o", "-", "--on-error", "skip", "--max-errors")
    code, err = failing(capsys, *flags, 2)
    assert code == 1
    assert "3 samples failed, more than" in err
    done = run(*flags, 5)
    assert done.exit_code == 1
    assert "6 samples in, 1 out, 5 FAILED" in done.stderr


def test_equal_keys_do_not_replace_each_other(folder, capsys):
    for name in ("a", "b"):
        (folder / f"{name}.tar").write_bytes(plain([("k.txt", name.encode())]))
    code, err = failing(capsys, "a.tar", "b.tar", "--to", "dir", "-o", "d", "--overwrite", "-j", 2)
    assert code == 1
    assert 'two samples would both be the file "k.txt"' in err
