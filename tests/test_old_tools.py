"""Problems of users of tarp, tarproc and webdataset do not occur here: one test for each."""

from __future__ import annotations

import glob
import gzip
import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import tarmac
from cli.running import numbers
from embedding import models as embeddings
from harness.shards import plain
from tarmac.cli import VERBS, main
from tokens import models
from tools.shards import content, keys, make

MODELS = models.__file__


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    make(tmp_path, 10, 7)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capfdbinary):
    """Run a command; its status, standard output and error."""

    def command(*arguments):
        with pytest.raises(SystemExit) as done:
            main([str(argument) for argument in arguments])
        shown = capfdbinary.readouterr()
        return done.value.code or 0, shown.out, shown.err.decode()

    return command


def good(run, *arguments):
    status, out, err = run(*arguments)
    assert status == 0, err
    return out, err


# tarp


def test_a_command_as_output_is_started(run):
    good(run, "copy", "in-0.tar", "-o", "pipe:cat > piped.tar")
    assert keys("piped.tar") == keys("in-0.tar")


def test_files_without_an_extension_are_skipped_aloud(run):
    Path("odd.tar").write_bytes(
        plain([("README", b"x"), ("a.txt", b"1"), (".DS_Store", b"2"), ("b.txt", b"3")])
    )
    good(run, "copy", "odd.tar", "-o", "out.tar")
    assert content("out.tar") == [{"__key__": "a", "txt": b"1"}, {"__key__": "b", "txt": b"3"}]
    out, err = good(run, "check", "odd.tar")
    assert out.endswith(b"odd.tar: 2 samples, 2 bytes, txt:2, 2 x no field in name skipped\n")
    assert numbers(err)[:2] == [1, 2]
    out, _ = good(run, "check", "odd.tar", "--json")
    assert json.loads(out)["skipped"] == {"no field in name": 2}
    assert good(run, "show", "odd.tar")[0] == b"a\ttxt 1\nb\ttxt 1\n"
    assert b"skipped" not in good(run, "check", "out.tar")[0]


def test_fields_have_one_order_and_no_time_of_the_day(run):
    good(run, "copy", "in-0.tar", "-o", "one.tar")
    good(run, "copy", "in-0.tar", "-o", "two.tar")
    assert Path("one.tar").read_bytes() == Path("two.tar").read_bytes()
    with tarfile.open("one.tar") as archive:
        assert {member.mtime for member in archive} == {0}


def test_errors_of_a_tar_go_to_standard_error_and_into_the_status(run):
    Path("torn.tar").write_bytes(Path("in-0.tar").read_bytes()[:5000])
    for target in ("-", "out.tar"):
        status, out, err = run("copy", "torn.tar", "-o", target)
        assert status == 1
        assert b"torn.tar" not in out
        assert "torn.tar" in err
    assert not os.path.exists("out.tar")


def test_recipes_may_have_blank_lines_comments_and_long_lines(run):
    text = "x" * 10_000
    Path("recipe").write_text(f"# a comment\n\nb.txt text:{text}\na.txt  text: two  words \nb.cls text:1\n")
    good(run, "pack", "recipe", "--from", "recipe", "-o", "out.tar")
    samples = {sample["__key__"]: sample for sample in content("out.tar")}
    assert samples["b"] == {"__key__": "b", "cls": b"1", "txt": text.encode()}
    assert b"two  words" in samples["a"]["txt"]


def test_a_slice_with_a_step_begins_where_it_says(run):
    parts = []
    for offset in range(3):
        good(run, "copy", "in-*.tar", "-o", f"part-{offset}.tar", "--slice", f"{offset}::3")
        parts.append(keys(f"part-{offset}.tar"))
    assert parts[1] == keys("in-*.tar")[1::3]
    assert sorted(key for part in parts for key in part) == sorted(keys("in-*.tar"))


def test_a_slice_of_each_shard_ends(run):
    good(run, "copy", "in-*.tar", "-o", "out.tar", "--slice-shard", "2:4")
    assert keys("out.tar") == ["s0/002", "s0/003", "s1/002", "s1/003"]


BRACES = {
    "copy": ["-o", "out.tar"],
    "sort": ["--by", "key", "-o", "out.tar"],
    "map": ["-c", "true", "-o", "out.tar"],
    "join": ["--with", "in-{0..1}.tar", "--replace", "-o", "out.tar"],
    "index": ["-o", "out.json"],
    "check": [],
    "show": [],
    "export": ["-o", "out.jsonl"],
    "audit": ["--batch-size", "1", "--json"],
    "tokenize": ["-o", "tokens/", "--text", "cls", "--tokenizer", f"{MODELS}:Letters"],
    "embed": ["-o", "vectors/", "--text", "cls", "--model", f"{embeddings.HERE}:Letters"],
}


def test_braces_are_expanded_by_every_verb(run):
    assert {*VERBS} == {*BRACES, "select", "download", "pack", "combine", "dedup", "cache", "jobs", "knn"}
    printed = {}
    for verb, more in BRACES.items():
        printed[verb], _ = good(run, verb, "in-{0..1}.tar", *more, *(["--overwrite"] * ("out.tar" in more)))
        if "out.tar" in more:
            assert keys("out.tar") == keys("in-*.tar"), verb
            os.unlink("out.tar")
    assert len(printed["show"].splitlines()) == len(Path("out.jsonl").read_text().splitlines()) == 17
    assert b"in-0.tar: 10 samples" in printed["check"]
    assert b"in-1.tar: 7 samples" in printed["check"]
    assert [shard["nsamples"] for shard in json.loads(Path("out.json").read_text())["shardlist"]] == [10, 7]
    assert json.loads(printed["audit"])["samples"] == 17
    _, _, err = run("cache", "warm", "in-{0..1}.tar", "--cache", "kept")
    assert "in-0.tar" in err
    assert "in-1.tar" in err


def test_a_command_that_fails_is_an_error_and_its_sample_is_not_kept(run):
    status, _, err = run("map", "in-0.tar", "-o", "out.tar", "-c", 'test "$(cat sample.cls)" != 3')
    assert status == 1
    assert not os.path.exists("out.tar")
    status, _, err = run(
        "map", "in-0.tar", "-o", "some.tar", "-c", 'test "$(cat sample.cls)" != 3', "--on-error", "skip"
    )
    assert status == 1
    assert "2 FAILED" in err
    assert keys("some.tar") == [key for key in keys("in-0.tar") if key not in ("s0/003", "s0/008")]


def test_sorting_needs_no_list_of_fields_and_has_an_output(run):
    good(run, "sort", "in-*.tar", "-o", "out.tar", "--by", "cls")
    assert sorted(map(str, content("out.tar"))) == sorted(map(str, content("in-*.tar")))


def test_samples_with_equal_sort_keys_are_all_kept(run):
    good(run, "sort", "in-*.tar", "-o", "out.tar", "--by", "cls", "--type", "int")
    samples = content("out.tar")
    assert [sample["cls"] for sample in samples] == sorted(sample["cls"] for sample in content("in-*.tar"))
    assert sorted(keys("out.tar")) == sorted(keys("in-*.tar"))


def test_a_directory_for_temporary_files_is_not_deleted(run):
    Path("tmp").mkdir()
    Path("tmp/mine.txt").write_text("mine")
    good(run, "sort", "in-*.tar", "-o", "out.tar", "--tmp", "tmp")
    assert [path.name for path in Path("tmp").iterdir()] == ["mine.txt"]


def lengths(pattern):
    return [len(keys(path)) for path in sorted(glob.glob(pattern))]


def payload(samples):
    return [sum(len(value) for name, value in each.items() if name != "__key__") for each in samples]


@pytest.mark.parametrize("packed", [False, True])
def test_a_limit_applies_if_it_is_given_and_only_then(run, packed):
    source = "in-*.tar"
    if packed:
        source = "z-*.tar.gz"
        for number in range(2):
            data = gzip.compress(Path(f"in-{number}.tar").read_bytes())
            Path(f"z-{number}.tar.gz").write_bytes(data)
    good(run, "copy", source, "-o", "all-{i}.tar")
    good(run, "copy", source, "-o", "n-{i}.tar", "--max-samples", "4")
    good(run, "copy", source, "-o", "b-{i}.tar", "--max-bytes", "300")
    good(run, "copy", source, "-o", "both-{i}.tar", "--max-bytes", "300", "--max-samples", "3")
    assert lengths("all-*.tar") == [17]
    assert lengths("n-*.tar") == [4, 4, 4, 4, 1]
    for name, most in [("b", 17), ("both", 3)]:
        shards = [content(path) for path in sorted(glob.glob(f"{name}-*.tar"))]
        assert [sample for shard in shards for sample in shard] == content("in-*.tar")
        assert max(sum(payload(shard)) for shard in shards) <= 300
        assert max(map(len, shards)) <= most
        for shard, following in itertools.pairwise(shards):  # each is as full as it can be
            assert len(shard) == most or sum(payload([*shard, following[0]])) > 300
    assert max(lengths("b-*.tar")) > 3
    assert lengths("both-*.tar") != lengths("b-*.tar")


def test_a_command_after_each_shard_must_succeed(run):
    status, _, err = run(
        "copy", "in-0.tar", "-o", "x-{i}.tar", "--max-samples", "5", "--post-cmd", "exit 7", "-j", "1"
    )
    assert status == 1
    assert "7" in err
    good(
        run,
        "copy",
        "in-0.tar",
        "-o",
        "x-{i}.tar",
        "--max-samples",
        "5",
        "--post-cmd",
        "cp {path} {path}.copy",
        "--overwrite",
    )
    assert Path("x-1.tar.copy").read_bytes() == Path("x-1.tar").read_bytes()


def test_nothing_in_is_nothing_out(run):
    Path("empty.tar").write_bytes(bytes(1024))
    for verb in (["copy"], ["sort"], ["map", "-c", "true"]):
        out, _ = good(run, *verb, "empty.tar", "-o", f"{verb[0]}.tar")
        assert not os.path.exists(f"{verb[0]}.tar")
    out, _ = good(run, "copy", "empty.tar", "-o", "-")
    assert tarfile.open(fileobj=io.BytesIO(out)).getnames() == []


# tarproc


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_short_streams_of_any_length_can_be_shuffled(folder, count):
    make(folder, count, name="short-{}.tar")
    command = f"cat short-0.tar | {sys.executable} -m tarmac copy - -o out.tar --shuffle --buffer 4"
    subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    assert sorted(keys("out.tar")) == sorted(keys("short-0.tar"))


def test_a_shard_is_joined_with_itself_and_split(run):
    """As `tarscat a.tar a.tar | tarsplit -n 32` does it."""
    good(run, "copy", *["in-0.tar"] * 4, "-o", "x-{i}.tar", "--max-samples", "32", "--rekey", "{i:09d}")
    assert keys("x-0.tar", "x-1.tar") == [f"{number:09d}" for number in range(40)]
    assert len(keys("x-1.tar")) == 8


def test_shards_that_other_tools_have_joined(run):
    """The keys of such a shard occur several times."""
    with tarfile.open("joined.tar", "w") as joined, tarfile.open("in-0.tar") as shard:
        for member in shard.getmembers() * 4:
            joined.addfile(member, shard.extractfile(member))
    status, _, err = run("copy", "joined.tar", "-o", "x-{i}.tar", "--max-samples", "32")
    assert status == 1
    assert "--repeated keep" in err
    assert "--rekey '{i:09d}'" in err
    renamed = ("--repeated", "keep", "--rekey", "{i:09d}")
    good(run, "copy", "joined.tar", "-o", "x-{i}.tar", "--max-samples", "32", *renamed)
    assert content("x-0.tar", "x-1.tar") == [
        sample | {"__key__": f"{number:09d}"} for number, sample in enumerate(content("in-0.tar") * 4)
    ]


def test_all_extensions_are_read_in_lower_case(run):
    Path("upper.tar").write_bytes(plain([("a.JPG", b"1"), ("a.Cls", b"2"), ("a.TXT", b"3")]))
    good(run, "copy", "upper.tar", "-o", "out.tar")
    assert content("out.tar") == [{"__key__": "a", "jpg": b"1", "cls": b"2", "txt": b"3"}]


def test_workers_read_all_shards_and_close_what_they_write(folder, run):
    make(folder, *[5] * 8, name="many-{}.tar")
    good(run, "copy", "many-*.tar", "-o", "out-{i}.tar", "--max-samples", "7", "-j", "2")
    assert len(keys("out-*.tar")) == 40


def test_a_list_of_shards_whose_skip_is_beyond_the_first(run):
    good(run, "copy", "in-*.tar", "-o", "out.tar", "--slice", "12:15")
    assert keys("out.tar") == keys("in-*.tar")[12:15]


# What people asked for


def test_a_subset_by_a_list_of_keys(run):
    Path("keys.txt").write_text("s1/003\ns0/009\n")
    good(run, "copy", "in-*.tar", "-o", "out.tar", "--keys", "keys.txt")
    assert keys("out.tar") == ["s0/009", "s1/003"]


def test_train_validation_and_test(run):
    good(run, "copy", "in-*.tar", "-o", "{split}.tar", "--split", "train=0.6,val=0.2,test=0.2")
    parts = [keys(f"{name}.tar") for name in ("train", "val", "test")]
    assert sorted(key for part in parts for key in part) == sorted(keys("in-*.tar"))


def test_metadata_added_without_unpacking(run):
    rows = "".join(f"{key},{number}\n" for number, key in enumerate(keys("in-*.tar")))
    Path("more.csv").write_text(f"key,rank.txt\n{rows}")
    good(run, "join", "in-*.tar", "--with", "more.csv", "-o", "out/")
    assert [sample["rank.txt"] for sample in content("out/*.tar")] == [b"%d" % number for number in range(17)]


def test_shards_in_turn(run):
    good(run, "copy", "in-*.tar", "-o", "out.tar", "--interleave", "2")
    assert keys("out.tar")[:4] == ["s0/000", "s1/000", "s0/001", "s1/001"]


def test_any_sample_by_number_and_by_key(run):
    assert good(run, "show", "in-*.tar", "--at", "12", "--raw", "json")[0] == content("in-*.tar")[12]["json"]
    assert (
        good(run, "show", "in-*.tar", "--at", "s1/002", "--raw", "json")[0] == content("in-*.tar")[12]["json"]
    )


def test_datasets_mixed_by_weight(run):
    good(run, "copy", "--mix", "in-0.tar=1", "--mix", "in-1.tar=1", "--until", "first", "-o", "out.tar")
    samples = keys("out.tar")
    assert sum(key.startswith("s1") for key in samples) == 7
    assert 6 <= sum(key.startswith("s0") for key in samples) <= 8


def test_samples_whose_files_lie_apart(run):
    Path("apart.tar").write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3"), ("b.cls", b"4")]))
    status, _, err = run("copy", "apart.tar", "-o", "out.tar")
    assert status == 1
    assert "tarmac sort --by key" in err
    good(run, "sort", "apart.tar", "--by", "key", "-o", "out.tar", "--overwrite")
    assert content("out.tar") == [
        {"__key__": "a", "cls": b"3", "txt": b"1"},
        {"__key__": "b", "cls": b"4", "txt": b"2"},
    ]


def test_a_shuffle_is_a_permutation_of_everything(run):
    good(run, "copy", "in-*.tar", "-o", "out.tar", "--shuffle")
    assert keys("out.tar") != keys("in-*.tar")
    assert sorted(keys("out.tar")) == sorted(keys("in-*.tar"))


def test_indexing_in_parallel_with_digests(folder, run):
    make(folder, *[3] * 6, name="many-{}.tar")
    good(run, "index", "many-*.tar", "-o", "many.json", "--digests", "-j", "2")
    dataset = tarmac.Dataset("many.json", verify=True)
    assert len(list(dataset)) == 18
    dataset.close()


def test_names_with_slashes_and_blanks(run):
    Path("tree/a b/c").mkdir(parents=True)
    Path("tree/a b/c/d e.txt").write_text("x")
    good(run, "pack", "tree", "-o", "out.tar")
    assert keys("out.tar") == ["a b/c/d e"]
