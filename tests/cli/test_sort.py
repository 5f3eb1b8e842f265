"""`tarmac sort` as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import tarmac
from harness.datasets import write_shards
from harness.shards import plain
from tarmac.cli import app, main
from tarmac.cli.sort import parse_size


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / ".home"))
    write_shards(tmp_path, [3, 4], index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["sort", *map(str, arguments), "-j", "1"])


def failing(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["sort", *map(str, arguments), "-j", "1"])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return ended.value.code, err


def keys(pattern):
    return [sample["__key__"] for sample in tarmac.read(pattern)]


def test_sort(folder):
    arguments = ["s*.tar", "--by", "cls", "--type", "int", "--reverse", "-o", "o-{i}.tar", "--max-samples", 4]
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "sort: 7 samples in, 7 out, 77 bytes\n"
    assert keys("o-{0..1}.tar") == [f"{i:05d}" for i in range(6, -1, -1)]
    done = run(*arguments)
    assert "nothing to do, all 2 were done before" in done.stderr
    done = run(*arguments, "--json")
    facts = json.loads(done.stdout)
    assert (facts["verb"], facts["kept"], facts["written"], facts["left_out"]) == ("sort", 2, 7, 0)


def test_flags_of_all_groups(folder):
    done = run(
        "s*.tar", "--by", "random", "--seed", 3, "--where", "cls > 1", "--fields", "-txt",
        "--rekey", "{i:03d}", "--mem", "1MB", "--tmp", folder, "-o", "o-{i}.tar", "--manifest", "o.json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert keys("o-0.tar") == [f"{i:03d}" for i in range(5)]
    assert sorted(sample["cls"] for sample in tarmac.Dataset("o.json")) == [b"2", b"3", b"4", b"5", b"6"]
    done = run("s*.tar", "-o", "p-{i}.tar", "--dry-run", "--max-samples", 3)
    assert (done.exit_code, done.stderr) == (0, "sort: 3 to do\n")
    assert not list(folder.glob("p-*"))


def test_another_seed_is_another_order(folder):
    found = []
    for name, seed in [("a", 1), ("b", 1), ("c", 2), ("d", 0)]:
        assert run("s*.tar", "--by", "random", "--seed", seed, "-o", f"{name}.tar").exit_code == 0
        found.append(keys(f"{name}.tar"))
    assert found[0] == found[1] != found[2]
    assert sorted(found[0]) == sorted(found[2]) == keys("s*.tar")
    assert run("s*.tar", "--by", "random", "-o", "e.tar").exit_code == 0
    assert keys("e.tar") == found[3]


def test_lost_samples_are_told(folder):
    (folder / "bad.tar").write_bytes(plain([("a.cls", b"x"), ("b.cls", b"1")]))
    done = run("bad.tar", "--by", "cls", "--type", "int", "--on-error", "skip", "-o", "o.tar")
    assert done.exit_code == 1
    assert done.stderr.startswith('FAILED bad.tar, sample "a": cls is to be a whole number')
    assert done.stderr.endswith("sort: 2 samples in, 1 out, 1 FAILED, 1 bytes\n")


def test_mistakes(folder, capsys):
    assert failing(capsys, "absent.tar", "-o", "o.tar")[0] == 3
    assert failing(capsys, "s000.tar", "-o", "o.tar", "--mem", "much")[0] == 2
    assert failing(capsys, "s000.tar", "-o", "o.tar", "--by", "random", "--reverse")[0] == 2
    assert failing(capsys, "s000.tar", "-o", "DIR/")[0] == 2
    assert failing(capsys, "s000.tar", "-o", "o.tar", "--tmp", "absent")[0] == 2
    assert failing(capsys, "s000.tar", "-o", "o.tar", "--max-samples", 1)[0] == 2
    assert failing(capsys, "pipe:cat s000.tar", "-o", "o.tar")[0] == 2
    status, err = failing(capsys, "s000.tar", "-o", "o.tar", "--by", "cls", "--type", "int", "--by", "txt")
    assert (status, 'sample "00000"' in err) == (1, True)
    status, err = failing(capsys, "s000.tar", "s000.tar", "-o", "o.tar")
    assert (status, "--rekey" in err) == (1, True)
    assert not (folder / "o.tar").exists()
    assert run("pipe:cat s000.tar", "-o", "o.tar", "--allow-exec").exit_code == 0


def test_sizes():
    assert [parse_size(text) for text in ("256MB", "1.5g", "2 GiB", "1048576")] == [
        256 << 20,
        3 << 29,
        2 << 30,
        1 << 20,
    ]
    for wrong in ("", "x", "-5M", "10", "5X"):
        with pytest.raises(typer.BadParameter):
            parse_size(wrong)


def test_split_samples_as_the_error_says(folder):
    (folder / "split.tar").write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")]))
    command = [sys.executable, "-m", "tarmac"]
    done = subprocess.run([*command, "check", "split.tar"], capture_output=True, text=True)
    assert "tarmac sort --by key" in done.stdout + done.stderr
    subprocess.run(
        [*command, "sort", "--by", "key", "split.tar", "-o", "whole.tar"], check=True, capture_output=True
    )
    assert subprocess.run([*command, "check", "whole.tar"], capture_output=True).returncode == 0
    assert [sample["__key__"] for sample in tarmac.read("whole.tar", fields=["txt"])] == ["a", "b"]
