"""`tarmac copy` as a user types it, alone and in pipelines with GNU tar."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys

import pytest

import tarmac
from harness.servers import nginx, required
from harness.shards import plain
from harness.waiting import PATIENCE
from tarmac.cli import main
from tools.shards import content, keys, make

TARMAC = [sys.executable, "-m", "tarmac"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    make(tmp_path, 10, 7)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    """The exit status, and what was written to standard output and error."""
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    shown = capsys.readouterr()
    return done.value.code or 0, shown.out, shown.err


def test_split_and_again(here, capsys):
    command = "copy", "in-*.tar", "-o", "out/x-{i:06d}.tar", "--max-samples", "5", "-j", "1"
    assert run(capsys, *command) == (0, "", "copy: 17 samples in, 17 out, 1184 bytes\n")
    status, out, err = run(capsys, *command)
    assert (status, out) == (0, "")
    assert "nothing to do, all 4 were done before" in err
    assert keys("out/*.tar") == keys("in-*.tar")


def test_reports_as_json_and_dry_runs(here, capsys):
    status, out, _ = run(capsys, "copy", "in-*.tar", "-o", "x.tar", "--dry-run", "--json")
    assert (status, json.loads(out)["units"]) == (0, 1)
    assert not (here / "x.tar").exists()
    status, _, err = run(capsys, "copy", "in-*.tar", "-o", "x.tar", "--dry-run")
    assert (status, err) == (0, "copy: 1 to do\n")
    status, out, err = run(capsys, "copy", "in-*.tar", "-o", "x.tar", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["written"] == 17
    status, _, err = run(capsys, "copy", "in-*.tar", "-o", "x.tar", "--dry-run")
    assert (status, err) == (0, "copy: 0 to do, 1 done before\n")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["in-*.tar"], 2, "output"),
        (["nowhere-*.tar", "-o", "x.tar"], 3, "no file matches"),
        (["in-*.tar", "-o", "x.tar", "--max-samples", "3"], 2, "the same name"),
        (["in-*.tar", "-o", "x.tar", "--where", "width >>"], 2, "width >>"),
        (["in-*.tar", "-o", "x.tar", "--slice", "a"], 2, "no slice"),
        (["-o", "x.tar"], 2, "--mix"),
        (["in-0.tar", "--mix", "in-1.tar=1", "-o", "x.tar"], 2, "--mix"),
        (["--mix", "in-1.tar", "-o", "x.tar"], 2, "SHARDS=WEIGHT"),
        (["pipe:cat in-0.tar", "-o", "x.tar"], 2, "--allow-exec"),
        (["in-*.tar", "-o", "x.tar", "--fields", "png"], 1, "no png"),
        (["in-*.tar", "-o", "x.tar", "--then", "exit 5"], 1, "status 5"),
    ],
)
def test_mistakes(here, capsys, arguments, status, words):
    code, out, err = run(capsys, "copy", *arguments)
    assert (code, out) == (status, "")
    assert words in err
    assert "Traceback" not in err


def test_all_flags_have_an_effect(here, capsys):
    (here / "keys.txt").write_text("s0/001\ns0/003\ns1/002\ns1/004\n")
    status, _, err = run(
        capsys,
        *("copy", "in-*.tar", "-o", "out/{part}-{i}.tar", "--keys", "keys.txt", "--part", "a=0.5,b=0.5"),
        *("--fields", "label=cls", "--rekey", "k{i}-{key}", "--manifest", "m.json", "--where", "cls < 4"),
        *("--then", "touch {path}.done", "--shuffle", "--seed", "2", "--slice-shard", ":4"),
    )
    assert status == 0, err
    found = keys("out/*.tar")
    assert sorted(key.partition("-")[2] for key in found) == ["s0/001", "s0/003", "s1/002"]
    assert json.loads((here / "m.json").read_text())["shardlist"]
    assert len(list((here / "out").glob("*.done"))) == len(list((here / "out").glob("*.tar")))


def copied(capsys, *arguments):
    """The keys of a copy of all that there is, or of what is named."""
    status, _, err = run(capsys, "copy", *arguments, "-o", "copied.tar", "--overwrite", "-j", "1")
    assert status == 0, err
    return keys("copied.tar")


@pytest.fixture
def packed(here):
    """The same shards, which can only be read from front to back."""
    for number in range(2):
        data = (here / f"in-{number}.tar").read_bytes()
        (here / f"z-{number}.tar.gz").write_bytes(gzip.compress(data, 1, mtime=0))
    return "z-*.tar.gz"


def test_another_seed_is_another_order(packed, capsys):
    mixed = "--mix", "in-0.tar=1", "--mix", "in-1.tar=1"
    for command in (["in-*.tar", "--shuffle"], [packed, "--shuffle"], mixed):
        one, again, other = (copied(capsys, *command, "--seed", seed) for seed in "112")
        assert one == again != other
        assert sorted(one) == sorted(other) == sorted(keys("in-*.tar"))


def test_a_stream_is_shuffled_in_a_buffer(packed, capsys):
    every = keys("in-*.tar")
    small, large = (copied(capsys, packed, "--shuffle", "--buffer", size) for size in ("2", "100"))
    assert sorted(small) == sorted(large) == sorted(every)
    assert all(place >= every.index(key) - 2 for place, key in enumerate(small))
    assert any(place < every.index(key) - 2 for place, key in enumerate(large))
    assert copied(capsys, packed, "--shuffle") == large  # of 10,000, if none is given


def test_one_of_the_parts(here, packed, capsys):
    for source in ("in-*.tar", packed):
        first, second = (copied(capsys, source, "--part", "a=0.5,b=0.5", "--only", part) for part in "ab")
        assert min(len(first), len(second)) > 0
        assert sorted(first + second) == sorted(keys("in-*.tar"))


def test_samples_without_a_field_can_be_left_out(here, capsys):
    (here / "odd.tar").write_bytes(plain([("a.txt", b"1"), ("a.png", b"2"), ("b.txt", b"3")]))
    status, _, err = run(capsys, "copy", "odd.tar", "-o", "x.tar", "--fields", "png")
    assert (status, "--missing skip" in err) == (1, True)
    assert copied(capsys, "odd.tar", "--fields", "png", "--missing", "skip") == ["a"]


@pytest.mark.parametrize(("form", "begins"), [("gz", b"\x1f\x8b"), ("zst", b"\x28\xb5\x2f\xfd")])
def test_compressed_as_asked_for(here, capsys, form, begins):
    assert copied(capsys, "in-*.tar", "--compress", form) == keys("in-*.tar")
    assert (here / "copied.tar").read_bytes().startswith(begins)


def test_an_index_and_a_manifest_of_what_is_there(here, capsys):
    command = "copy", "in-*.tar", "-o", "x-{i}.tar", "--max-samples", "5", "-j", "1", "--overwrite"
    assert run(capsys, *command)[0] == 0
    assert not list(here.glob("*.arrow"))
    assert run(capsys, *command, "--index")[0] == 0
    assert sorted(path.name for path in here.glob("*.arrow")) == [f"x-{n}.tar.arrow" for n in range(4)]
    assert run(capsys, *command, "--manifest", "m.json")[0] == 0
    listed = json.loads((here / "m.json").read_text())["shardlist"]
    assert [(each["url"], each["nsamples"]) for each in listed] == [
        ("x-0.tar", 5), ("x-1.tar", 5), ("x-2.tar", 5), ("x-3.tar", 2),
    ]  # fmt: skip
    assert [each["filesize"] for each in listed] == [(here / each["url"]).stat().st_size for each in listed]
    dataset = tarmac.Dataset("m.json", verify=True)
    assert [sample["__key__"] for sample in dataset] == keys("in-*.tar")
    dataset.close()


def test_a_shard_is_removed_only_after_its_command(here, capsys):
    command = "copy", "in-0.tar", "-o", "x.tar", "--rm", "--index", "-j", "1", "--then"
    status, _, err = run(capsys, *command, "exit 5")
    assert (status, "status 5" in err) == (1, True)
    assert keys("x.tar") == keys("in-0.tar")
    assert (here / "x.tar.arrow").exists()
    assert run(capsys, *command, "cp {path} kept.tar", "--overwrite")[0] == 0
    assert keys("kept.tar") == keys("in-0.tar")
    assert not (here / "x.tar").exists()
    assert not (here / "x.tar.arrow").exists()


@pytest.mark.parametrize("target", ["x.tar", "out/"])
def test_remote_shards_are_kept_in_the_cache(here, capsys, target):
    def kept():
        return [path for path in (here / "kept").rglob("*") if path.is_file() and path.stat().st_size > 5000]

    with required(nginx(here)) as url:
        command = "copy", f"{url}/in-0.tar", "-o", target, "-j", "1", "--overwrite"
        assert run(capsys, *command)[0] == 0
        assert not kept()
        assert run(capsys, *command, "--cache", "kept")[0] == 0
        (found,) = kept()
    assert found.read_bytes() == (here / "in-0.tar").read_bytes()
    assert content("x.tar", "out/*.tar") == content("in-0.tar")


def test_more_samples_than_are_fetched_together(here, capsys):
    make(here, 2500, name="many-{}.tar")
    assert copied(capsys, "many-0.tar") == keys("many-0.tar")
    assert len(set(copied(capsys, "many-0.tar", "--shuffle"))) == 2500


def test_mixing(here, capsys):
    status, _, _ = run(
        capsys, "copy", "--mix", "in-0.tar=2", "--mix", "in-1.tar=1", "--until", "first", "-o", "m.tar"
    )
    assert status == 0
    assert len(keys("m.tar")) == 15


def piped(command, **more):
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=PATIENCE, **more
    )


def shell(arguments):
    return f"{' '.join(TARMAC)} copy {arguments}"


def test_from_gnu_tar_and_to_gnu_tar(here):
    (here / "dir").mkdir()
    for number in range(5):
        (here / "dir" / f"{number}.txt").write_text(str(number))
        (here / "dir" / f"{number}.cls").write_text("1")
    done = piped(f"tar cf - --sort=name dir | {shell('- -o z-{i}.tar --max-samples 2')}")
    assert done.returncode == 0, done.stderr
    assert [len(keys(f"z-{number}.tar")) for number in range(3)] == [2, 2, 1]
    done = piped(f"{shell('z-*.tar -o - --fields txt')} | tar tf -")
    assert done.stdout.decode().split() == [f"dir/{number}.txt" for number in range(5)]
    done = piped(f"cat z-0.tar | {shell('- -o -')} | {shell('- -o - --slice 1:')} | tar xOf - dir/1.txt")
    assert done.stdout == b"1"


def test_a_stream_that_is_cut_off_is_an_error(here):
    done = piped(f"head -c 5000 in-0.tar | {shell('- -o y.tar')}")
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert not os.path.exists("y.tar")


def test_a_reader_that_has_seen_enough_is_told_nothing_but_that(here):
    done = piped(f"{shell('in-*.tar -o -')} | head -c 100 | wc -c")
    assert done.stdout.strip() == b"100"
    assert b"Traceback" not in done.stderr


def test_one_digest_for_any_number_of_processes(here, capsys):
    digests = set()
    for jobs in "1", "2", "3", "2":
        run(
            capsys,
            *("copy", "in-*.tar", "-o", f"{jobs}/x-{{i}}.tar", "--shuffle", "--max-bytes", "200", "-j", jobs),
            "--overwrite",
        )
        whole = b"".join(path.read_bytes() for path in sorted((here / jobs).glob("*.tar")))
        digests.add(hashlib.sha256(whole).hexdigest())
    assert len(digests) == 1
