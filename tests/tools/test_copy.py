"""Copy: every selection, order and division into shards, from and to any store, through any accident."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import tarmac
from harness.crash import Forked, survive
from harness.faultfs import Fault, faulty
from harness.servers import required, seaweed_s3
from tarmac import copy
from tarmac.errors import HookFailed, JobMismatch, MissingField, TarmacError, Truncated, UsageError
from tarmac.indexing.manifest import write_manifest
from tarmac.storage import StorageOptions
from tools.shards import content, files, keys, make

KILLS = 10 * int(os.environ.get("TARMAC_TORTURE", "1"))


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    return make(tmp_path_factory.mktemp("copy"), 10, 7, 20)


@pytest.fixture
def packed(urls, tmp_path):
    """The same shards, compressed, so that they can only be read from start to end."""
    paths = [str(tmp_path / f"{number}.tar.gz") for number in range(len(urls))]
    for url, path in zip(urls, paths, strict=True):
        copy(url, path)
    return paths


@pytest.fixture(scope="module")
def store():
    with required(seaweed_s3()) as server:
        server.make_bucket("copies")
        yield StorageOptions(config=server.config())


def copied(sources, folder, name="x-{i:03d}.tar", **options):
    """Copy, and return the keys of all output shards."""
    copy(sources, f"{folder}/out/{name}", **{"jobs": 1, "overwrite": True, **options})
    return keys(f"{folder}/out/*.tar")


def test_concatenate_and_split(urls, tmp_path):
    report = copy(urls, f"{tmp_path}/x-{{i:03d}}.tar", max_samples=8, jobs=1)
    assert (report.units, report.read, report.written) == (5, 37, 37)
    assert content(f"{tmp_path}/*.tar") == content(*urls)


def test_a_shuffle_is_complete_and_depends_on_the_seed_alone(urls, tmp_path):
    one = copied(urls, tmp_path, max_samples=8, shuffle=True, seed=3)
    assert Counter(one) == Counter(keys(*urls))
    assert len({key.partition("/")[0] for key in one[:8]}) == 3
    copied(urls, tmp_path / "b", max_samples=8, shuffle=True, seed=3, jobs=2)
    assert files(tmp_path / "out") == files(tmp_path / "b" / "out")
    assert copied(urls, tmp_path / "c", max_samples=8, shuffle=True, seed=4) != one


def test_bytes_do_not_depend_on_the_number_of_processes(urls, tmp_path):
    for jobs in (1, 2, 3):
        copied(urls, tmp_path / str(jobs), max_bytes=200, shuffle=True, jobs=jobs)
    one, two, three = (files(tmp_path / str(jobs) / "out") for jobs in (1, 2, 3))
    assert one == two == three
    assert len(one) > 3


def test_splits(urls, tmp_path):
    split = {"train": 0.8, "val": 0.2}
    report = copy(urls, f"{tmp_path}/{{split}}-{{i}}.tar", max_samples=10, split=split)
    train, val = keys(f"{tmp_path}/train-*.tar"), keys(f"{tmp_path}/val-*.tar")
    assert sorted([*train, *val]) == sorted(keys(*urls))
    assert report.written == 37
    assert len(train) > len(val) > 0
    with pytest.raises(UsageError, match="split"):
        copy(urls, f"{tmp_path}/x-{{i}}.tar", split=split)
    with pytest.raises(UsageError, match="split"):
        copy(urls, f"{tmp_path}/{{split}}-{{i}}.tar")


def test_one_split(urls, packed, tmp_path):
    options = {"split": {"train": 0.6, "val": 0.4}, "only": "val"}
    val = copied(urls, tmp_path, "{split}.tar", **options)
    assert 0 < len(val) < 37
    assert copied(urls, tmp_path / "b", "x.tar", **options) == val
    assert copied(packed, tmp_path / "c", "x.tar", **options) == val
    with pytest.raises(UsageError, match="split"):
        copy(f"pipe:cat {urls[0]}", f"{tmp_path}/{{split}}-{{i}}.tar", **options)


def test_interleaving_does_not_depend_on_how_shards_are_read(urls, packed, tmp_path):
    interleaved = copied(urls, tmp_path, interleave=2)
    assert interleaved[:4] == ["s0/000", "s1/000", "s0/001", "s1/001"]
    assert copied(packed, tmp_path / "b", interleave=2) == interleaved
    selected = ["s0/001", "s1/001", "s0/002", "s1/002", "s2/001", "s2/002"]
    listed = keys(*urls)[::3]
    for number, sources in enumerate((urls, packed)):
        folder = tmp_path / str(number)
        assert copied(sources, folder, interleave=2, slice_shard=slice(1, 3)) == selected
        assert sorted(copied(sources, folder, interleave=2, keys=listed)) == listed
    assert copied(urls, tmp_path / "c", interleave=2, slice=slice(9, 12)) == ["s0/009", "s1/000", "s1/001"]
    with pytest.raises(UsageError, match="`only`"):  # the slice would have to come last
        copied(packed, tmp_path / "d", interleave=2, slice=slice(9, 12))


def test_mixtures(urls, tmp_path):
    sources = [urls[2], urls[:2]]
    mixed = copied(sources, tmp_path, weights=(2, 1), until="first")
    assert Counter(key.startswith("s2") for key in mixed) == {True: 20, False: 10}
    everything = copied(sources, tmp_path / "b", weights=(2, 1))
    assert Counter(everything) == Counter(keys(*urls))
    assert copied(sources, tmp_path / "c", weights=(2, 1), seed=1) != everything
    with pytest.raises(UsageError, match="weights"):
        copied(urls, tmp_path, weights=(2, 1))
    with pytest.raises(UsageError, match="slice"):
        copied(urls[:2], tmp_path, weights=(1, 1), slice=slice(6))


def test_each_shard_by_itself(urls, tmp_path):
    copied(urls, tmp_path, "", fields={"label": "cls"}, jobs=2)
    assert sorted(files(tmp_path / "out")) == [os.path.basename(url) for url in urls]
    assert content(f"{tmp_path}/out/in-1.tar")[3] == {"__key__": "s1/003", "label": b"3"}


def test_compressed_shards_are_streamed(urls, packed, tmp_path):
    assert copied(packed, tmp_path, max_samples=9, slice=slice(3, 30)) == keys(*urls)[3:30]
    copied(packed, tmp_path / "each", "")
    assert content(f"{tmp_path}/each/out/*.tar") == content(*urls)
    with pytest.raises(UsageError, match="`only`"):
        copied(packed, tmp_path / "c", "{split}-{i}.tar", split={"a": 0.5, "b": 0.5})
    with pytest.raises(UsageError, match="`only`"):
        copied([packed], tmp_path / "c", weights=(1.0,))
    with pytest.raises(UsageError, match="dry_run"):
        copied(packed, tmp_path / "d", dry_run=True)
    assert not (tmp_path / "d").exists()


def test_streams_are_shuffled_in_a_buffer(urls, packed, tmp_path):
    every = keys(*urls)
    small, large, default = (
        copied(packed, tmp_path, shuffle=True, **options) for options in ({"buffer": 2}, {"buffer": 100}, {})
    )
    assert sorted(small) == sorted(large) == sorted(every)
    assert all(position >= every.index(key) - 2 for position, key in enumerate(small))
    assert any(position < every.index(key) - 2 for position, key in enumerate(large))
    assert default == large
    assert copied(packed, tmp_path, shuffle=True, seed=1) != large


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"shuffle": True, "interleave": 2}, "interleave"),
        ({"buffer": 0}, "buffer"),
        ({"interleave": -1}, "interleave"),
        ({"weights": (1.0, -1.0)}, "weights"),
        ({"until": "last"}, "until"),
    ],
)
def test_invalid_orders(urls, tmp_path, options, field):
    with pytest.raises(UsageError, match=field):
        copied(urls, tmp_path, **options)


def test_unknown_keywords_are_rejected(urls, tmp_path):
    with pytest.raises(TypeError, match="'max_samples'"):
        copy(urls, f"{tmp_path}/x.tar", max_sample=3)


def test_damage_is_an_error_and_nothing_is_published(urls, tmp_path):
    torn = tmp_path / "torn.tar"
    torn.write_bytes(Path(urls[0]).read_bytes()[:5000])
    with pytest.raises(Truncated):
        copied([str(torn)], tmp_path)
    assert not (tmp_path / "out").exists() or files(tmp_path / "out") == {}


def test_from_and_to_a_store(urls, tmp_path, store):
    remote = "s3://copies/a/x-{i}.tar"
    copy(urls, remote, max_samples=10, storage=store, jobs=1)
    assert copy(urls, remote, max_samples=10, storage=store, jobs=1).kept == 4
    assert copied("s3://copies/a/x-*.tar", tmp_path, max_samples=11, storage=store) == keys(*urls)
    copy("s3://copies/a/x-*.tar", "s3://copies/b/", storage=store, jobs=1)
    samples = list(tarmac.read("s3://copies/b/x-*.tar", storage=store))
    assert [each["__key__"] for each in samples] == keys(*urls)


@pytest.mark.parametrize("source", ["indexed", "stream"])
def test_killed_at_any_moment_and_run_again(source, tmp_path):
    urls = make(tmp_path, 40, 40)
    target, options = f"{tmp_path}/out/x-{{i:03d}}.tar", {"max_samples": 3, "jobs": 1}
    if source == "stream":
        urls = [str(tmp_path / "in-0.tar.gz"), str(tmp_path / "in-1.tar.gz")]
        for number, url in enumerate(urls):
            copy(str(tmp_path / f"in-{number}.tar"), url)
        target, options = f"{tmp_path}/out/", {"index": True, "jobs": 1}
    expected = keys(f"{tmp_path}/in-?.tar")

    def check():
        copy(urls, target, **options)
        assert keys(f"{tmp_path}/out/*.tar") == expected
        for path in (tmp_path / "out").iterdir():
            path.unlink() if path.is_file() else shutil.rmtree(path)

    survive(KILLS, lambda seed: Forked(lambda: copy(urls, target, **options)).crash(seed, 0.05), check)
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_file()]


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_inputs_are_never_overwritten(tmp_path, suffix):
    """Not even with `overwrite`: the second shard would be made from what the first has replaced."""
    sources = []
    for url in make(tmp_path, 6, 6):
        sources.append(url.replace("in-", "x-").replace("tar", suffix))
        copy(url, sources[-1])
    before = files(tmp_path)
    for output, options in ((f"x-{{i}}.{suffix}", {"max_samples": 3}), (f"sub/../{{name}}.{suffix}", {})):
        with pytest.raises(UsageError, match=f"x-0.{suffix}"):
            copy(sources, f"{tmp_path}/{output}", overwrite=True, **options)
    assert files(tmp_path) == before


def failure(work):
    """Return the error that the work raises, if any."""
    try:
        work()
    except TarmacError as error:
        return error
    return None


def test_a_disk_that_is_full_at_any_moment(urls, tmp_path):
    for number in range(1, 40, 3):
        folder = tmp_path / str(number)

        def work(folder=folder):
            copy(urls, f"{folder}/x-{{i:03d}}.tar", max_samples=8, jobs=1)

        fault = Fault(number, errno.ENOSPC, ("write", "fsync", "link"))
        with faulty(fault, folder):
            if (error := failure(work)) is None:
                assert not fault.fired
            else:
                assert "space" in str(error) or "full" in str(error)
        work()
        assert keys(f"{folder}/*.tar") == keys(*urls)


def test_streams_without_a_name_or_a_count(urls, packed, tmp_path):
    with pytest.raises(UsageError, match=r"\{name\}"):
        copy("-", f"{tmp_path}/out/")
    with pytest.raises(UsageError, match="rekey"):
        copied(packed[:2], tmp_path, "", rekey="{i:09d}")
    assert copied(packed[:2], tmp_path, "", rekey="{key}-x") == [f"{key}-x" for key in keys(*urls[:2])]
    assert copied(packed[:1], tmp_path / "b", "", rekey="{i:02d}") == [f"{n:02d}" for n in range(10)]


def test_outputs_of_a_previous_run_are_removed_with_their_indexes(urls, tmp_path):
    output = f"{tmp_path}/x-{{i:03d}}.tar"
    assert copy(urls, output, max_samples=10, jobs=1, index=True).units == 4
    report = copy(urls, output, max_samples=20, jobs=1, overwrite=True, index=True)
    assert (report.units, report.removed_outputs) == (2, [f"{tmp_path}/x-00{n}.tar" for n in (2, 3)])
    names = sorted(path.name for path in tmp_path.glob("x-*"))
    assert names == ["x-000.tar", "x-000.tar.arrow", "x-001.tar", "x-001.tar.arrow"]
    assert keys(f"{tmp_path}/x-*.tar") == keys(*urls)


def test_hints_for_names_and_keys_that_repeat(urls, tmp_path):
    with pytest.raises(TarmacError, match=r"out-\{i:06d\}\.tar as the output"):
        copy(urls, f"{tmp_path}/out.tar", max_samples=10, jobs=1)
    again = f"{tmp_path}/again.tar"
    copy(urls[:1], again, jobs=1)
    with pytest.raises(TarmacError, match="--rekey"):
        copy([urls[0], again], f"{tmp_path}/twice.tar", jobs=1)
    copy([urls[0], again], f"{tmp_path}/twice.tar", jobs=1, rekey="{i:09d}", overwrite=True)


@pytest.mark.parametrize("name", ["packed", "a/b"])
def test_outputs_that_may_be_directories(urls, tmp_path, name):
    with pytest.raises(UsageError, match=rf"{name}\.tar or .*{name}/"):
        copy(urls, f"{tmp_path}/{name}", jobs=1)
    assert copy(urls, f"{tmp_path}/{name}/", jobs=1).units == len(urls)
    assert copy(urls, f"{tmp_path}/{name}.tar", jobs=1).units == 1


def test_a_lost_index_is_rebuilt(urls, tmp_path):
    def run():
        return copy(urls, f"{tmp_path}/x-{{i}}.tar", max_samples=20, index=True, jobs=1).done

    assert (run(), run()) == (2, 0)
    next(tmp_path.glob("x-1.tar.*")).unlink()
    assert run() == 1
    assert len(list(tmp_path.glob("x-*.tar.*"))) == 2


def test_a_manifest_as_the_source(tmp_path, monkeypatch):
    """Its indexes are used, wherever they are, and its shards are names, not patterns."""
    shards = make(tmp_path, 3, 4, name="a[{}].tar")
    copy([tmp_path / "a[0].tar", tmp_path / "a[1].tar"], f"{tmp_path}/m/", manifest=f"{tmp_path}/all.json")
    (tmp_path / "indexes").mkdir()
    for index in (tmp_path / "m").glob("*.arrow"):
        index.rename(tmp_path / "indexes" / index.name)
    manifest = tarmac.read_manifest(f"{tmp_path}/all.json")
    moved = [
        replace(shard, index=f"{tmp_path}/indexes/{os.path.basename(shard.url)}.arrow")
        for shard in manifest.shards
    ]
    write_manifest(replace(manifest, shards=moved), f"{tmp_path}/moved.json")
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    assert copied(f"{tmp_path}/moved.json", tmp_path) == keys(*map(glob.escape, shards))
    assert copied(replace(manifest, shards=moved), tmp_path / "b") == keys(*map(glob.escape, shards))
    assert not list((tmp_path / "home").rglob("*.arrow"))


def test_a_dry_run_writes_nothing(urls, tmp_path):
    output = f"{tmp_path}/out/x-{{i}}.tar"
    report = copy(urls, output, max_samples=10, dry_run=True)
    assert (report.units, report.kept, report.written) == (4, 0, 0)
    assert not (tmp_path / "out").exists()
    copy(urls, output, max_samples=10, jobs=1)
    assert copy(urls, output, max_samples=10, dry_run=True).kept == 4


def test_other_inputs_or_options_are_another_job(urls, tmp_path):
    sources, output = make(tmp_path, 6, 6), f"{tmp_path}/out/x-{{i}}.tar"
    copy(sources, output, max_samples=6, jobs=1)
    for others, options in (
        (sources[:1], {}),
        (sources, {"rekey": "{key}-x"}),
        (sources, {"where": "cls = 1"}),
    ):
        with pytest.raises(JobMismatch):
            copy(others, output, max_samples=6, jobs=1, **options)
    data = bytearray((tmp_path / "in-0.tar").read_bytes())  # the same offsets, other bytes
    data[data.index(b"text 3")] = ord("T")
    (tmp_path / "in-0.tar").write_bytes(data)
    with pytest.raises(JobMismatch, match="inputs"):
        copy(sources, output, max_samples=6, jobs=1)
    copy(sources, output, max_samples=6, jobs=1, overwrite=True)
    assert content(f"{tmp_path}/out/*.tar") == content(*sources)


def test_a_missing_output_is_written_again(urls, tmp_path):
    output = f"{tmp_path}/x-{{i}}.tar"
    copy(urls, output, max_samples=10, jobs=1)
    (tmp_path / "x-1.tar").unlink()
    report = copy(urls, output, max_samples=10, jobs=1)
    assert (report.done, report.kept) == (1, 3)
    assert content(f"{tmp_path}/x-*.tar") == content(*urls)


def test_files_of_others_are_not_replaced(urls, tmp_path):
    (tmp_path / "x-2.tar").write_bytes(b"mine")
    for sources in (urls, [f"pipe:cat {url}" for url in urls]):
        with pytest.raises(UsageError, match=r"x-2\.tar"):
            copy(sources, f"{tmp_path}/x-{{i}}.tar", max_samples=10, jobs=1)
        assert files(tmp_path) == {"x-2.tar": b"mine"}


def test_member_names_with_a_leading_dot_slash(tmp_path):
    """`tar cf x.tar .` writes such names."""
    path = str(tmp_path / "x.tar")
    with tarfile.open(path, "w") as archive:
        for name in ("./a/0.txt", "./b/1.txt"):
            archive.addfile(tarfile.TarInfo(name))
    assert copied(path, tmp_path) == ["a/0", "b/1"]
    assert copied(f"pipe:cat {path}", tmp_path) == ["a/0", "b/1"]


def test_samples_without_a_field(urls, tmp_path):
    with pytest.raises(MissingField, match="s0/000"):
        copied(urls[0], tmp_path, fields=["nope"])
    report = copy(urls[0], f"{tmp_path}/x.tar", fields=["nope"], missing="skip")
    assert (report.read, report.written, report.dropped) == (10, 0, 10)


@pytest.mark.parametrize(("format", "magic"), [("gz", b"\x1f\x8b"), ("zst", b"\x28\xb5\x2f\xfd")])
def test_compression(urls, tmp_path, format, magic):
    assert copied(urls, tmp_path, "x.tar", compress=format) == keys(*urls)
    assert (tmp_path / "out" / "x.tar").read_bytes().startswith(magic)


def test_a_shard_is_deleted_only_after_its_command(urls, tmp_path):
    output = f"{tmp_path}/x.tar"
    with pytest.raises(HookFailed, match=r"x\.tar"):
        copy(urls[0], output, delete_after=True, index=True, post_cmd="exit 5")
    assert sorted(files(tmp_path)) == ["x.tar", "x.tar.arrow"]
    copy(
        urls[0],
        output,
        delete_after=True,
        index=True,
        post_cmd=f"cp {{path}} {tmp_path}/kept.tar",
        overwrite=True,
    )
    assert sorted(files(tmp_path)) == ["kept.tar"]
    assert keys(f"{tmp_path}/kept.tar") == keys(urls[0])


def test_paths_are_accepted_wherever_urls_are(tmp_path):
    make(tmp_path, 3)
    report = tarmac.copy(tmp_path / "in-0.tar", tmp_path / "out.tar", manifest=str(tmp_path / "m.json"))
    assert report.outputs == [str(tmp_path / "out.tar")]
    assert tarmac.export(tmp_path / "m.json", tmp_path / "out.jsonl", fields=["txt"]).written == 3


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"split": "train=0.9,val=0.1"}, "split"),
        ({"fields": "txt"}, "fields"),
        ({"slice": (0, 3)}, "slice"),
        ({"jobs": 0}, "jobs"),
    ],
)
def test_arguments_of_the_wrong_type_are_usage_errors(tmp_path, arguments, field):
    make(tmp_path, 3)
    with pytest.raises(UsageError, match=f"`{field}`"):
        tarmac.copy(f"{tmp_path}/in-*.tar", f"{tmp_path}/{{split}}-{{i}}.tar", **arguments)


def test_a_dataset_is_not_a_source_of_shards(tmp_path):
    make(tmp_path, 3)
    with pytest.raises(UsageError, match="`sources`"):
        tarmac.copy(tarmac.Dataset(f"{tmp_path}/in-*.tar"), f"{tmp_path}/out.tar")
