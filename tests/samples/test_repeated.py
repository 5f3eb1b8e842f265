"""Whole samples whose key occurs again are read with `repeated="keep"`; parts of samples are always an error.

Laws of random shards in which whole samples repeat: the samples are those of webdataset, in their order, whichever way
the shard is read; and damage and parts of samples are errors.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
import shlex
import warnings
from itertools import islice
from pathlib import Path

import pytest
import webdataset.tariterators as real
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
import tarmac.webdataset as wds
from harness import rounds
from harness.damage import bit_flips, cuts, expect_no_silence
from harness.shards import header_offsets, plain
from tarmac.cli import main
from tarmac.compat.wids.wids import IndexedTarSamples
from tarmac.errors import BadName, DuplicateField, PartialSamples, RepeatedSample, SplitSample, UsageError
from tarmac.samples.grouping import Grouping, group_members
from tarmac.tar import read_members

KEEP = Grouping(repeated="keep")
LAYOUTS = {"a": ("cls", "txt"), "b": ("cls", "txt"), "c": ("txt",), "d/e": ("cls", "json", "seg.png")}


def pack(*names):
    return plain([(name, f"{name} {number}".encode()) for number, name in enumerate(names)])


def samples(data, options=KEEP, **arguments):
    return list(group_members(read_members(data), "x.tar", options, **arguments))


def brief(sample):
    return sample["__key__"], {name: value for name, value in sample.items() if name[:2] != "__"}


@st.composite
def repeated(draw, adjacent=True):
    """Return members of whole samples in any order, some of which repeat, with their fields in any order."""
    keys = draw(st.lists(st.sampled_from(sorted(LAYOUTS)), min_size=1, max_size=12))
    if not adjacent:
        keys = [key for key, _ in itertools.groupby(keys)]
    names = [f"{key}.{field}" for key in keys for field in draw(st.permutations(LAYOUTS[key]))]
    return [(name, f"{name} {number}".encode()) for number, name in enumerate(names)]


def law(test):
    return settings(deadline=None, derandomize=True, max_examples=rounds(60))(test)


@pytest.fixture
def folder(tmp_path_factory, monkeypatch):
    directory = tmp_path_factory.mktemp("shards")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("TARMAC_HOME", str(directory / "home"))
    return directory


# The rule


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("a.x", "b.x", "a.x"), "aba"),
        (("a.x", "a.y", "b.x", "a.y", "a.x"), "aba"),  # the order of fields does not matter
        (("a.x", "a.x", "a.x"), "aaa"),  # a field that comes twice begins a new sample
        (("a.x", "a.y", "a.y", "a.x", "b.x"), "aab"),
        (("a.x", "README", "a.y", "b.x", "a.x", "a.y"), "aba"),
        (("a.X", "a.x", "b.y"), "aab"),
    ],
)
def test_runs_with_the_same_fields_are_samples(names, keys):
    read = samples(pack(*names))
    assert "".join(sample["__key__"] for sample in read) == keys
    assert {type(sample) for sample in read} == {dict}
    contents = [value for sample in read for _, value in brief(sample)[1].items()]
    assert contents == [f"{n} {i}".encode() for i, n in enumerate(names) if n != "README"]


@pytest.mark.parametrize(
    ("names", "before", "error"),
    [
        (("a.x", "b.x", "a.y"), "ab", SplitSample),
        (("a.x", "a.y", "b.x", "a.x"), "ab", SplitSample),
        (("a.x", "b.x", "a.x", "a.y"), "ab", SplitSample),
        (("a.x", "b.x", "a.x", "c.x", "a.y"), "abac", SplitSample),
        (("b.x", "a.x", "a.x", "a.y"), "b", DuplicateField),
        (("b.x", "a.x", "a.y", "a.x", "c.x"), "b", DuplicateField),
    ],
)
def test_parts_of_samples_are_errors(names, before, error):
    data, read = pack(*names), []
    with pytest.raises(error) as caught:
        read.extend(group_members(read_members(data), "x.tar", KEEP))
    assert (type(caught.value), caught.value.key, caught.value.url) == (error, "a", "x.tar")
    passed = []
    with pytest.raises(error):
        for sample in group_members(read_members(data), "x.tar", KEEP):
            passed.append(sample["__key__"])
    assert "".join(passed) == before


def test_errors_that_are_ignored_drop_the_run():
    errors = []
    read = samples(pack("a.x", "a.x", "a.y", "a.x", "b.x", "c.x", "b.y", "a.x"), on_error=errors.append)
    assert [sample["__key__"] for sample in read] == ["b", "c", "a"]
    assert [type(error) for error in errors] == [DuplicateField, SplitSample]


def test_repeated_samples_are_errors_by_default():
    for names in (("a.x", "b.x", "a.x"), ("a.x", "a.y", "b.x", "a.x", "a.y")):
        with pytest.raises(RepeatedSample) as caught:
            samples(pack(*names), Grouping())
        assert caught.value.key == "a"
    with pytest.raises(SplitSample) as caught:
        samples(pack("a.x", "b.x", "a.y"), Grouping())
    assert not isinstance(caught.value, RepeatedSample)


def test_keys_beyond_the_limit_are_not_compared():
    names = ["a.x", "b.x", "a.y", "b.y"]
    assert len(samples(pack(*names), Grouping(repeated="keep", tracked_keys=0))) == 4
    with pytest.raises(SplitSample) as caught:
        samples(pack(*names), Grouping(repeated="keep", tracked_keys=1))
    assert caught.value.key == "a"


def test_a_torn_repetition_is_dropped_when_lenient():
    data = pack("a.x", "a.y", "a.x", "a.y")[:-1536]  # within the last member
    with pytest.warns(tarmac.errors.TruncatedTail):
        (sample,) = samples(data, Grouping(repeated="keep", lenient=True))
    assert brief(sample)[1] == {"x": b"a.x 0", "y": b"a.y 1"}


def test_unknown_values_are_errors(folder):
    (folder / "x.tar").write_bytes(pack("a.x"))
    for call in (tarmac.read, tarmac.WebDataset, tarmac.Dataset, tarmac.check):
        with pytest.raises(UsageError, match="repeated"):
            call("x.tar", repeated="drop")


# Laws


@law
@given(files=repeated(adjacent=False))
def test_samples_are_those_of_webdataset(tmp_path_factory, files):
    path = str(tmp_path_factory.mktemp("x") / "x.tar")
    Path(path).write_bytes(plain(files))
    opened = [{"url": path, "stream": io.BytesIO(plain(files))}]  # webdataset itself does not close files
    expected = [brief(sample) for sample in real.group_by_keys(real.tar_file_expander(opened))]
    for dataset in (
        tarmac.read(path, repeated="keep"),
        tarmac.read(path, repeated="keep", mmap=False),
        tarmac.read(path, tar=tarmac.TarOptions(repeated="keep")),
        tarmac.WebDataset(path, repeated="keep"),
        wds.WebDataset(path, shardshuffle=False),
        wds.WebDataset(path, shardshuffle=False, handler=wds.ignore_and_continue),
        wds.DataPipeline(wds.SimpleShardList(path), wds.tarfile_to_samples()),
        wds.tariterators.group_by_keys(
            wds.tariterators.tar_file_expander(wds.tariterators.url_opener([{"url": path}]))
        ),
    ):
        assert [brief(sample) for sample in dataset] == expected
    keys = [key for key, _ in expected]
    for dataset in (tarmac.read(path), tarmac.WebDataset(path), wds.WebDataset(path, repeated="error")):
        if len(set(keys)) < len(keys):
            with pytest.raises(SplitSample):
                list(dataset)
        else:
            assert [brief(sample) for sample in dataset] == expected


@law
@given(files=repeated(), data=st.data())
def test_samples_by_number_and_by_key(tmp_path_factory, files, data):
    path = tmp_path_factory.mktemp("x") / "x.tar"
    path.write_bytes(plain(files))
    expected = [brief(sample) for sample in tarmac.read(str(path), repeated="keep")]
    dataset = tarmac.Dataset(str(path), repeated="keep")
    assert [brief(sample) for sample in dataset] == expected
    order = data.draw(st.permutations(range(len(expected))))
    assert [brief(sample) for sample in dataset[order]] == [expected[number] for number in order]
    for _ in range(2):  # a scan of the keys, then a table
        for key in LAYOUTS:
            same = [fields for name, fields in expected if name == key]
            assert (key in dataset) == bool(same)
            assert brief(dataset.get(key, {"__key__": key}))[1] == (same[0] if same else {})
        first = [key for key, _ in expected].index(expected[-1][0])
        later = dataset[first + 1 :]
        assert brief(later.get(expected[-1][0], {"__key__": ""}))[1] == next(
            (fields for key, fields in expected[first + 1 :] if key == expected[-1][0]), {}
        )


@law
@given(files=repeated(), step=st.integers(0, 12), batchsize=st.integers(1, 3))
def test_a_resumed_stream_continues_where_it_was_saved(tmp_path_factory, files, step, batchsize):
    path = str(tmp_path_factory.mktemp("x") / "x.tar")
    Path(path).write_bytes(plain(files))

    def make():
        dataset = tarmac.WebDataset([path, path], repeated="keep", shardshuffle=2).shuffle(3)
        return dataset.listed(batchsize)

    whole = make()
    before = list(islice(whole, step))
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = make()
    resumed.load_state_dict(state)
    everything = list(make())
    if len(before) < len(everything):
        assert list(resumed) == everything[len(before) :]


@law
@given(files=repeated(), streamed=st.booleans())
def test_copies_with_new_keys_have_the_same_fields(tmp_path_factory, files, streamed):
    folder = tmp_path_factory.mktemp("x")
    path = folder / ("x.tar.gz" if streamed else "x.tar")
    path.write_bytes(gzip.compress(plain(files), 1) if streamed else plain(files))
    expected = [fields for _, fields in map(brief, tarmac.read(str(path), repeated="keep"))]
    output = folder / "y-{i}.tar"
    tarmac.copy(
        [str(path)] * 2, str(output), repeated="keep", rekey="{i:09d}", max_samples=5, jobs=1, progress=False
    )
    shards = sorted(map(str, folder.glob("y-*.tar")), key=lambda name: int(name[:-4].rpartition("-")[2]))
    assert [brief(sample) for sample in tarmac.read(shards)] == [
        (f"{number:09d}", fields) for number, fields in enumerate(expected * 2)
    ]


@law
@given(files=repeated(), key=st.sampled_from(sorted(LAYOUTS)))
def test_parts_of_samples_are_refused_by_every_reader(tmp_path_factory, files, key):
    """A part of a sample at the end of a shard is an error, and its whole samples were yielded before."""
    folder = tmp_path_factory.mktemp("x")
    path = str(folder / "x.tar")
    seen = any(name.startswith(f"{key}.") for name, _ in files)
    part = (
        [("z.txt", b""), (f"{key}.part", b"")] if seen else [("z.txt", b""), ("c.txt", b""), ("z.cls", b"")]
    )
    Path(path).write_bytes(plain([*files, *part]))
    for dataset in (tarmac.read(path, repeated="keep"), wds.WebDataset(path, shardshuffle=False)):
        with pytest.raises(SplitSample):
            list(dataset)
    with pytest.raises(SplitSample):
        tarmac.Dataset(path, repeated="keep")
    with pytest.raises(SplitSample):
        IndexedTarSamples(path=path)
    assert not tarmac.check(path, repeated="keep", jobs=1, progress=False).ok
    # A handler that continues drops all samples of that key from a local shard.
    bad = key if seen else "z"
    dataset = wds.WebDataset(path, shardshuffle=False, handler=wds.ignore_and_continue, empty_check=False)
    assert bad not in [sample["__key__"] for sample in dataset]
    Path(f"{path}.gz").write_bytes(gzip.compress(Path(path).read_bytes(), 1))
    stream = wds.WebDataset(f"{path}.gz", shardshuffle=False, handler=wds.ignore_and_continue)
    with pytest.warns(PartialSamples):
        assert bad in [sample["__key__"] for sample in stream]


def test_damage_is_detected():
    data = pack("a.x", "a.y", "b.x", "a.y", "a.x", "a.x", "a.y")

    def reader(content):
        return group_members(read_members(content), "x.tar", KEEP)

    expect_no_silence(reader, data, cuts(data, 128))
    headers = [(offset, offset + 512) for offset in header_offsets(data)]
    expect_no_silence(reader, data, bit_flips(data, headers, 7))


# Verbs and their messages


@pytest.fixture
def shard(folder):
    """Write a shard whose samples repeat, as `tarscat a.tar a.tar` does."""
    (folder / "x.tar").write_bytes(pack(*["a.cls", "a.txt", "b.cls", "b.txt"] * 2))
    return "x.tar"


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return done.value.code or 0, shown.out, shown.err


COMMANDS = {
    "copy": "copy {} -o y.tar",
    "sort": "sort {} --by key -o y.tar",
    "map": "map {} -c 'cat sample.txt' -o y.tar",
    "export": "export {} --to jsonl --fields txt -o y.jsonl",
    "index": "index {} -o y.json",
    "check": "check {}",
    "show": "show {}",
    "audit": "audit {} --batch-size 1 --step 1",
}


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.processes
def test_every_verb_reads_repeated_samples(shard, capsys, verb):
    command = shlex.split(COMMANDS[verb].format(shard))
    if verb not in ("check", "show", "audit"):
        command += ["-j", "1"]
    status, out, err = run(capsys, *command)
    assert status
    assert "--repeated keep" in out + err
    assert "--rekey" in out + err
    keys = ["--rekey", "{key}-{i}"] if verb in ("copy", "sort", "map") else []
    status, out, err = run(capsys, *command, "--repeated", "keep", *keys)
    assert status == 0, err
    if verb in ("copy", "sort", "map"):
        order = "aabb" if verb == "sort" else "abab"
        keys = [f"{key}-{number}" for number, key in enumerate(order)]
        assert [sample["__key__"] for sample in tarmac.read("y.tar")] == keys
    elif verb == "export":
        lines = Path("y.jsonl").read_text().splitlines()
        assert [json.loads(line)["__key__"] for line in lines] == list("abab")
    elif verb == "index":
        assert list(tarmac.Dataset("y.json").keys()) == list("abab")
    else:
        assert {"check": "4 samples", "show": "b\tcls", "audit": "1\t0\t"}[verb] in out


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_the_hint_of_a_repeated_sample_works(shard, capsys, name):
    Path("x.tar.gz").write_bytes(gzip.compress(Path(shard).read_bytes(), 1))
    with pytest.raises(RepeatedSample) as caught:
        list(tarmac.read(name))
    hint = str(caught.value)
    command = re.search(r"tarmac (copy .*?'\S+')", hint)[1]
    status, _, err = run(capsys, *shlex.split(command), name, "-o", "y.tar")
    assert status == 0, err
    assert [sample["__key__"] for sample in tarmac.read("y.tar")] == [f"{i:09d}" for i in range(4)]
    argument, value = re.search(r"`(\w+)` (\w+) reads both", hint).groups()
    assert len(list(tarmac.read(name, **{argument: value}))) == 4


def test_repeated_keys_are_not_written(shard):
    for sources in ("x.tar", ["x.tar", "x.tar"]):
        with pytest.raises(BadName, match="--rekey"):
            tarmac.copy(sources, "y.tar", repeated="keep", jobs=1, progress=False)
    assert not Path("y.tar").exists()


def test_sort_refuses_repetitions_in_another_order_with_a_hint(folder, capsys):
    (folder / "x.tar").write_bytes(pack("a.x", "a.y", "b.x", "a.y", "a.x"))
    status, _, err = run(capsys, "sort", "x.tar", "--by", "key", "-o", "y.tar")
    assert status
    assert "--repeated keep" in err
    status, _, err = run(
        capsys, "sort", "x.tar", "--by", "key", "-o", "y.tar", "--repeated", "keep", "--rekey", "{i}"
    )
    assert status == 0, err
    (folder / "x.tar").write_bytes(pack("a.x", "a.y", "b.x", "a.x"))
    status, _, err = run(capsys, "sort", "x.tar", "--by", "key", "-o", "z.tar", "--repeated", "keep")
    assert status
    assert "--repair" in err
    assert run(capsys, "check", "x.tar", "--repair", "-o", "fixed/")[0] == 1  # a sample is lost, and reported
    assert [sample["__key__"] for sample in tarmac.read("fixed/x.tar")] == ["b"]


def test_a_strict_index_serves_both(folder):
    """Without repeated samples, an index beside the shard is not built again for `repeated="keep"`."""
    (folder / "x.tar").write_bytes(pack("a.x", "b.x"))
    tarmac.index("x.tar", jobs=1, progress=False)
    tarmac.copy("x.tar", "y.tar", repeated="keep", jobs=1, progress=False)
    assert not list((folder / "home").rglob("*.arrow"))


def test_other_indexes_are_not_used_for_strict_verbs(shard, folder):
    tarmac.copy(shard, "y.tar", repeated="keep", rekey="{i}", jobs=1, progress=False)
    with pytest.raises(RepeatedSample):
        tarmac.copy(shard, "z.tar", rekey="{i}", jobs=1, progress=False)


def test_a_checked_shard_is_checked_again_without_repetitions(shard):
    options = {"ledger": "ledger", "jobs": 1, "progress": False}
    assert tarmac.check(shard, repeated="keep", **options).ok
    with pytest.raises(tarmac.errors.JobMismatch):
        tarmac.check(shard, **options)


def test_equal_batches_count_repeated_samples(shard):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = tarmac.WebDataset(shard, repeated="keep").listed(2).with_equal_batches(2)
        assert [[sample["__key__"] for sample in batch] for batch in dataset] == [["a", "b"], ["a", "b"]]
