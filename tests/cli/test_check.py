"""`tarmac check`: output and exit status."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from cli.running import numbers
from harness.shards import header_offsets, plain
from tarmac import index, read
from tarmac.cli import main, program

FILES = [(f"s{n}.{field}", f"{n}".encode()) for n in range(6) for field in ("cls", "txt")]


def tarmac(*arguments, **options):
    command = [sys.executable, "-m", "tarmac", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, **options)


def inside(*arguments):
    return CliRunner().invoke(program, [*map(str, arguments)])


def status(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code


@pytest.fixture
def shards(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.tar").write_bytes(plain([(name + member, data) for member, data in FILES]))
    return f"{tmp_path}/?.tar"


def damage(path, number=4):
    data = bytearray(path.read_bytes())
    data[header_offsets(bytes(data))[number]] ^= 1
    path.write_bytes(data)


def test_results_come_in_order(shards, tmp_path):
    damage(tmp_path / "b.tar")
    done = inside("check", shards, "-j", 2)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert [line[:4] for line in lines] == ["ok  ", "BAD ", "ok  "]
    assert numbers(done.stderr)[:3] == [3, 13, 1]
    records = [json.loads(line) for line in inside("check", shards, "--json", "-j", 2).stdout.splitlines()]
    assert [record["ok"] for record in records] == [True, False, True]
    assert records[1]["error"]["kind"] == "BadChecksum"
    assert records[1]["errors"] == [records[1]["error"]]
    assert records[0]["fields"] == {"cls": 6, "txt": 6}


def test_exit_codes_of_mistakes(shards, tmp_path):
    for wrong in (
        ["--repair"],
        ["-o", "x/"],
        ["--losses", "x"],
        ["--regroup"],
        ["--duplicates", "--ledger", "x"],
        ["--decode", "--decode-as", "rgb9"],
    ):
        assert status("check", shards, *wrong) == 2, wrong
    done = tarmac("check", f"pipe:cat {tmp_path}/a.tar")
    assert (done.returncode, b"--allow-exec" in done.stderr) == (2, True)
    assert tarmac("check", f"pipe:cat {tmp_path}/a.tar", "--allow-exec").returncode == 0
    assert tarmac("check", tmp_path / "absent.tar").returncode == 3
    assert tarmac("check", shards, "--manifest", tmp_path / "absent.json").returncode == 3


def test_standard_input(shards, tmp_path):
    with open(tmp_path / "a.tar", "rb") as file:
        done = tarmac("check", "-", tmp_path / "b.tar", stdin=file)
    assert (done.returncode, done.stdout.count(b"ok ")) == (0, 2)


def test_all_errors_up_to_a_maximum(shards, tmp_path):
    (tmp_path / "a.tar").write_bytes(plain([(f"{n}.txt", b"") for n in range(5)]))
    done = inside("check", shards, "--require", "cls", "--all-errors")
    assert done.exit_code == 1
    assert done.stdout.count("BAD ") == 5
    done = inside("check", shards, "--require", "cls", "--all-errors", "--max-errors", 3)
    assert done.exit_code == 1
    assert done.stdout.count("BAD ") == 4
    assert "b.tar" not in done.stdout
    assert "--max-errors" in done.stderr
    assert inside("check", shards, "--require", "txt", "--max-errors", 0).exit_code == 0


def test_undecodable_fields(shards, tmp_path):
    assert inside("check", shards, "--decode").exit_code == 0
    (tmp_path / "b.tar").write_bytes(plain([("x.cls", b"seven"), ("y.jpg", b"?")]))
    done = inside("check", shards, "--decode", "--all-errors", "--json")
    record = json.loads(done.stdout.splitlines()[1])
    assert [(error["key"], error["kind"]) for error in record["errors"]] == [
        ("x", "DecodeFailed"),
        ("y", "DecodeFailed"),
    ]


def test_digests_and_manifests(shards, tmp_path):
    index(shards, tmp_path / "all.json", digests=True)
    for how in (["--digests"], ["--manifest", tmp_path / "all.json"]):
        assert inside("check", shards, *how).exit_code == 0
    data = bytearray((tmp_path / "b.tar").read_bytes())
    data[512] ^= 1
    (tmp_path / "b.tar").write_bytes(data)
    for arguments in (
        [shards, "--digests"],
        [shards, "--manifest", tmp_path / "all.json"],
        [tmp_path / "all.json"],
    ):
        done = inside("check", *arguments, "--all-errors")
        assert done.exit_code == 1
        assert 'sample "bs0": ' in done.stdout


def test_duplicate_keys(shards, tmp_path):
    assert inside("check", shards, "--duplicates").exit_code == 0
    (tmp_path / "b.tar").write_bytes(plain([("as3.cls", b""), ("new.cls", b"")]))
    done = inside("check", shards, "--duplicates", "-j", 2)
    assert done.exit_code == 1
    assert f"DUPLICATE as3: {tmp_path}/a.tar, {tmp_path}/b.tar\n" in done.stdout
    assert numbers(done.stderr)[-1] == 1
    lines = inside("check", shards, "--duplicates", "--json").stdout.splitlines()
    assert json.loads(lines[-1])["duplicate"] == "as3"


def test_a_ledger(shards, tmp_path):
    location = tmp_path / "ledger.jsonl"
    first = inside("check", shards, "--ledger", location)
    damage(tmp_path / "c.tar")
    again = inside("check", shards, "--ledger", location)
    assert (first.exit_code, again.exit_code) == (0, 1)
    assert again.stdout.splitlines()[:2] == first.stdout.splitlines()[:2]


def test_repair(shards, tmp_path):
    damage(tmp_path / "b.tar")
    (tmp_path / "c.tar").write_bytes((tmp_path / "c.tar").read_bytes()[:-1024])
    done = tarmac("check", shards, "--repair", "-o", f"{tmp_path}/clean/")
    assert done.returncode == 1
    losses = [json.loads(line) for line in done.stdout.splitlines()]
    assert [loss.get("key") for loss in losses] == [None, "bs2", None]
    assert {loss["shard"] for loss in losses} == {f"{tmp_path}/b.tar", f"{tmp_path}/c.tar"}
    assert b"2 clean copies of 11 samples, 1 sample lost" in done.stderr
    assert sorted(path.name for path in (tmp_path / "clean").glob("*.tar")) == ["b.tar", "c.tar"]
    assert len(list(read(f"{tmp_path}/clean/b.tar"))) == 5
    again = inside(
        "check", shards, "--repair", "-o", f"{tmp_path}/clean/", "--losses", tmp_path / "lost.jsonl"
    )
    assert again.exit_code == 1
    assert again.stdout == ""
    assert (tmp_path / "lost.jsonl").read_bytes() == done.stdout


def test_repair_without_loss(shards, tmp_path):
    files = [("z.a", b"1"), ("y.a", b"2"), ("z.b", b"3"), ("y.c", b"4")]
    (tmp_path / "b.tar").write_bytes(plain(files))
    done = inside("check", shards, "--repair", "-o", f"{tmp_path}/lossy/")
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 2
    done = inside("check", shards, "--repair", "--regroup", "-o", f"{tmp_path}/clean/")
    assert (done.exit_code, done.stdout) == (0, "")
    assert [sample["__key__"] for sample in read(f"{tmp_path}/clean/b.tar")] == ["z", "y"]


def test_nothing_to_repair(shards, tmp_path):
    done = inside("check", shards, "--repair", "-o", f"{tmp_path}/clean/")
    assert (done.exit_code, done.stdout) == (0, "")
    assert status("check", tmp_path / "absent.tar", "--repair", "-o", f"{tmp_path}/clean/") == 3


def test_a_missing_shard_of_a_manifest(shards, tmp_path):
    index(shards, str(tmp_path / "all.json"))
    gone = sorted(tmp_path.glob("*.tar"))[-1]
    assert tarmac("check", gone, "--manifest", tmp_path / "all.json").returncode == 0  # some alone are fine
    gone.unlink()
    done = tarmac("check", tmp_path / "*.tar", "--manifest", tmp_path / "all.json")
    assert done.returncode == 3
    assert gone.name.encode() in done.stdout
