"""`tarmac pack`: flags, streams and exit statuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

import tarmac
from harness.waiting import TIMEOUT, until
from tarmac.cli import main
from tarmac.tools.pack.sources.source import SOURCES
from tools.pack.trees import write_tree

TARMAC = [sys.executable, "-m", "tarmac", "pack"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys):
    """Run the command; return its status, standard output and standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as done:
            main(["pack", *map(str, arguments)])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return done.value.code or 0, shown.out, shown.err

    return run


def samples(pattern="x-000000.tar"):
    return [{k: v for k, v in s.items() if k != "__url__"} for s in tarmac.read(pattern)]


def test_a_directory(folder, run):
    tree = {"a/1.jpg": b"J", "a/1.cls": b"3", ".DS_Store": b"", "README": b"", "ü b.txt": b"t"}
    write_tree(folder / "in", tree)
    status, out, err = run("in", "-o", "x-{i:06d}.tar")
    assert (status, out) == (0, "")
    skipped, counts = err.splitlines()
    assert counts == "pack: 2 samples in, 2 out, 3 bytes"
    assert "1 hidden ('.DS_Store')" in skipped
    assert "1 without an extension ('README')" in skipped
    assert samples() == [{"__key__": "a/1", "jpg": b"J", "cls": b"3"}, {"__key__": "ü b", "txt": b"t"}]
    report = json.loads(run("in", "-o", "x-{i:06d}.tar", "--json")[1])
    assert (report["kept"], report["skipped"]) == (1, {"hidden": 1, "without an extension": 1})
    assert "nothing to do" in run("in", "-o", "x-{i:06d}.tar")[2]


def test_an_imagefolder(folder, run):
    write_tree(folder / "in", {"cat/1.jpg": b"C", "dog/2.jpg": b"D"})
    assert run("in", "--from", "imagefolder", "-o", "o/x-{i:06d}.tar", "--require", "jpg,cls")[0] == 0
    assert [s["cls"] for s in samples("o/x-000000.tar")] == [b"0", b"1"]
    assert (folder / "o/x.classes.txt").read_text() == "cat\ndog\n"


def test_a_recipe(folder, run):
    recipe = b"# mine\n\na.jpg p.jpg\na.txt text:hello you\na.n pipe:echo 5\n"
    write_tree(folder, {"data/p.jpg": b"P", "r.txt": recipe})
    command = ["r.txt", "--from", "recipe", "--base", "data", "-o", "x-{i:06d}.tar"]
    status, _, err = run(*command)
    assert (status, "--allow-exec" in err) == (2, True)
    assert run(*command, "--allow-exec")[0] == 0
    assert samples() == [{"__key__": "a", "jpg": b"P", "txt": b"hello you", "n": b"5\n"}]
    write_tree(folder, {"s.txt": b"a.n pipe:sleep 10000\n"})
    command = ["s.txt", "--from", "recipe", "--allow-exec", "--timeout", 0.1]
    assert run(*command, "-o", "t-{i}.tar")[0] == 3


def test_a_table(folder, run):
    write_tree(folder, {"img/1.jpg": b"J1", "t.csv": b"id,img,label,x\na,1.jpg,3,y\n"})
    flags = "--key", "id", "--files", "img=jpg", "--columns", "label=cls,x", "--base", "img"
    assert run("t.csv", *flags, "-o", "x-{i:06d}.tar")[0] == 0
    assert samples() == [{"__key__": "a", "cls": b"3", "jpg": b"J1", "x": b"y"}]


def test_a_function(folder, run):
    text = "def f(n='3'):\n  yield from ({'__key__': str(i), 'cls': i} for i in range(int(n)))"
    (folder / "my_samples.py").write_text(text)
    command = "--py", "my_samples.py:f", "5", "-o", "x-{i:06d}.tar", "--max-samples", 4
    assert run(*command)[0] == 0
    assert samples("x-000001.tar") == [{"__key__": "4", "cls": b"4"}]
    assert "nothing to do" in run(*command)[2]


def test_streams(folder):
    command = [*TARMAC, "--from", "lines", "-", "-o", "-"]
    done = subprocess.run(command, input=b"a\nb\n", capture_output=True, check=True)
    (folder / "x-000000.tar").write_bytes(done.stdout)
    assert [s["txt"] for s in samples()] == [b"a", b"b"]
    assert b"2 samples in, 2 out" in done.stderr


def test_splits_tasks_and_seeds(folder, run):
    write_tree(folder / "in", {f"{n}.txt": b"" for n in range(40)})
    flags = ["in", "--max-samples", 3, "--split", "train=0.5,val=0.5", "--shuffle", "--seed", 4]
    assert run(*flags, "-o", "one/{split}-{i}.tar")[0] == 0
    for number in range(2):
        assert run(*flags, "--task", f"{number}/2", "-o", "two/{split}-{i}.tar")[0] == 0
    one, two = ({p.name: p.read_bytes() for p in (folder / name).glob("*.tar")} for name in ("one", "two"))
    assert one == two
    assert {name.partition("-")[0] for name in one} == {"train", "val"}


def test_failed_samples(folder, run):
    write_tree(folder / "in", {"a.jpg": b"", "b.txt": b""})
    status, _, err = run("in", "-o", "x-{i:06d}.tar", "--require", "jpg", "--on-error", "skip")
    assert (status, "FAILED" in err, 'sample "b"' in err) == (1, True, True)


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (2, ["-o", "x-{i}.tar"]),
        (3, ["absent", "-o", "x-{i}.tar"]),
        (2, ["a.txt", "-o", "x-{i}.tar"]),
        (2, ["in", "-o", "in/x-{i}.tar"]),
        (2, ["in", "-o", "x-{j}.tar"]),
        (2, ["in", "-o", "x-{i}.tar", "--task", "1"]),
        (2, ["in", "-o", "x-{i}.tar", "--task", "2/2"]),
        (2, ["in", "-o", "x-{i}.tar", "--files", "="]),
        (2, ["in", "-o", "x-{i}.tar", "--only", "val"]),
        (2, ["in", "-o", "-", "--task", "0/2"]),
        (2, ["--py", "m:f", "-o", "x-{i}.tar", "--from", "csv"]),
        (1, ["t.csv", "-o", "x-{i}.tar"]),
    ],
)
def test_exit_statuses(folder, run, status, arguments):
    write_tree(folder, {"in/a.jpg": b"", "a.txt": b"", "t.csv": b"a,b\n1\n"})
    assert run(*arguments)[0] == status
    assert not list(folder.glob("*.tar"))


def test_the_help_names_all_formats(run):
    out = run("--help")[1]
    assert all(name in out for name in SOURCES)


def test_interrupted(folder, run):
    write_tree(folder / "in", {f"{n}.txt": b"" for n in range(50)})
    flags = ["in", "-o", "x-{i}.tar", "--max-samples", "1", "-j", "2"]
    flags += ["--post-cmd", "touch $$.done; until [ -e go ]; do sleep 0.05; done"]
    with subprocess.Popen([*TARMAC, *flags], stderr=subprocess.PIPE, text=True) as child:
        assert until(lambda: len(list(folder.glob("*.done"))) == 2)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=TIMEOUT)
    assert child.returncode == 130
    assert "Traceback" not in err
    assert 0 < len(list(folder.glob("x-*.tar"))) < 50
    (folder / "go").touch()
    assert run(*flags)[0] == 0
    assert len(list(folder.glob("x-*.tar"))) == 50
    assert not [name for name in os.listdir(folder) if ".part-" in name]
