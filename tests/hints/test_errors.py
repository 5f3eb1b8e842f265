"""Follow the hints that belong to classes of errors."""

from __future__ import annotations

import errno
import functools
import gzip
import io
import multiprocessing
import operator
import os
import signal
import tarfile

import pytest

import tarmac
from harness.commands import run
from harness.datasets import write_shards
from harness.faultfs import Fault, faulty
from harness.hints import follows, hinted
from harness.shards import plain, reseal
from tarmac.errors import (
    BadChecksum,
    BadHeader,
    CompressionDamaged,
    DigestMismatch,
    DiskFull,
    IndexDamaged,
    IndexMissing,
    IndexStale,
    JobMismatch,
    NoSamples,
    NotPicklable,
    RepeatedSample,
    SplitSample,
    TrailingData,
    Truncated,
    UnsupportedMember,
    WorkerDied,
)


def keys(source, **options):
    return [sample["__key__"] for sample in tarmac.WebDataset(str(source), **options)]


def damaged_header(kind):
    data = bytearray(plain())
    data[150 if kind is BadChecksum else 257] ^= 1
    if kind is BadHeader:
        reseal(data, 0)
    return bytes(data)


@follows("tarmac check SHARD; download or write the shard again.")
@pytest.mark.parametrize("kind", [BadChecksum, BadHeader])
def test_a_damaged_header(tmp_path, kind):
    shard = tmp_path / "x.tar"
    shard.write_bytes(damaged_header(kind))
    with hinted("tarmac check SHARD; download or write the shard again.", kind):
        keys(shard)
    assert run(["check", str(shard), "-j", "1"]) == 1
    shard.write_bytes(plain())
    assert keys(shard) == ["s0", "s1", "s2"]
    assert run(["check", str(shard), "-j", "1"]) == 0


CUT = (
    "download or write the shard again. To keep its complete samples: tarmac check SHARD --repair -o DIR/, "
    'or read it with tar=tarmac.TarOptions(end="lenient").'
)


@follows(
    "download or write the shard again. To keep its complete samples: tarmac check SHARD --repair -o DIR/, "
    'or read it with tar=tarmac.TarOptions(end="lenient").'
)
def test_a_truncated_shard(tmp_path, capsys):
    shard, repaired, copied = tmp_path / "x.tar", tmp_path / "DIR", tmp_path / "copied.tar"
    shard.write_bytes(plain()[:3000])
    with hinted(CUT, Truncated):
        keys(shard)
    with pytest.warns(tarmac.errors.TruncatedTail):
        assert keys(shard, tar=tarmac.TarOptions(end="lenient")) == ["s0"]
    assert run(["check", str(shard), "--repair", "-o", f"{repaired}/", "-j", "1"]) == 1  # samples were lost
    assert keys(repaired / "x.tar") == ["s0"]
    capsys.readouterr()
    assert run(["copy", str(shard), "-o", str(copied), "-j", "1"]) == 1
    assert "or read it with --tar end=lenient." in capsys.readouterr().err
    assert run(["copy", str(shard), "-o", str(copied), "--tar", "end=lenient", "-j", "1"]) == 0
    assert keys(copied) == ["s0"]
    shard.write_bytes(plain())
    assert keys(shard) == ["s0", "s1", "s2"]


JOINED = (
    "for archives joined with cat: tarmac copy SHARD -o NEW.tar --tar concatenated=true merges them, "
    "or read them with tar=tarmac.TarOptions(concatenated=True)."
)


@follows(
    "for archives joined with cat: tarmac copy SHARD -o NEW.tar --tar concatenated=true merges them, "
    "or read them with tar=tarmac.TarOptions(concatenated=True)."
)
def test_archives_joined_with_cat(tmp_path, capsys):
    shard, new = tmp_path / "x.tar", tmp_path / "NEW.tar"
    shard.write_bytes(plain([("a.txt", b"1")]) + plain([("b.txt", b"2")]))
    with hinted(JOINED, TrailingData):
        keys(shard)
    assert keys(shard, tar=tarmac.TarOptions(concatenated=True)) == ["a", "b"]
    assert run(["copy", str(shard), "-o", str(new), "-j", "1"]) == 1
    assert "or read them with --tar concatenated=true." in capsys.readouterr().err
    assert run(["copy", str(shard), "-o", str(new), "--tar", "concatenated=true", "-j", "1"]) == 0
    assert keys(new) == ["a", "b"]


def sparse_member():
    """A PAX sparse file, as GNU tar writes it: a map of the data, then the data."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("GNUSparseFile.0/a.bin")
        content = b"1\n1024\n4\n".ljust(512, b"\0") + b"data"
        names = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.bin"}
        member.pax_headers = names | {"GNU.sparse.realsize": "1028"}
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@follows("extract and pack the files again as plain members.")
def test_a_sparse_member(tmp_path):
    shard, files = tmp_path / "x.tar", tmp_path / "files"
    shard.write_bytes(sparse_member())
    with hinted("extract and pack the files again as plain members.", UnsupportedMember):
        keys(shard)
    with tarfile.open(shard) as archive:
        archive.extractall(files, filter="data")
    tarmac.pack(files, output=str(tmp_path / "y.tar"), jobs=1)
    (sample,) = tarmac.WebDataset(str(tmp_path / "y.tar"))
    assert sample["bin"] == bytes(1024) + b"data"


@follows("download or write the shard again.")
def test_a_damaged_compression(tmp_path):
    shard, content = tmp_path / "x.tar.gz", gzip.compress(plain())
    for wrong, error in ((content[:-4], CompressionDamaged), (content + b"more", TrailingData)):
        shard.write_bytes(wrong)
        with hinted("download or write the shard again.", error):
            keys(shard)
    shard.write_bytes(content)
    assert keys(shard) == ["s0", "s1", "s2"]


@follows("tarmac sort --by key makes the samples contiguous.")
def test_a_split_sample(tmp_path):
    shard, output = tmp_path / "x.tar", tmp_path / "y.tar"
    shard.write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")]))
    with hinted("tarmac sort --by key makes the samples contiguous.", SplitSample):
        keys(shard)
    assert run(["sort", str(shard), "--by", "key", "-o", str(output), "-j", "1"]) == 0
    assert keys(output) == ["a", "b"]


REPEATED = "`repeated` keep reads both; tarmac copy --repeated keep --rekey '{i:09d}' makes the keys unique."


@follows("`repeated` keep reads both; tarmac copy --repeated keep --rekey '{i:09d}' makes the keys unique.")
def test_a_repeated_sample(tmp_path, capsys):
    shard, output = tmp_path / "x.tar", tmp_path / "y.tar"
    shard.write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3")]))
    with hinted(REPEATED.replace("{i:09d}", "{}"), RepeatedSample):
        keys(shard)
    assert keys(shard, repeated="keep") == ["a", "b", "a"]
    assert run(["show", str(shard)]) == 1
    assert "Try: --repeated keep reads both;" in capsys.readouterr().err
    assert run(["show", str(shard), "--repeated", "keep"]) == 0
    copy = ["copy", str(shard), "-o", str(output), "-j", "1"]
    assert run([*copy, "--repeated", "keep", "--rekey", "{i:09d}"]) == 0
    assert keys(output) == ["000000000", "000000001", "000000002"]


EMPTY = "check the shards, use fewer workers, or pass empty_check=False to WebDataset."


@follows("check the shards, use fewer workers, or pass empty_check=False to WebDataset.")
def test_a_reader_without_samples(tmp_path, monkeypatch):
    empty, full = tmp_path / "empty.tar", tmp_path / "full.tar"
    empty.write_bytes(bytes(1024))
    full.write_bytes(plain())
    with hinted(EMPTY, NoSamples):
        keys(empty)
    assert keys(empty, empty_check=False) == []
    assert run(["check", str(empty), "-j", "1"]) == 0
    monkeypatch.setenv("WORKER", "4")
    monkeypatch.setenv("NUM_WORKERS", "5")
    with hinted(EMPTY, NoSamples):
        keys(full)
    monkeypatch.setenv("WORKER", "0")
    monkeypatch.setenv("NUM_WORKERS", "1")
    assert keys(full) == ["s0", "s1", "s2"]


@follows("free space and run again; no part of this file was published.")
def test_a_full_disk(tmp_path):
    def write():
        with tarmac.TarWriter(tmp_path / "x.tar") as writer:
            writer.write({"__key__": "a", "txt": "1"})

    with (
        faulty(Fault(1, errno.ENOSPC, ("write",)), tmp_path),
        hinted("free space and run again; no part of this file was published.", DiskFull),
    ):
        write()
    assert not list(tmp_path.glob("*.tar"))
    write()
    assert keys(tmp_path / "x.tar") == ["a"]


@follows("tarmac index SHARDS -o manifest.json")
def test_a_shard_that_is_not_in_the_manifest(tmp_path):
    first, second = write_shards(tmp_path, [2, 3])
    manifest = str(tmp_path / "manifest.json")
    assert run(["index", first, "-o", manifest, "-j", "1"]) == 0
    (bad,) = tarmac.check([first, second], manifest=manifest, jobs=1).bad
    with hinted("tarmac index SHARDS -o manifest.json", IndexMissing):
        raise bad.error
    assert run(["index", first, second, "-o", manifest, "-j", "1"]) == 0
    assert tarmac.check([first, second], manifest=manifest, jobs=1).ok


@follows("tarmac index SHARDS -o manifest.json rebuilds stale indexes.")
def test_a_stale_index(tmp_path):
    (shard,) = write_shards(tmp_path, [2])
    manifest = str(tmp_path / "manifest.json")
    tarmac.index(shard, output=manifest, jobs=1)
    write_shards(tmp_path, [3], index=False)
    with hinted("tarmac index SHARDS -o manifest.json rebuilds stale indexes.", IndexStale):
        tarmac.Dataset(manifest)[0]
    assert run(["index", shard, "-o", manifest, "-j", "1"]) == 0
    assert [sample["cls"] for sample in tarmac.Dataset(manifest)] == [b"0", b"1", b"2"]


INDEX_DAMAGED = "remove the index, SHARD.arrow, and run tarmac index SHARDS -o manifest.json."


@follows("remove the index, SHARD.arrow, and run tarmac index SHARDS -o manifest.json.")
@pytest.mark.parametrize("what", ["index", "manifest"])
def test_a_damaged_index(tmp_path, what):
    (shard,) = write_shards(tmp_path, [3])
    index, manifest = tmp_path / f"{shard}.arrow", tmp_path / "manifest.json"
    tarmac.index(shard, output=str(manifest), jobs=1)
    if what == "index":
        index.write_bytes(b"")
    else:
        manifest.write_text(manifest.read_text().replace('"nsamples": 3', '"nsamples": 2'))
    with hinted(INDEX_DAMAGED, IndexDamaged):
        tarmac.Dataset(manifest)[0]
    index.unlink()
    assert run(["index", shard, "-o", str(manifest), "-j", "1"]) == 0
    assert len(list(tarmac.Dataset(manifest))) == 3


@follows(
    "download or write the shard again; tarmac check SHARDS --digests --all-errors lists all such fields."
)
def test_a_field_that_differs_from_its_digest(tmp_path, capsys):
    hint = (
        "download or write the shard again; tarmac check SHARDS --digests --all-errors lists all such fields."
    )
    (shard,) = write_shards(tmp_path, [3])
    tarmac.index(shard, digests=True, jobs=1)
    intact, facts = (tmp_path / shard).read_bytes(), os.stat(shard)
    (tmp_path / shard).write_bytes(intact.replace(b"x" * 10, b"y" * 10))
    os.utime(shard, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with hinted(hint, DigestMismatch):
        list(tarmac.Dataset(shard, verify=True))
    assert run(["check", shard, "--digests", "--all-errors", "-j", "1"]) == 1
    assert capsys.readouterr().out.count("BAD") == 3
    (tmp_path / shard).write_bytes(intact)
    os.utime(shard, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert len(list(tarmac.Dataset(shard, verify=True))) == 3


def die_in_a_worker(sample):
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample["__key__"]


@pytest.mark.processes
@follows("check the system log for the out-of-memory killer; use fewer processes, or threads.")
def test_a_killed_worker(tmp_path):
    dataset = tarmac.Dataset(write_shards(tmp_path, [4])).map(die_in_a_worker)
    with (
        tarmac.Loader(dataset, 2, processes=2, start_method="fork") as loader,
        hinted(
            "check the system log for the out-of-memory killer; use fewer processes, or threads.", WorkerDied
        ),
    ):
        list(loader)
    for fewer in ({"processes": 0}, {"threads": 2}):
        with tarmac.Loader(dataset, 2, **fewer) as loader:
            assert len(list(loader)) == 2


@pytest.mark.processes
@follows("use a function defined at module level, with functools.partial for its parameters.")
def test_a_function_that_cannot_be_pickled(tmp_path):
    hint, by = "use a function defined at module level, with functools.partial for its parameters.", 3
    dataset = tarmac.Dataset(write_shards(tmp_path, [4]))
    with (
        tarmac.Loader(
            dataset.map(lambda sample: int(sample["cls"], base=by)), 4, processes=1, start_method="spawn"
        ) as loader,
        hinted(hint, NotPicklable),
    ):
        list(loader)
    mapped = dataset.map(operator.itemgetter("cls")).map(functools.partial(int, base=by))
    with tarmac.Loader(mapped, 3, processes=1, start_method="spawn", shuffle=False) as loader:
        assert next(iter(loader)).tolist() == [0, 1, 2]


OTHER_JOB = "choose another output, or `overwrite` to start over and replace the existing files."


@follows("choose another output, or `overwrite` to start over and replace the existing files.")
def test_another_job_with_the_same_output(tmp_path, capsys):
    shards = write_shards(tmp_path, [4])
    output, other = str(tmp_path / "y-{i}.tar"), str(tmp_path / "z-{i}.tar")
    tarmac.copy(shards, output=output, max_samples=2, jobs=1)
    with hinted(OTHER_JOB, JobMismatch):
        tarmac.copy(shards, output=output, max_samples=3, jobs=1)
    assert tarmac.copy(shards, output=other, max_samples=3, jobs=1).written == 4
    assert tarmac.copy(shards, output=output, max_samples=3, jobs=1, overwrite=True).written == 4
    command = ["copy", *shards, "-o", output, "--max-samples", "1", "-j", "1"]
    assert run(command) == 2
    assert "or --overwrite to start over" in capsys.readouterr().err
    assert run([*command, "--overwrite"]) == 0
    assert len(list(tmp_path.glob("y-*.tar"))) == 4


class InTurn:
    """An engine whose workers might be elsewhere."""

    def run(self, work, units):
        for unit in units:
            yield unit, work(unit)


@follows("download and decompress it to a directory that they share.")
def test_a_table_that_workers_would_not_find(tmp_path):
    table = tmp_path / "t.csv"
    with gzip.open(f"{table}.gz", "wb") as file:
        file.write(b"txt\none\n")
    with hinted("download and decompress it to a directory that they share.", tarmac.errors.UsageError):
        tarmac.pack(f"{table}.gz", "s3://bucket/x.tar", engine=InTurn())
    with gzip.open(f"{table}.gz") as file:
        table.write_bytes(file.read())
    assert tarmac.pack(str(table), f"{tmp_path}/x.tar", engine=InTurn()).written == 1
