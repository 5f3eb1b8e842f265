"""`tarmac export`: flags, streams and exit statuses."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest

from cli.running import numbers
from harness.datasets import write_shards
from harness.shards import plain
from tarmac.cli import main

TARMAC = [sys.executable, "-m", "tarmac", "export"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_shards(tmp_path, [3, 4], index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def run(capsysbinary):
    """Run the command; return its status, standard output and standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as done:
            main(["export", *map(str, arguments)])
        shown = capsysbinary.readouterr()
        assert b"Traceback" not in shown.err
        return done.value.code or 0, shown.out.decode(), shown.err.decode()

    return run


def test_selected_samples(folder, run):
    command = "s*.tar", "-o", "x.jsonl", "--fields", "cls", "--where", "cls >= 5"
    assert run(*command) == (0, "", "export: 7 samples in, 2 selected, 2 out, 2 bytes\n")
    assert (
        folder / "x.jsonl"
    ).read_text() == '{"__key__": "00005", "cls": 5}\n{"__key__": "00006", "cls": 6}\n'
    assert "nothing to do" in run(*command)[2]


def test_files_and_reports(folder, run):
    _, out, _ = run("s*.tar", "-o", "out/x-{i:02d}.jsonl", "-j", 2, "--max-samples", "2", "--json")
    report = json.loads(out)
    assert (report["verb"], report["units"], report["done"], report["written"]) == ("export", 4, 4, 7)
    assert run("s*.tar", "-o", "out2/", "--to", "tfrecord", "--dry-run") == (0, "", "export: 2 to do\n")
    assert not (folder / "out2").exists()
    assert run("s*.tar", "-o", "d", "--to", "dir")[0] == 0
    assert (folder / "d/00006.cls").read_bytes() == b"6"
    assert run("s*.tar", "-o", "hf", "--to", "hf", "--hf-split", "test", "--drop-fields", "txt")[0] == 0
    assert (folder / "hf/data/test-00001-of-00002.parquet").exists()


def test_standard_output(folder, run):
    rows = list(csv.reader(io.StringIO(run("s*.tar", "--to", "csv", "-o", "-", "--slice", ":2")[1])))
    assert rows == [["__key__", "cls", "txt"], ["00000", "0", "x" * 10], ["00001", "1", "x" * 10]]
    bare = run("s*.tar", "--to", "tsv", "-o", "-", "--fields", "cls", "--no-key", "--no-header")
    assert bare == (0, "0\n1\n2\n3\n4\n5\n6\n", "export: 7 samples in, 7 out, 7 bytes\n")
    kinds = run(
        "s000.tar", "--to", "jsonl", "-o", "-", "--fields", "cls", "--kinds", "cls=text", "--slice", "1:2"
    )
    assert json.loads(kinds[1]) == {"__key__": "00001", "cls": "1"}


def test_standard_input_and_commands(folder, run):
    with open("s001.tar", "rb") as file:
        done = subprocess.run(
            [*TARMAC, "-", "--to", "jsonl", "-o", "-"], stdin=file, capture_output=True, check=True
        )
    assert [json.loads(line)["cls"] for line in done.stdout.splitlines()] == [3, 4, 5, 6]
    with open("s001.tar", "rb") as file:
        done = subprocess.run([*TARMAC, "-", "-o", "in.parquet"], stdin=file, capture_output=True, check=True)
    assert done.stderr == b"export: 4 samples in, 4 out, 44 bytes\n"
    status, _, err = run("pipe:cat s000.tar", "-o", "x.jsonl")
    assert (status, "--allow-exec" in err) == (2, True)
    assert run("pipe:cat s000.tar", "-o", "x.jsonl", "--allow-exec")[0] == 0
    assert run("pipe:cat s000.tar", "-o", "x.jsonl", "--allow-exec")[0] == 2  # the file exists now


def test_a_reader_that_stops_early(folder):
    (folder / "many.tar").write_bytes(plain([(f"{i:06d}.txt", b"y" * 100) for i in range(20_000)]))
    command = f"{' '.join(TARMAC)} many.tar --to jsonl -o - | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["__key__"] == "000000"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_exit_statuses(folder, run):
    assert run("s*.tar", "-o", "x")[0] == 2
    status, _, err = run("s*.tar", "-o", "x.parquet", "--to", "nonsense")
    assert (status, "--to: " in err) == (2, True)
    assert run("s*.tar", "-o", "-", "--to", "jsonl", "--json")[0] == 2
    status, _, err = run("s*.tar", "-o", "x.csv", "--kinds", "txt=bytes")
    assert (status, "--drop-fields" in err, "--kinds txt=text" in err) == (2, True, True)
    assert run("absent.tar", "-o", "x.jsonl")[0] == 3
    (folder / "bad.tar").write_bytes((folder / "s000.tar").read_bytes()[:1500])
    assert run("bad.tar", "-o", "x.jsonl")[0] == 1


def test_failed_samples(folder, run):
    (folder / "odd.tar").write_bytes(plain([("a.cls", b"x"), ("b.cls", b"1"), ("../c.cls", b"2")]))
    status, _, err = run("odd.tar", "-o", "x.jsonl")
    assert (status, err.count("\n")) == (1, 1)
    status, _, err = run("odd.tar", "-o", "y.jsonl", "--on-error", "skip")
    assert (status, numbers(err.splitlines()[-1])[:3]) == (1, [3, 2, 1])
    for output in ("z.jsonl", "-"):
        flags = "--to", "jsonl", "-o", output, "--on-error", "skip", "--max-errors", "0"
        status, _, err = run("odd.tar", *flags)
        assert (status, "--max-errors" in err) == (1, True)
    assert run("odd.tar", "--to", "dir", "-o", "d/e")[0] == 1
    assert not (folder / "d/c.cls").exists()
