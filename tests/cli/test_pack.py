"""`tarmac pack` as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tarmac
from harness.waiting import PATIENCE, until
from tarmac.cli import app, main
from tools.pack.sources.packing import grow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["pack", *map(str, arguments)])


def failing(capsys, *arguments):
    """The exit status and the one line that says why."""
    with pytest.raises(SystemExit) as ended:
        main(["pack", *map(str, arguments)])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return ended.value.code, err


def found(pattern="x-000000.tar"):
    return [{k: v for k, v in s.items() if k != "__url__"} for s in tarmac.read(pattern)]


def test_a_directory(folder):
    grow(folder / "in", {"a/1.jpg": b"J", "a/1.cls": b"3", ".DS_Store": b"", "README": b"", "ü b.txt": b"t"})
    done = run("in", "-o", "x-{i:06d}.tar")
    assert done.exit_code == 0
    assert done.stdout == ""
    left_out, counted = done.stderr.splitlines()
    assert counted == "pack: 2 samples in, 2 out, 3 bytes"
    assert left_out.startswith("left out, of no sample: ")
    assert "1 hidden ('.DS_Store')" in done.stderr
    assert "1 without an extension ('README')" in done.stderr
    assert found() == [{"__key__": "a/1", "jpg": b"J", "cls": b"3"}, {"__key__": "ü b", "txt": b"t"}]
    listed = subprocess.run(["tar", "tf", "x-000000.tar"], check=True, capture_output=True, text=True).stdout
    assert listed.splitlines()[:2] == ["a/1.cls", "a/1.jpg"]
    done = run("in", "-o", "x-{i:06d}.tar", "--json")
    report = json.loads(done.stdout)
    assert report["kept"] == 1
    assert report["skipped"] == {"hidden": 1, "without an extension": 1}
    assert "nothing to do" in run("in", "-o", "x-{i:06d}.tar").stderr


def test_an_imagefolder(folder):
    grow(folder / "in", {"cat/1.jpg": b"C", "dog/2.jpg": b"D"})
    assert run("in", "--from", "imagefolder", "-o", "o/x-{i:06d}.tar", "--require", "jpg,cls").exit_code == 0
    assert [s["cls"] for s in found("o/x-000000.tar")] == [b"0", b"1"]
    assert (folder / "o/classes.txt").read_text() == "cat\ndog\n"


def test_a_recipe(folder, capsys):
    grow(
        folder,
        {"data/p.jpg": b"P", "r.txt": b"# mine\n\na.jpg p.jpg\na.txt text:hello you\na.n pipe:echo 5\n"},
    )
    base = ["r.txt", "--from", "recipe", "--base", "data", "-o", "x-{i:06d}.tar"]
    status, err = failing(capsys, *base)
    assert (status, "--allow-exec" in err) == (2, True)
    assert run(*base, "--allow-exec").exit_code == 0
    assert found() == [{"__key__": "a", "jpg": b"P", "txt": b"hello you", "n": b"5\n"}]
    grow(folder, {"s.txt": b"a.n pipe:exit 4\n"})
    assert failing(capsys, "s.txt", "--from", "recipe", "--allow-exec", "-o", "s-{i}.tar")[0] == 3
    grow(folder, {"s.txt": b"a.n pipe:sleep 10000\n"})
    assert (
        failing(capsys, "s.txt", "--from", "recipe", "--allow-exec", "--timeout", 0.1, "-o", "t-{i}.tar")[0]
        == 3
    )


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_tables(folder, kind):
    grow(folder, {"img/1.jpg": b"J1", "img/2.jpg": b"J2"})
    rows = [{"id": "a", "img": "1.jpg", "cls": 1}, {"id": "b", "img": "2.jpg", "cls": 22}]
    name = f"t.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), name)
    elif kind == "jsonl":
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        comma = "," if kind == "csv" else "\t"
        lines = [comma.join(rows[0]), *(comma.join(map(str, row.values())) for row in rows)]
        (folder / name).write_text("\n".join(lines))
    done = run(name, "--key", "id", "--files", "img=jpg", "--base", "img", "-o", "x-{i:06d}.tar")
    assert done.exit_code == 0, done.stderr
    assert found() == [
        {"__key__": "a", "cls": b"1", "jpg": b"J1"}, {"__key__": "b", "cls": b"22", "jpg": b"J2"},
    ]  # fmt: skip
    assert run(name, "--columns", "cls=index", "-o", "y-{i:06d}.tar", "--max-bytes", 2).exit_code == 0
    assert found("y-000000.tar") == [{"__key__": "000000000", "index": b"1"}]
    assert found("y-000001.tar") == [{"__key__": "000000001", "index": b"22"}]


def test_lines(folder):
    grow(folder, {"a.txt": b"one\ntwo\n"})
    assert run("a.txt", "--from", "lines", "-o", "x-{i:06d}.tar").exit_code == 0
    assert found() == [{"__key__": "000000000", "txt": b"one"}, {"__key__": "000000001", "txt": b"two"}]


def test_a_function(folder):
    grow(
        folder,
        {
            "my_samples.py": b"def f(n='3'):\n"
            b"  yield from ({'__key__': str(i), 'cls': i} for i in range(int(n)))"
        },
    )
    assert run("--py", "my_samples.py:f", "5", "-o", "x-{i:06d}.tar", "--max-samples", 4).exit_code == 0
    assert found("x-000001.tar") == [{"__key__": "4", "cls": b"4"}]
    assert (
        "nothing to do"
        in run("--py", "my_samples.py:f", "5", "-o", "x-{i:06d}.tar", "--max-samples", 4).stderr
    )


def test_streams(folder):
    """From standard input, to standard output, in processes of their own."""
    command = [sys.executable, "-m", "tarmac", "pack", "--from", "lines", "-", "-o", "-"]
    done = subprocess.run(command, input=b"a\nb\n", capture_output=True, check=True)
    (folder / "x-000000.tar").write_bytes(done.stdout)
    assert [s["txt"] for s in found()] == [b"a", b"b"]
    assert b"2 samples in, 2 out" in done.stderr


def test_lost_samples_are_told(folder):
    grow(folder / "in", {"a.jpg": b"", "b.txt": b""})
    done = run("in", "-o", "x-{i:06d}.tar", "--require", "jpg", "--on-error", "skip")
    assert done.exit_code == 1
    assert "FAILED" in done.stderr
    assert 'sample "b"' in done.stderr


def test_parts_and_hand_made_parallelism(folder):
    grow(folder / "in", {f"{n}.txt": b"" for n in range(40)})
    arguments = ["in", "--max-samples", 3, "--part", "train=0.5,val=0.5", "--shuffle", "--seed", 4]
    assert run(*arguments, "-o", "one/{part}-{i}.tar").exit_code == 0
    for number in range(2):
        more = ["--shard-id", number, "--total-shards", 2, "-o", "two/{part}-{i}.tar"]
        assert run(*arguments, *more).exit_code == 0
    one, two = ({p.name: p.read_bytes() for p in (folder / name).glob("*.tar")} for name in ("one", "two"))
    assert one == two
    assert {name.partition("-")[0] for name in one} == {"train", "val"}


def test_another_seed_is_another_order(folder):
    grow(folder / "in", {f"{n:02d}.txt": b"" for n in range(20)})
    orders = []
    for name, more in [("a", []), ("b", [1]), ("c", [1]), ("d", [2])]:
        seed = ["--seed", *more] if more else []
        assert run("in", "--shuffle", *seed, "-o", f"{name}.tar").exit_code == 0
        orders.append([sample["__key__"] for sample in found(f"{name}.tar")])
    assert orders[1] == orders[2]
    assert len(set(map(tuple, orders))) == 3
    assert {tuple(sorted(order)) for order in orders} == {tuple(f"{n:02d}" for n in range(20))}


def test_errors(folder, capsys):
    grow(folder / "in", {"a.jpg": b""})
    grow(folder, {"a.txt": b"", "t.csv": b"a,b\n1\n"})
    assert failing(capsys, "-o", "x-{i}.tar")[0] == 2
    assert failing(capsys, "absent", "-o", "x-{i}.tar")[0] == 3
    assert failing(capsys, "a.txt", "-o", "x-{i}.tar")[0] == 2
    assert failing(capsys, "in", "-o", "in/x-{i}.tar")[0] == 2
    assert failing(capsys, "in", "-o", "x-{j}.tar")[0] == 2
    assert failing(capsys, "in", "-o", "x-{i}.tar", "--shard-id", 1)[0] == 2
    assert failing(capsys, "in", "-o", "x-{i}.tar", "--files", "=")[0] == 2
    assert failing(capsys, "--py", "m:f", "-o", "x-{i}.tar", "--from", "csv")[0] == 2
    status, err = failing(capsys, "in", "-o", "-", "--total-shards", 2)
    assert (status, "no shards to share" in err) == (2, True)
    status, err = failing(capsys, "in", "-o", "x-{i}.tar", "--only", "val")
    assert (status, "--part has no parts" in err) == (2, True)
    status, err = failing(capsys, "t.csv", "-o", "x-{i}.tar")
    assert (status, "row 1 has 1 cells" in err) == (1, True)
    assert not list(folder.glob("*.tar"))


def test_interrupted(folder):
    grow(folder / "in", {f"{n}.txt": b"" for n in range(50)})
    command = [
        sys.executable,
        "-m",
        "tarmac",
        "pack",
        "in",
        "-o",
        "x-{i}.tar",
        "--max-samples",
        "1",
        "-j",
        "2",
    ]
    then = "touch $$.then; until [ -e go ]; do sleep 0.05; done"
    with subprocess.Popen([*command, "--then", then], stderr=subprocess.PIPE, text=True) as child:
        assert until(lambda: len(list(folder.glob("*.then"))) == 2)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130
    assert "Traceback" not in err
    assert 0 < len(list(folder.glob("x-*.tar"))) < 50
    (folder / "go").touch()
    assert run("in", "-o", "x-{i}.tar", "--max-samples", 1, "--then", then).exit_code == 0
    assert len(list(folder.glob("x-*.tar"))) == 50
    assert not [name for name in os.listdir(folder) if ".part-" in name]
