"""`tarmac sort` as a user types it."""

from __future__ import annotations

import json

import pytest

import tarmac
from cli.running import run, shell
from harness.datasets import write_shards
from harness.shards import plain
from tools.shards import keys


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / ".home"))
    write_shards(tmp_path, [3, 4], index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sort(folder, capsys):
    command = "sort", "s*.tar", "--by", "cls", "--type", "int", "--reverse", "-o", "o-{i}.tar", "-j", 1
    status, out, err = run(capsys, *command, "--max-samples", 4)
    assert (status, out, err) == (0, "", "sort: 7 samples in, 7 out, 77 bytes\n")
    assert keys("o-*.tar") == [f"{i:05d}" for i in range(6, -1, -1)]
    status, out, _ = run(capsys, *command, "--max-samples", 4, "--json")
    report = json.loads(out)
    assert (report["verb"], report["kept"], report["written"], report["left_out"]) == ("sort", 2, 7, 0)


def test_flags_of_all_groups(folder, capsys):
    status, _, err = run(
        capsys, "sort", "s*.tar", "--by", "random", "--seed", 3, "--where", "cls > 1", "--drop-fields", "txt",
        "--rekey", "{i:03d}", "--memory", "1MiB", "--tmp", folder, "-o", "o-{i}.tar", "--manifest", "o.json",
    )  # fmt: skip
    assert status == 0, err
    assert keys("o-0.tar") == [f"{i:03d}" for i in range(5)]
    samples = list(tarmac.Dataset("o.json"))
    assert sorted(sample["cls"] for sample in samples) == [b"2", b"3", b"4", b"5", b"6"]
    assert "txt" not in samples[0]


def test_failed_samples(folder, capsys):
    (folder / "bad.tar").write_bytes(plain([("a.cls", b"x"), ("b.cls", b"1")]))
    command = "sort", "bad.tar", "--by", "cls", "--type", "int", "-o", "o.tar"
    status, _, err = run(capsys, *command)
    assert (status, "--on-error" in err) == (1, True)
    status, _, err = run(capsys, *command, "--on-error", "skip")
    assert status == 1
    assert err.startswith('FAILED bad.tar, sample "a"')
    assert err.endswith("sort: 2 samples in, 1 out, 1 FAILED, 1 byte\n")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["absent.tar", "-o", "o.tar"], 3, "absent.tar"),
        (["s000.tar", "-o", "o.tar", "--memory", "much"], 2, "--memory"),
        (["s000.tar", "-o", "o.tar", "--memory", "10"], 2, "--memory"),
        (["s000.tar", "-o", "o.tar", "--by", "random", "--reverse"], 2, "--by"),
        (["s000.tar", "-o", "DIR/"], 2, "DIR/"),
        (["s000.tar", "-o", "o.tar", "--tmp", "absent"], 2, "--tmp"),
        (["s000.tar", "-o", "o.tar", "--max-samples", "1"], 2, "o.tar"),
        (["pipe:cat s000.tar", "-o", "o.tar"], 2, "--allow-exec"),
        (["s000.tar", "-o", "o.tar", "--by", "nope"], 1, 'sample "00000"'),
        (["s000.tar", "s000.tar", "-o", "o.tar"], 1, "--rekey"),
    ],
)
def test_errors(folder, capsys, arguments, status, words):
    code, out, err = run(capsys, "sort", *arguments)
    assert (code, out) == (status, "")
    assert words in err
    assert not (folder / "o.tar").exists()


def test_the_hint_for_split_samples_works(folder, capsys):
    (folder / "split.tar").write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")]))
    _, out, err = run(capsys, "check", "split.tar")
    assert "tarmac sort --by key" in out + err
    assert run(capsys, "sort", "--by", "key", "split.tar", "-o", "whole.tar")[0] == 0
    assert run(capsys, "check", "whole.tar")[0] == 0
    assert keys("whole.tar") == ["a", "b"]


@pytest.mark.processes
def test_through_gnu_tar(folder):
    files = [(f"{i}.txt", b"%03d" % (i * 37 % 50)) for i in range(50)]
    done = shell("tarmac sort - --by txt -o - | tar -xf - -v", input=plain(files))
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split() == [name for name, _ in sorted(files, key=lambda file: file[1])]
    assert all((folder / name).read_bytes() == data for name, data in files)
