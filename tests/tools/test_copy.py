"""Copying: every way to choose, order and cut, from and to anywhere, through any accident."""

from __future__ import annotations

import errno
import os
import tarfile
from collections import Counter
from pathlib import Path

import pytest

import tarmac
from harness.crash import Forked, survive
from harness.faultfs import Fault, faulty
from harness.servers import required, seaweed_s3
from tarmac.errors import TarmacError, Truncated, UrlError
from tarmac.jobs.engines.local import LocalEngine
from tarmac.storage import StorageOptions
from tarmac.tools.copy import Order_, copy
from tarmac.tools.output import Output
from tarmac.tools.rewrite import Run
from tarmac.tools.select import Select
from tools.shards import RUN, content, files, keys, make

KILLS = 10 * int(os.environ.get("TARMAC_TORTURE", "1"))


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    return make(tmp_path_factory.mktemp("copy"), 10, 7, 20)


@pytest.fixture(scope="module")
def store():
    with required(seaweed_s3()) as server:
        server.make_bucket("copies")
        yield StorageOptions(config=server.config())


def out(tmp_path, name="x-{i:03d}.tar", **more):
    return Output(str(tmp_path / "out" / name), **more)


def made(tmp_path):
    return keys(f"{tmp_path}/out/*.tar")


def test_cat_and_split(urls, tmp_path):
    report = copy(urls, out(tmp_path, max_samples=8), RUN)
    assert (report.units, report.read, report.written) == (5, 37, 37)
    assert content(f"{tmp_path}/out/*.tar") == content(*urls)


def test_shuffled_as_a_whole_and_the_same_again(urls, tmp_path):
    copy(urls, out(tmp_path, max_samples=8), RUN, ordering=Order_(shuffle=True, seed=3))
    copy(urls, out(tmp_path / "b", max_samples=8), Run(LocalEngine(2)), ordering=Order_(shuffle=True, seed=3))
    assert files(tmp_path / "out") == files(tmp_path / "b" / "out")
    assert Counter(made(tmp_path)) == Counter(keys(*urls))
    assert len({key.partition("/")[0] for key in made(tmp_path)[:8]}) == 3
    copy(urls, out(tmp_path / "c", max_samples=8), RUN, ordering=Order_(shuffle=True, seed=4))
    assert made(tmp_path / "c") != made(tmp_path)


def test_parts_beside_each_other(urls, tmp_path):
    where = out(tmp_path, "{part}-{i}.tar", max_samples=10)
    report = copy(urls, where, RUN, select=Select(part="train=0.8,val=0.2"))
    train, val = keys(f"{tmp_path}/out/train-*.tar"), keys(f"{tmp_path}/out/val-*.tar")
    assert sorted([*train, *val]) == sorted(keys(*urls))
    assert report.written == 37
    assert len(train) > len(val) > 0
    with pytest.raises(UrlError, match=r"--part needs \{part\}"):
        copy(urls, out(tmp_path), RUN, select=Select(part="train=0.8,val=0.2"))
    with pytest.raises(UrlError, match=r"--part needs \{part\}"):
        copy(urls, where, RUN)


def test_interleaved_from_files_and_from_streams(urls, tmp_path):
    ordering = Order_(interleave=2)
    copy(urls, out(tmp_path), RUN, ordering=ordering)
    assert made(tmp_path)[:4] == ["s0/000", "s1/000", "s0/001", "s1/001"]
    packed = []
    for url in urls:
        packed.append(str(tmp_path / (os.path.basename(url) + ".gz")))
        copy(url, Output(packed[-1]), RUN)
    copy(packed, out(tmp_path / "b"), RUN, ordering=ordering)
    assert made(tmp_path / "b") == made(tmp_path)
    for number, sources in enumerate((urls, packed)):
        copy(sources, out(tmp_path / str(number)), RUN, select=Select(slice_shard="1:3"), ordering=ordering)
        found = ["s0/001", "s1/001", "s0/002", "s1/002", "s2/001", "s2/002"]
        assert made(tmp_path / str(number)) == found
    copy(urls, out(tmp_path / "c"), RUN, select=Select(slice="9:12"), ordering=ordering)
    assert made(tmp_path / "c") == ["s0/009", "s1/000", "s1/001"]
    with pytest.raises(UrlError, match="from front to back"):  # where the slice could only come last
        copy(packed, out(tmp_path / "d"), RUN, select=Select(slice="9:12"), ordering=ordering)


def test_mixed_by_weights(urls, tmp_path):
    ordering = Order_(weights=(2.0, 1.0), until="first")
    copy([urls[2], urls[:2]], out(tmp_path), RUN, ordering=ordering)
    found = Counter(key.startswith("s2") for key in made(tmp_path))
    assert found == {True: 20, False: 10}
    copy([urls[2], urls[:2]], out(tmp_path / "b"), RUN, ordering=Order_(weights=(2.0, 1.0)))
    assert Counter(made(tmp_path / "b")) == Counter(keys(*urls))
    with pytest.raises(UrlError, match="2 weights"):
        copy(urls, out(tmp_path), RUN, ordering=ordering)


def test_each_shard_by_itself(urls, tmp_path):
    copy(urls, Output(f"{tmp_path}/out/"), Run(LocalEngine(2)), select=Select(fields="label=cls"))
    assert sorted(files(tmp_path / "out")) == [os.path.basename(url) for url in urls]
    assert content(f"{tmp_path}/out/in-1.tar")[3] == {"__key__": "s1/003", "label": b"3"}


def test_compressed_shards_are_streams(urls, tmp_path):
    packed = [f"{tmp_path}/{number}.tar.gz" for number in range(3)]
    for url, name in zip(urls, packed, strict=True):
        copy(url, Output(name), RUN)
    copy(packed, out(tmp_path, max_samples=9), RUN, select=Select(slice="3:30"))
    assert made(tmp_path) == keys(*urls)[3:30]
    copy(packed, Output(f"{tmp_path}/each/"), RUN)
    assert content(f"{tmp_path}/each/*.tar") == content(*urls)
    copy(packed, out(tmp_path / "b"), RUN, ordering=Order_(shuffle=True, buffer=10, seed=1))
    assert Counter(made(tmp_path / "b")) == Counter(keys(*urls))
    assert made(tmp_path / "b") != keys(*urls)
    with pytest.raises(UrlError, match="from front to back"):
        copy(packed, out(tmp_path / "c", "{part}-{i}.tar"), RUN, select=Select(part="a=0.5,b=0.5"))
    with pytest.raises(UrlError, match="from front to back"):
        copy([packed], out(tmp_path / "c"), RUN, ordering=Order_(weights=(1.0,)))
    with pytest.raises(UrlError, match="--dry-run"):
        copy(packed, out(tmp_path / "d"), Run(LocalEngine(), dry=True))
    assert not (tmp_path / "d").exists()


def test_orders_exclude_each_other():
    for flags in ({"shuffle": True, "interleave": 2}, {"buffer": 0}, {"weights": (1.0, -1.0)}):
        with pytest.raises(UrlError):
            Order_(**flags)


def test_damage_is_an_error_and_nothing_is_published(urls, tmp_path):
    torn = tmp_path / "torn.tar"
    torn.write_bytes(Path(urls[0]).read_bytes()[:5000])
    with pytest.raises(Truncated):
        copy([str(torn)], out(tmp_path), RUN)
    assert not (tmp_path / "out").exists() or files(tmp_path / "out") == {}


def test_from_and_to_a_store(urls, tmp_path, store):
    there = "s3://copies/a/x-{i}.tar"
    select = Select(storage=store)
    copy(urls, Output(there, max_samples=10, storage=store), RUN, select=select)
    report = copy(urls, Output(there, max_samples=10, storage=store), RUN, select=select)
    assert report.kept == 4
    copy("s3://copies/a/x-*.tar", out(tmp_path, max_samples=11), RUN, select=select)
    assert made(tmp_path) == keys(*urls)
    copy("s3://copies/a/x-*.tar", Output("s3://copies/b/", storage=store), RUN, select=select)
    found = list(tarmac.read("s3://copies/b/x-*.tar", storage=store))
    assert [each["__key__"] for each in found] == keys(*urls)


@pytest.mark.parametrize("source", ["indexed", "stream"])
def test_killed_at_any_moment_and_run_again(source, tmp_path):
    urls = make(tmp_path, 40, 40)
    if source == "stream":
        urls = [str(tmp_path / "in-0.tar.gz"), str(tmp_path / "in-1.tar.gz")]
        for number, url in enumerate(urls):
            copy(str(tmp_path / f"in-{number}.tar"), Output(url), RUN)
    where = Output(f"{tmp_path}/out/", index=True) if source == "stream" else out(tmp_path, max_samples=3)
    wanted = keys(f"{tmp_path}/in-?.tar")

    def check():
        copy(urls, where, RUN)
        assert keys(f"{tmp_path}/out/*.tar") == wanted
        for path in (tmp_path / "out").iterdir():
            path.unlink() if path.is_file() else [entry.unlink() for entry in path.iterdir()]

    survive(KILLS, lambda seed: Forked(lambda: copy(urls, where, RUN)).crash(seed, 0.05), check)
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_file()]


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_what_is_read_is_not_replaced_meanwhile(tmp_path, suffix):
    """Not even with --overwrite: the second shard would be made from what the first has replaced."""
    made = []
    for url in make(tmp_path, 6, 6):
        made.append(url.replace("in-", "x-").replace("tar", suffix))
        copy(url, Output(made[-1]), RUN)
    before = files(tmp_path)
    names = Output(f"{tmp_path}/x-{{i}}.{suffix}", max_samples=3, overwrite=True)
    with pytest.raises(UrlError, match="being read"):
        copy(made, names, RUN)
    with pytest.raises(UrlError, match="being read"):
        copy(made, Output(f"{tmp_path}/sub/../{{name}}.{suffix}", overwrite=True), RUN)
    assert files(tmp_path) == before


def failure(work):
    """The error that work ends with, if it does."""
    try:
        work()
    except TarmacError as error:
        return error
    return None


def test_a_disk_that_is_full_at_any_moment(urls, tmp_path):
    for number in range(1, 40, 3):
        folder = tmp_path / str(number)
        fault = Fault(number, errno.ENOSPC, ("write", "fsync", "link"))
        with faulty(fault, folder):
            if (error := failure(lambda where=folder: copy(urls, out(where, max_samples=8), RUN))) is None:
                assert not fault.fired
            else:
                assert "space" in str(error) or "full" in str(error)
        copy(urls, out(folder, max_samples=8), RUN)
        assert made(folder) == keys(*urls)


def test_streams_that_cannot_keep_a_name_or_a_number(urls, tmp_path):
    with pytest.raises(UrlError, match="standard input has no name"):
        copy("-", Output(f"{tmp_path}/out/"), RUN)
    packed = []
    for number in range(2):
        packed.append(str(tmp_path / f"{number}.tar.gz"))
        copy(urls[number], Output(packed[-1]), RUN)
    with pytest.raises(UrlError, match="numbers would come twice"):
        copy(packed, Output(f"{tmp_path}/out/", rekey="{i:09d}"), RUN)
    copy(packed, Output(f"{tmp_path}/out/", rekey="{key}-x"), RUN)
    assert made(tmp_path) == [f"{key}-x" for key in keys(*urls[:2])]
    copy(packed[:1], Output(f"{tmp_path}/one/", rekey="{i:02d}"), RUN)
    assert keys(f"{tmp_path}/one/*.tar") == [f"{number:02d}" for number in range(10)]


def test_what_is_left_of_an_earlier_job_is_told(urls, tmp_path):
    assert copy(urls, out(tmp_path, max_samples=10), RUN).units == 4
    report = copy(urls, out(tmp_path, max_samples=20, overwrite=True), RUN)
    assert (report.units, report.left_over) == (2, [f"{tmp_path}/out/x-00{n}.tar" for n in (2, 3)])


def test_an_index_that_is_lost_is_made_again(urls, tmp_path):
    copy(urls, out(tmp_path, max_samples=20, index=True), RUN)
    assert copy(urls, out(tmp_path, max_samples=20, index=True), RUN).done == 0
    next((tmp_path / "out").glob("x-001.tar.*")).unlink()
    assert copy(urls, out(tmp_path, max_samples=20, index=True), RUN).done == 1
    assert len(list((tmp_path / "out").glob("x-*.tar.*"))) == 2


def test_a_slice_of_a_mixture_is_not_that_of_its_sources(urls, tmp_path):
    with pytest.raises(UrlError, match="--slice with --mix"):
        copy(
            [[url] for url in urls[:2]],
            out(tmp_path),
            RUN,
            select=Select(slice=":6"),
            ordering=Order_(weights=(1.0, 1.0)),
        )


def test_chosen_and_interleaved_alike_from_files_and_from_streams(urls, tmp_path):
    packed = []
    for number, url in enumerate(urls):
        packed.append(str(tmp_path / f"{number}.tar.gz"))
        copy(url, Output(packed[-1]), RUN)
    (tmp_path / "keys").write_text("".join(f"{key}\n" for key in keys(*urls)[::3]))
    select, ordering = Select(keys=str(tmp_path / "keys")), Order_(interleave=2)
    copy(urls, out(tmp_path), RUN, select=select, ordering=ordering)
    copy(packed, Output(f"{tmp_path}/streams.tar"), RUN, select=select, ordering=ordering)
    assert made(tmp_path) == keys(f"{tmp_path}/streams.tar")
    assert len(made(tmp_path)) == 13


def test_shards_of_the_whole_of_a_folder(tmp_path):
    """`tar cf x.tar .` gives every name a ./ in front."""
    path = str(tmp_path / "x.tar")
    with tarfile.open(path, "w") as archive:
        for name in ("./a/0.txt", "./b/1.txt"):
            archive.addfile(tarfile.TarInfo(name))
    copy(path, out(tmp_path), RUN)
    assert made(tmp_path) == ["a/0", "b/1"]
    copy(f"pipe:cat {path}", Output(f"{tmp_path}/y.tar"), RUN)
    assert keys(f"{tmp_path}/y.tar") == ["a/0", "b/1"]


def test_samples_that_are_passed_over_are_counted(urls, tmp_path):
    report = copy(urls[0], out(tmp_path), RUN, select=Select(fields="nope", missing="skip"))
    assert (report.read, report.written, report.dropped) == (10, 0, 10)


def test_one_part_may_be_named_after_itself(urls, tmp_path):
    chosen = Select(part="train=0.6,val=0.4", only="val")
    copy(urls, out(tmp_path, "{part}.tar"), RUN, select=chosen)
    copy(urls, Output(f"{tmp_path}/val.tar"), RUN, select=chosen)
    assert keys(f"{tmp_path}/out/val.tar") == keys(f"{tmp_path}/val.tar") != []
    with pytest.raises(UrlError, match="not cut into parts"):
        copy(f"pipe:cat {urls[0]}", out(tmp_path, "{part}-{i}.tar"), RUN, select=chosen)
