"""Hints of `tarmac pack`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

import tarmac
from cli.running import shell
from harness.folder import folder
from harness.hints import follows, hinted
from hints.commands import done, refused
from tools.shards import content, keys, make

pytestmark = pytest.mark.usefixtures("home")


def write(files):
    for name, data in files.items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        Path(name).write_bytes(data)


@pytest.fixture
def data():
    """A directory of two samples."""
    write({"data/a.txt": b"A", "data/a.cls": b"0", "data/b.txt": b"B"})
    return "data"


@follows("x-{i:06d}.tar")
def test_patterns_that_pack_cannot_use(data):
    with hinted("x-{i:06d}.tar"):
        tarmac.pack(data, "{name}.tar")
    tarmac.pack(data, "x-{i:06d}.tar")
    assert keys("x-000000.tar") == ["a", "b"]


@follows("another name, or `overwrite` to replace it.")
def test_a_list_of_other_classes(capsys):
    write({"pets/cat/1.jpg": b"c", "pets/dog/1.jpg": b"d", "x.classes.txt": b"bird\n"})
    with hinted("another name, or `overwrite` to replace it."):
        tarmac.pack("pets", "x.tar", format="imagefolder")
    tarmac.pack("pets", "y.tar", format="imagefolder")
    done(capsys, "pack", "pets", "-o", "x.tar", "--from", "imagefolder", "--overwrite")
    assert Path("x.classes.txt").read_text() == Path("y.classes.txt").read_text() == "cat\ndog\n"


@follows("`rekey` '{i:09d}', another `key` column, or one source at a time.")
def test_a_repeated_key(capsys):
    write(
        {"a.jsonl": b'{"key": "x", "id": 1, "txt": "A"}\n', "b.jsonl": b'{"key": "x", "id": 2, "txt": "B"}\n'}
    )
    job = ["pack", "a.jsonl", "b.jsonl", "-o", "x.tar"]
    with hinted("`rekey` '{i:09d}', another `key` column, or one source at a time."):
        tarmac.pack(job[1:3], "x.tar")
    hint = refused(capsys, *job)
    assert hint == "--rekey '{i:09d}', another --key column, or one source at a time."
    done(capsys, *job, "--rekey", "{i:09d}")
    done(capsys, *job[:-1], "y.tar", "--key", "id")
    for name in "ab":
        done(capsys, "pack", f"{name}.jsonl", "-o", f"{name}.tar")
    assert (keys("x.tar"), keys("y.tar")) == (["000000000", "000000001"], ["1", "2"])
    assert keys("a.tar") == keys("b.tar") == ["x"]


@follows('`on_error` "skip" skips such samples.')
@pytest.mark.parametrize("options", [["--require", "cls"], ["--fields", "cls"]])
def test_a_sample_without_a_field(data, capsys, options):
    with hinted('`on_error` "skip" skips such samples.'):
        tarmac.pack(data, "x.tar", **{options[0][2:]: [options[1]]})
    job = ["pack", data, "-o", "x.tar", *options]
    assert refused(capsys, *job) == '--on-error "skip" skips such samples.'
    done(capsys, *job, "--on-error", "skip", status=1)
    assert keys("x.tar") == ["a"]


@follows('`on_error` "skip" skips such samples.')
def test_a_generated_sample_without_a_field():
    samples = [{"__key__": "a", "cls": 1}, {"__key__": "b", "txt": "B"}]
    with hinted('`on_error` "skip" skips such samples.'):
        tarmac.pack(iter(samples), "x.tar", require=["cls"])
    tarmac.pack(iter(samples), "x.tar", require=["cls"], on_error="skip")
    assert keys("x.tar") == ["a"]


@follows("split_name=tarmac.last_dot, if keys contain dots; split_name=tarmac.first_dot, if they do not.")
def test_keys_that_seem_to_have_dots(capsys):
    write({"data/x.v1.0.png": b"0", "data/x.v1.1.png": b"1"})
    hint = "split_name=tarmac.last_dot, if keys contain dots; split_name=tarmac.first_dot, if they do not."
    with hinted(hint):
        tarmac.pack("data", "x.tar")
    hint = refused(capsys, "pack", "data", "-o", "x.tar")
    assert hint == "--split-name last-dot, if keys contain dots; --split-name first-dot, if they do not."
    done(capsys, "pack", "data", "-o", "last.tar", "--split-name", "last-dot")
    done(capsys, "pack", "data", "-o", "first.tar", "--split-name", "first-dot")
    samples = tarmac.read("last.tar", split_name=tarmac.last_dot)
    assert [each["__key__"] for each in samples] == ["x.v1.0", "x.v1.1"]
    assert content("first.tar") == [{"__key__": "x", "v1.0.png": b"0", "v1.1.png": b"1"}]


@follows('`format` "dir" for files without classes.')
def test_no_class_folders(data, capsys):
    with hinted('`format` "dir" for files without classes.'):
        tarmac.pack(data, "x.tar", format="imagefolder")
    hint = refused(capsys, "pack", data, "-o", "x.tar", "--from", "imagefolder")
    assert hint == '--from "dir" for files without classes.'
    done(capsys, "pack", data, "-o", "x.tar", "--from", "dir")
    assert keys("x.tar") == ["a", "b"]


@pytest.mark.processes
@follows("a recipe or a table of URLs.")
def test_a_server_that_lists_nothing(data):
    with folder(Path(data)) as url:
        with hinted("a recipe or a table of URLs."):
            tarmac.pack(f"{url}/", "x.tar")
        write({"list.recipe": f"a.txt {url}/a.txt\nb.txt {url}/b.txt\n".encode()})
        write({"list.csv": f"key,@txt\na,{url}/a.txt\nb,{url}/b.txt\n".encode()})
        tarmac.pack("list.recipe", "x.tar")
        tarmac.pack("list.csv", "y.tar")
    assert (
        content("x.tar") == content("y.tar") == [{"__key__": "a", "txt": b"A"}, {"__key__": "b", "txt": b"B"}]
    )


@pytest.mark.processes
@follows("`allow_exec`, if you trust the recipe.")
def test_a_recipe_with_a_command(capsys):
    write({"list.recipe": b"a.txt pipe:echo A\n"})
    with hinted("`allow_exec`, if you trust the recipe."):
        tarmac.pack("list.recipe", "x.tar")
    assert refused(capsys, "pack", "list.recipe", "-o", "x.tar") == "--allow-exec, if you trust the recipe."
    done(capsys, "pack", "list.recipe", "-o", "x.tar", "--allow-exec")
    assert content("x.tar") == [{"__key__": "a", "txt": b"A\n"}]


@follows("lines such as `a/1.jpg path/to.jpg`.")
@pytest.mark.parametrize("line", ["path/to.jpg", "a path/to.jpg"])
def test_a_bad_line_of_a_recipe(line):
    write({"list.recipe": line.encode(), "path/to.jpg": b"x"})
    with hinted("lines such as `a/1.jpg path/to.jpg`."):
        tarmac.pack("list.recipe", "x.tar")
    write({"list.recipe": b"a/1.jpg path/to.jpg\n"})
    tarmac.pack("list.recipe", "x.tar")
    assert [each["jpg"] for each in tarmac.read("x.tar")] == [b"x"]


@follows("tarmac copy repacks shards.")
def test_a_shard_is_no_source(tmp_path, capsys):
    (url,) = make(tmp_path, 3)
    with hinted("tarmac copy repacks shards."):
        tarmac.pack(url, "x-{i:06d}.tar", max_samples=2)
    done(capsys, "copy", url, "-o", "x-{i:06d}.tar", "--max-samples", 2)
    assert keys("x-*.tar") == keys(url)


@follows("one of {}.")
def test_a_source_of_an_unknown_format(capsys):
    write({"table.dat": b'{"key": "x", "txt": "A"}\n'})
    with hinted("one of {}.") as caught:
        tarmac.pack("table.dat", "x.tar")
    assert "jsonl" in caught.value.hint.removeprefix("one of ").rstrip(".").split(", ")
    done(capsys, "pack", "table.dat", "-o", "x.tar", "--from", "jsonl")
    assert content("x.tar") == [{"__key__": "x", "txt": b"A"}]


@follows("a directory outside the source, such as ../x-{i:06d}.tar.")
@pytest.mark.parametrize("source", [".", "inner"])
def test_an_output_inside_the_source(tmp_path, monkeypatch, source):
    write({"home/a.txt": b"A", "home/inner/b.txt": b"B"})
    monkeypatch.chdir("home")
    with hinted("a directory outside the source, such as ../x-{i:06d}.tar."):
        tarmac.pack(source, f"{source}/x-{{i:06d}}.tar")
    tarmac.pack(source, "../x-{i:06d}.tar")
    assert keys("../x-*.tar")


@pytest.mark.processes
@follows("COMMAND | tarmac pack --from FORMAT -")
@pytest.mark.parametrize(
    ("format", "text", "fields"),
    [("lines", "A\n", {"txt": b"A"}), ("csv", "key,txt\nx,A\n", {"__key__": "x", "txt": b"A"})],
)
def test_a_command_is_no_source(format, text, fields):
    command = f"printf %s {shlex.quote(text)}"
    with hinted("COMMAND | tarmac pack --from FORMAT -"):
        tarmac.pack(f"pipe:{command}", "x.tar", format=format)
    result = shell(f"{command} | tarmac pack --from {format} - -o x.tar")
    assert not result.returncode, result.stderr
    assert content("x.tar") == [{"__key__": "000000000"} | fields]


class Late:
    """An engine that starts a job only after something has happened."""

    def __init__(self, happens):
        self.happens = happens

    def run(self, work, units):
        for unit in units:
            self.happens()
            yield unit, work(unit)


@follows("run the same command again when nothing writes to it.")
@pytest.mark.parametrize("changed", ["data/a.txt", "table.csv"])
def test_a_file_that_changes_after_planning(data, changed):
    write({"table.csv": b"key,txt,@cls\na,A,data/a.cls\nb,B,\n"})
    source = changed if changed == "table.csv" else data

    def grow():
        with open(changed, "a") as file:
            file.write("c,C,\n")

    with hinted("run the same command again when nothing writes to it."):
        tarmac.pack(source, "x.tar", max_bytes=1 << 20, engine=Late(grow))
    tarmac.pack(source, "x.tar", max_bytes=1 << 20)
    assert keys("x.tar") == ["a", "b", "c"][: 2 + (source == changed)]
