"""`tarmac copy` as a user types it, alone and in pipelines with GNU tar."""

from __future__ import annotations

import json
import os

import pytest

from cli.running import numbers, run, shell
from harness.servers import nginx, required
from tools.shards import content, keys, make


@pytest.fixture
def folder(tmp_path, monkeypatch):
    make(tmp_path, 10, 7)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_reports(folder, capsys):
    command = "copy", "in-*.tar", "-o", "out/x-{i:06d}.tar", "--max-samples", "5", "-j", "1"
    status, out, err = run(capsys, *command, "--dry-run")
    assert (status, out, numbers(err)) == (0, "", [4])
    assert not (folder / "out").exists()
    status, out, err = run(capsys, *command)
    assert (status, out, numbers(err)) == (0, "", [17, 17, 1184])
    status, out, err = run(capsys, *command)
    assert (status, out, numbers(err)) == (0, "", [17, 17, 1184, 4])
    status, out, err = run(capsys, *command, "--dry-run")
    assert (status, out, numbers(err)) == (0, "", [0, 4])
    status, out, err = run(capsys, *command, "--json")
    assert (status, json.loads(out)["written"], err) == (0, 17, "")
    status, _, err = run(capsys, *command[:-3], "1e1", "--overwrite")
    assert (status, ": out/x-000002.tar, out/x-000003.tar" in err) == (0, True)
    assert keys("out/x-*.tar") == keys("in-*.tar")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["in-*.tar"], 2, "--output"),
        (["nowhere-*.tar", "-o", "x.tar"], 3, "nowhere-*.tar"),
        (["in-*.tar", "-o", "x.tar", "--max-samples", "3"], 2, "x.tar"),
        (["in-*.tar", "-o", "x.tar", "--where", "width >>"], 2, "width >>"),
        (["in-*.tar", "-o", "x.tar", "--slice", "a"], 2, "--slice"),
        (["in-*.tar", "-o", "x.tar", "--shuffle", "--interleave", "2"], 2, "--shuffle, --interleave"),
        (["-o", "x.tar"], 2, "--mix"),
        (["in-0.tar", "--mix", "in-1.tar=1", "-o", "x.tar"], 2, "--mix"),
        (["--mix", "in-1.tar", "-o", "x.tar"], 2, "SHARDS=WEIGHT"),
        (["pipe:cat in-0.tar", "-o", "x.tar"], 2, "--allow-exec"),
        (["in-*.tar", "-o", "x.tar", "--fields", "png"], 1, "--missing"),
        (["in-*.tar", "-o", "x.tar", "--post-cmd", "exit 5"], 1, "--post-cmd"),
        (["in-*.tar", "-o", "-", "--json"], 2, "--json"),
        (["in-*.tar", "-o", "x.tar", "--storage", "nope=1"], 2, "nope"),
        (["in-*.tar", "-o", "x.tar", "--engine", "nope"], 2, "--engine"),
    ],
)
def test_errors(folder, capsys, arguments, status, words):
    code, out, err = run(capsys, "copy", *arguments)
    assert (code, out) == (status, "")
    assert words in err


def test_flags_of_all_groups(folder, capsys):
    (folder / "keys.txt").write_text("s0/001\ns0/003\ns1/002\ns1/004\n")
    status, _, err = run(
        capsys,
        *("copy", "in-*.tar", "-o", "out/{split}-{i}.tar", "--keys", "keys.txt", "--split", "a=0.5,b=0.5"),
        *("--fields", "label=cls", "--rekey", "k{i}-{key}", "--manifest", "m.json", "--where", "cls < 4"),
        *("--post-cmd", "touch {path}.done", "--shuffle", "--seed", "2", "--slice-shard", ":4"),
        *("--limits", "member_bytes=1MiB", "--tar", "concatenated=true", "--split-name", "first-dot"),
    )
    assert status == 0, err
    copied = content("out/*.tar")
    assert sorted(each["__key__"].partition("-")[2] for each in copied) == ["s0/001", "s0/003", "s1/002"]
    assert set(copied[0]) == {"__key__", "label"}
    assert json.loads((folder / "m.json").read_text())["shardlist"]
    assert len(list((folder / "out").glob("*.done"))) == len(list((folder / "out").glob("*.tar")))
    status, _, err = run(
        capsys, "copy", "pipe:cat in-0.tar", "--allow-exec", "-o", "y.tar", "--limits", "member_bytes=4"
    )
    assert (status, "member_bytes" in err) == (1, True)


def test_mixtures(folder, capsys):
    command = "copy", "--mix", "in-0.tar=2", "--mix", "in-1.tar=1", "--until", "first", "-o", "m.tar"
    assert run(capsys, *command)[0] == 0
    assert len(keys("m.tar")) == 15


@pytest.mark.parametrize("target", ["x.tar", "out/"])
def test_remote_shards_are_cached(folder, capsys, target):
    def cached():
        return [
            path for path in (folder / "kept").rglob("*") if path.is_file() and path.stat().st_size > 5000
        ]

    with required(nginx(folder)) as url:
        command = "copy", f"{url}/in-0.tar", "-o", target, "-j", "1", "--overwrite"
        assert run(capsys, *command)[0] == 0
        assert not cached()
        assert run(capsys, *command, "--cache", "kept")[0] == 0
        (copy,) = cached()
    assert copy.read_bytes() == (folder / "in-0.tar").read_bytes()
    assert content("x.tar", "out/*.tar") == content("in-0.tar")


def test_from_and_to_gnu_tar(folder):
    (folder / "dir").mkdir()
    for number in range(5):
        (folder / "dir" / f"{number}.txt").write_text(str(number))
        (folder / "dir" / f"{number}.cls").write_text("1")
    done = shell("tar cf - --sort=name dir | tarmac copy - -o 'z-{i}.tar' --max-samples 2")
    assert done.returncode == 0, done.stderr
    assert [len(keys(f"z-{number}.tar")) for number in range(3)] == [2, 2, 1]
    done = shell("tarmac copy z-*.tar -o - --fields txt | tar tf -")
    assert done.stdout.decode().split() == [f"dir/{number}.txt" for number in range(5)]
    done = shell("cat z-0.tar | tarmac copy - -o - | tarmac copy - -o - --slice 1: | tar xOf - dir/1.txt")
    assert done.stdout == b"1"


def test_a_truncated_stream_is_an_error(folder):
    done = shell("head -c 5000 in-0.tar | tarmac copy - -o y.tar")
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert not os.path.exists("y.tar")


def test_a_reader_may_close_the_pipe(folder):
    done = shell("tarmac copy in-*.tar -o - | head -c 100 | wc -c")
    assert done.stdout.strip() == b"100"
    assert b"Traceback" not in done.stderr
