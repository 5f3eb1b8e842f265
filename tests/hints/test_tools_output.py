"""Hints on the outputs of verbs."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

import tarmac
from harness.hints import follows, hinted
from hints.commands import done, refused
from tools.shards import keys, make

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def shards(tmp_path):
    """Two shards of three samples."""
    return make(tmp_path, 3, 3)


@pytest.fixture
def packed(shards):
    """The same, compressed, so that they can only be read from start to end."""
    names = []
    for url in shards:
        names.append(f"{url}.gz")
        Path(names[-1]).write_bytes(gzip.compress(Path(url).read_bytes()))
    return names


@follows("x-{i:06d}.tar as the output.")
def test_sizes_need_numbered_shards(shards):
    with hinted("x-{i:06d}.tar as the output."):
        tarmac.copy(shards, "out/", max_samples=2)
    tarmac.copy(shards, "x-{i:06d}.tar", max_samples=2)
    assert len(keys("x-*.tar")) == 6


@follows("{i:09d} or a-{key}.")
@pytest.mark.parametrize("pattern", ["same", "{nothing}"])
def test_new_keys(shards, capsys, pattern):
    with hinted("{i:09d} or a-{key}."):
        tarmac.copy(shards, "out.tar", rekey=pattern)
    assert refused(capsys, "copy", *shards, "-o", "out.tar", "--rekey", pattern) == "{i:09d} or a-{key}."
    done(capsys, "copy", *shards, "-o", "numbers.tar", "--rekey", "{i:09d}")
    done(capsys, "copy", *shards, "-o", "longer.tar", "--rekey", "a-{key}")
    assert keys("numbers.tar")[1] == "000000001"
    assert keys("longer.tar")[1] == "a-s0/001"


@follows("{}/x-{i:06d}.tar, or {}/ for shards that keep their names.")
def test_the_output_is_a_directory(shards):
    os.mkdir("out")
    for verb in (tarmac.copy, tarmac.sort, tarmac.pack):
        with hinted("{}/x-{i:06d}.tar, or {}/ for shards that keep their names."):
            verb(shards, "out")
    tarmac.sort(shards, "out/x-{i:06d}.tar", max_samples=4)
    tarmac.copy(shards, "out/")
    assert keys("out/x-*.tar") == keys("out/in-*.tar")


@follows("{}.tar or {}/x-{i:06d}.tar")
def test_the_output_has_no_extension(shards):
    for verb in (tarmac.copy, tarmac.sort, tarmac.pack):
        with hinted("{}.tar or {}/x-{i:06d}.tar"):
            verb(shards, "out")
    for verb in (tarmac.copy, tarmac.sort):
        verb(shards, f"{verb.__name__}.tar")
        verb(shards, f"{verb.__name__}/x-{{i:06d}}.tar", max_samples=4)
        assert keys(f"{verb.__name__}.tar") == keys(f"{verb.__name__}/*.tar") == keys(*shards)


@follows("{i:06d}, {name} and {split} are the placeholders.")
def test_an_unknown_placeholder(shards):
    with hinted("{i:06d}, {name} and {split} are the placeholders."):
        tarmac.copy(shards, "out-{number}.tar")
    for pattern in ("a-{i:06d}.tar", "b-{name}.tar"):
        tarmac.copy(shards, pattern)
    tarmac.copy(shards, "c-{split}.tar", split={"train": 0.5, "val": 0.5})
    assert len(keys("a-*.tar")) == len(keys("b-*.tar")) == len(keys("c-*.tar")) == 6


@follows("another name, or `overwrite` to replace it.")
def test_a_file_that_the_job_did_not_write(shards, capsys):
    Path("out.tar").write_bytes(b"mine")
    with hinted("another name, or `overwrite` to replace it."):
        tarmac.copy(shards, "out.tar")
    hint = refused(capsys, "copy", *shards, "-o", "out.tar")
    assert hint == "another name, or --overwrite to replace it."
    done(capsys, "copy", *shards, "-o", "other.tar")
    done(capsys, "copy", *shards, "-o", "out.tar", "--overwrite")
    assert keys("other.tar") == keys("out.tar") == keys(*shards)


@follows("another name, or `overwrite` to replace it.")
def test_a_file_of_another_job(shards):
    tarmac.copy(shards, "{name}-copy.tar")
    os.unlink("in-1-copy.tar")
    tarmac.map(shards[:1], "in-1-copy.tar", dict)
    with hinted("another name, or `overwrite` to replace it."):
        tarmac.copy(shards, "{name}-copy.tar")
    tarmac.copy(shards, "{name}-other.tar")
    tarmac.copy(shards, "{name}-copy.tar", overwrite=True)
    assert keys("*-copy.tar") == keys("*-other.tar") == keys(*shards)


@follows("another output; move the shards afterwards.")
def test_the_output_is_an_input(shards):
    before = keys(*shards)
    with hinted("another output; move the shards afterwards."):
        tarmac.copy(shards, "{name}.tar", rekey="a-{key}", overwrite=True)
    tarmac.copy(shards, "new/", rekey="a-{key}")
    for url in shards:
        os.replace(f"new/{Path(url).name}", url)
    assert keys(*shards) == [f"a-{key}" for key in before]


@follows("{}{}{}-{i:06d}{}{} as the output.")
@pytest.mark.parametrize(
    ("given", "better"), [("out/x.tar.gz", "out/x-{i:06d}.tar.gz"), ("x.tar", "x-{i:06d}.tar")]
)
def test_several_shards_of_one_name(shards, given, better):
    with hinted("{}{}{}-{i:06d}{}{} as the output.") as caught:
        tarmac.copy(shards, given, max_samples=2)
    assert caught.value.hint == f"{better} as the output."
    tarmac.copy(shards, better, max_samples=2)
    assert keys(better.replace("{i:06d}", "*")) == keys(*shards)


def twice(sample):
    return [sample, sample | {"__key__": f"{sample['__key__']}-again"}]


@follows("{key} in the pattern, or renumber with tarmac copy afterwards.")
def test_more_samples_than_numbers(shards, capsys):
    with hinted("{key} in the pattern, or renumber with tarmac copy afterwards."):
        tarmac.map(shards, "out/", twice, rekey="{i:09d}")
    tarmac.map(shards, "keys/", twice, rekey="a-{key}")
    tarmac.map(shards, "all/", twice)
    done(capsys, "copy", "all/*.tar", "-o", "numbers.tar", "--rekey", "{i:09d}")
    assert len(set(keys("keys/*.tar"))) == 12
    assert keys("numbers.tar")[-1] == "000000011"


@follows("add {i:06d} to the name of the output.")
def test_two_inputs_of_one_name(tmp_path):
    for folder in ("a", "b"):
        os.mkdir(folder)
    one, other = make(tmp_path / "a", 2) + make(tmp_path / "b", 3)
    with hinted("add {i:06d} to the name of the output."):
        tarmac.copy([one, other], "out/{name}.tar")
    tarmac.copy([one, other], "out/{name}-{i:06d}.tar")
    assert len(keys("out/*.tar")) == 5


@follows("{i:06d} in the output.")
def test_reordered_samples(shards):
    for give in (
        lambda output: tarmac.sort(shards, output),
        lambda output: tarmac.copy(shards, output, shuffle=True),
    ):
        with hinted("{i:06d} in the output."):
            give("out/")
    tarmac.sort(shards, "out/{i:06d}.tar")
    assert len(keys("out/*.tar")) == 6


@follows("x.tar or x-{i:06d}.tar as the output.")
@pytest.mark.parametrize("output", ["x.tar", "x-{i:06d}.tar"])
def test_standard_input_has_no_name(shards, monkeypatch, output):
    with hinted("x.tar or x-{i:06d}.tar as the output."):
        tarmac.copy("-", "out/")
    with open(shards[0]) as file:
        monkeypatch.setattr("sys.stdin", file)
        tarmac.copy("-", output)
    assert len(keys("x*.tar")) == 3


@follows("{key} in the pattern, or x-{i:06d}.tar as the output.")
def test_numbers_of_streamed_shards(packed):
    with hinted("{key} in the pattern, or x-{i:06d}.tar as the output."):
        tarmac.copy(packed, "out/", rekey="{i:09d}")
    tarmac.copy(packed, "out/", rekey="a-{key}")
    tarmac.copy(packed, "x-{i:06d}.tar", rekey="{i:09d}")
    assert len(keys("out/*.tar")) == len(keys("x-*.tar")) == 6


@follows("plain shards; or x-{i:06d}.tar as the output, and `only` for one split.")
@pytest.mark.parametrize(
    ("output", "options"),
    [
        ("out/", {"slice": slice(4)}),
        ("{split}-{i:06d}.tar", {"split": {"train": 0.5, "val": 0.5}}),
        ("out.tar", {"weights": [1, 2]}),
        ("out.tar", {"interleave": True, "slice": slice(4)}),
    ],
)
def test_streams_are_read_once(packed, shards, output, options):
    hint = "plain shards; or x-{i:06d}.tar as the output, and `only` for one split."
    with hinted(hint):
        tarmac.copy(packed, output, **options)
    if "slice" in options and "interleave" not in options:
        tarmac.copy(packed, "x-{i:06d}.tar", **options)
    elif "split" in options:
        tarmac.copy(packed, "x-{i:06d}.tar", **options, only="train")
    tarmac.copy(packed, "plain/")
    tarmac.copy(sorted(map(str, Path("plain").glob("*.tar"))), output, **options)


@follows("{split}-{i:06d}.tar as the output, or `only` for one split.")
@pytest.mark.parametrize("verb", [tarmac.copy, tarmac.pack, tarmac.export])
def test_splits_without_names(tmp_path, verb):
    (tmp_path / "lines.txt").write_text("".join(f"{number}\n" for number in range(20)))
    tarmac.pack("lines.txt", "lines.tar", format="lines")
    sources, more = ("lines.txt", {"format": "lines"}) if verb is tarmac.pack else ("lines.tar", {})
    more |= {"split": {"train": 0.5, "val": 0.5}} | ({"format": "jsonl"} if verb is tarmac.export else {})
    with hinted("{split}-{i:06d}.tar as the output, or `only` for one split."):
        verb(sources, "x-{i:06d}.tar", **more)
    both = verb(sources, "{split}-{i:06d}.tar", **more)
    one = verb(sources, "x-{i:06d}.tar", **more, only="train")
    assert 0 < one.written < both.written == 20


@follows("`split`, or an output without {split}.")
@pytest.mark.parametrize("verb", ["copy", "pack"])
def test_names_without_splits(tmp_path, shards, capsys, verb):
    source = "data" if verb == "pack" else shards[0]
    done(capsys, "show", shards[0], "--extract", "data")
    hint = refused(capsys, verb, source, "-o", "{split}.tar")
    assert hint == "--split, or an output without {split}."
    with hinted("`split`, or an output without {split}."):
        getattr(tarmac, verb)(source, "{split}.tar")
    done(capsys, verb, source, "-o", "{split}.tar", "--split", "train=0.9,val=0.1")
    done(capsys, verb, source, "-o", "all.tar")
    assert len(keys("train.tar", "val.tar")) == len(keys("all.tar")) == 3


@follows("an output without {split}.")
def test_a_split_stream(packed):
    options = {"split": {"train": 0.5, "val": 0.5}, "only": "train"}
    with hinted("an output without {split}."):
        tarmac.copy(packed, "{split}.tar", **options)
    assert tarmac.copy(packed, "out.tar", **options).written


@pytest.mark.processes
@follows("`overwrite` starts over.")
def test_a_stream_cannot_be_retried(packed, capsys):
    job = ["map", *packed, "-o", "out.tar", "--command", "true", "--retry", "failed"]
    tarmac.map(packed, "out.tar", command="true")
    with hinted("`overwrite` starts over."):
        tarmac.map(packed, "out.tar", command="true", retry="failed")
    assert refused(capsys, *job) == "--overwrite starts over."
    done(capsys, *job[:-2], "--overwrite")
    assert len(keys("out.tar")) == 6


@follows("`slice_shard`, or a second copy with `slice`.")
def test_a_slice_of_a_mix(shards):
    with hinted("`slice_shard`, or a second copy with `slice`."):
        tarmac.copy(shards, "out.tar", weights=[1, 1], slice=slice(2))
    tarmac.copy(shards, "few.tar", weights=[1, 1], slice_shard=slice(2))
    tarmac.copy(shards, "mix.tar", weights=[1, 1])
    tarmac.copy("mix.tar", "two.tar", slice=slice(2))
    assert len(keys("few.tar")) == 4
    assert keys("two.tar") == keys("mix.tar")[:2]


@follows("pass its shards; `where`, `keys` and `slice` select samples.")
def test_a_dataset_is_no_source(shards):
    dataset = tarmac.Dataset(shards)[2:4]
    with hinted("pass its shards; `where`, `keys` and `slice` select samples."):
        tarmac.copy(dataset, "out.tar")
    tarmac.copy(shards, "slice.tar", slice=slice(2, 4))
    tarmac.copy(shards, "keys.tar", keys=list(dataset.keys()))
    tarmac.copy(shards, "where.tar", where="key = 's0/002' or key = 's1/000'")
    assert keys("slice.tar") == keys("keys.tar") == keys("where.tar") == list(dataset.keys())
