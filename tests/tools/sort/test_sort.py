"""Sort: a stable permutation of the input, for every sort key, source and selection."""

from __future__ import annotations

import functools
import gzip
import io
import os
import random
import subprocess
import sys
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness.shards import plain
from tarmac import copy
from tarmac.errors import (
    BadName,
    DuplicateField,
    ErrorBudgetExceeded,
    JobMismatch,
    MissingField,
    SampleError,
    Truncated,
    UsageError,
)
from tools.shards import write
from tools.sorting import keys, numbered, samples

sort = functools.partial(tarmac.sort, jobs=1)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path_factory.mktemp("home")))


def test_equal_values_keep_their_order(tmp_path):
    urls = numbered(tmp_path, [2, 1, 2, 1, 2, 1, 10, 10, 9])
    report = sort(urls, f"{tmp_path}/o-{{i:03d}}.tar", by="cls", type="int")
    assert keys(tmp_path) == ["00001", "00003", "00005", "00000", "00002", "00004", "00008", "00006", "00007"]
    assert (report.read, report.written, report.failed) == (9, 9, 0)


def test_reverse_keeps_the_order_of_equal_values(tmp_path):
    urls = numbered(tmp_path, [2, 1, 2, 1, 10])
    sort(urls, f"{tmp_path}/o-{{i}}.tar", by="cls", type="int", reverse=True)
    assert keys(tmp_path) == ["00004", "00000", "00002", "00001", "00003"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (None, [b"-1", b"1.5", b"10", b"1e2", b"9"]),
        ("bytes", [b"-1", b"1.5", b"10", b"1e2", b"9"]),
        ("float", [b"-1", b"1.5", b"9", b"10", b"1e2"]),
    ],
)
def test_types(tmp_path, kind, expected):
    values = [b"9", b"1e2", b"10", b"-1", b"1.5"]
    url = write(tmp_path / "a.tar", [(f"k{i}", {"txt": value}) for i, value in enumerate(values)])
    sort([url], f"{tmp_path}/o-{{i}}.tar", by="txt", type=kind)
    assert [sample["txt"] for sample in samples(tmp_path)] == expected


def test_columns(tmp_path):
    scores = [0.5, 10, -3, 2**70, 2**70 + 1, 1e300]
    samples = [(f"k{i}", {"json": b'{"a": {"score": %s}}' % str(n).encode()}) for i, n in enumerate(scores)]
    url = write(tmp_path / "a.tar", samples[::-1])
    sort([url], f"{tmp_path}/o-{{i}}.tar", by="json.a.score")
    assert keys(tmp_path) == ["k2", "k0", "k1", "k3", "k4", "k5"]
    sort([url], f"{tmp_path}/s-{{i}}.tar", by="json.size", type="int", missing="skip")
    assert keys(tmp_path, "s-*") == []


def test_values_that_do_not_convert(tmp_path):
    samples = [("a", {"cls": b"2"}), ("b", {"cls": b"x"}), ("c", {"cls": b"1"}), ("d", {"cls": b"1_0"})]
    url = write(tmp_path / "a.tar", samples)
    output = f"{tmp_path}/o-{{i}}.tar"
    with pytest.raises(SampleError, match="'x'") as caught:
        sort([url], output, by="cls", type="int")
    assert (caught.value.key, caught.value.url) == ("b", url)
    assert not list(tmp_path.glob("o-*"))
    with pytest.raises(ErrorBudgetExceeded, match="max_errors"):
        sort([url], output, max_errors=1, by="cls", type="int", on_error="skip")
    report = sort([url], output, by="cls", type="int", on_error="skip")
    assert keys(tmp_path) == ["c", "a"]
    assert (report.read, report.written, report.failed, report.ok) == (4, 2, 2, False)
    assert 'sample "b"' in report.errors[0]
    report = sort([url], output, by="cls", type="int", on_error="skip")
    assert (report.kept, report.failed) == (1, 2)  # what was lost is said again


def test_samples_without_the_field(tmp_path):
    url = write(tmp_path / "a.tar", [("a", {"cls": b"2"}), ("b", {"txt": b"x"})])
    output = f"{tmp_path}/o-{{i}}.tar"
    with pytest.raises(MissingField, match="cls") as caught:
        sort([url], output, by="cls")
    assert caught.value.key == "b"
    report = sort([url], output, by="cls", missing="skip")
    assert (report.read, report.written, report.failed) == (2, 1, 0)
    assert report.dropped == 1


def test_unique(tmp_path):
    urls = numbered(tmp_path, [2, 1, 2, 1], shards=2)
    with pytest.raises(SampleError, match=r"00001.*in0\.tar") as caught:
        sort(urls, f"{tmp_path}/o-{{i}}.tar", by="cls", unique="error")
    assert (caught.value.key, caught.value.url) == ("00003", urls[1])
    report = sort(urls, f"{tmp_path}/o-{{i}}.tar", by="cls", unique="first")
    assert keys(tmp_path) == ["00001", "00000"]
    assert report.notes["doubles_left_out"] == 2
    assert "2 doubles left out" in str(report)


def test_random_is_a_permutation_that_depends_on_the_seed(tmp_path):
    urls = numbered(tmp_path, list(range(200)))
    orders = []
    for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
        sort(urls, f"{tmp_path}/{name}-{{i}}.tar", by="random", seed=seed)
        orders.append(keys(tmp_path, f"{name}-*"))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == [f"{i:05d}" for i in range(200)] != orders[0]


KEYS = st.text(st.sampled_from("ab_é€\udc80"), min_size=1, max_size=3)
SHARD = st.dictionaries(KEYS, st.binary(max_size=2), max_size=12)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    st.lists(SHARD, min_size=1, max_size=3), st.booleans(), st.sampled_from(["key", "bin"]), st.integers(1, 5)
)
def test_the_output_is_a_stable_sorted_permutation(tmp_path_factory, shards, reverse, by, size):
    folder = tmp_path_factory.mktemp("law")
    given, urls = [], []
    for number, shard in enumerate(shards):
        rows = [(f"{number}{key}" if by == "bin" else key, {"bin": data}) for key, data in shard.items()]
        urls.append(write(folder / f"in{number}.tar", rows))
        given += rows
    rekey = "{i:05d}" if by == "key" else ""
    if by == "key":  # keys may repeat, so the content identifies a sample
        given = [(key, {"bin": b"%d|" % i + fields["bin"]}) for i, (key, fields) in enumerate(given)]
        start = 0
        for url, shard in zip(urls, shards, strict=True):
            write(url, given[start : start + len(shard)])
            start += len(shard)
    report = sort(
        urls,
        f"{folder}/o-{{i:03d}}.tar",
        by=by,
        reverse=reverse,
        memory=1 << 20,
        max_samples=size,
        rekey=rekey,
    )
    value = (lambda s: s[0].encode("utf-8", "surrogateescape")) if by == "key" else (lambda s: s[1]["bin"])
    expected = sorted(given, key=value, reverse=reverse)
    assert [sample["bin"] for sample in samples(folder)] == [fields["bin"] for _, fields in expected]
    if by == "bin":
        assert keys(folder) == [key for key, _ in expected]
    assert report.written == len(given)


def test_samples_that_are_not_contiguous(tmp_path):
    files = [
        ("b.cls", b"1"),
        ("a.cls", b"2"),
        ("b.txt", b"B"),
        ("__meta__/x", b""),
        ("a.TXT", b"A"),
        ("n", b""),
    ]
    (tmp_path / "a.tar").write_bytes(plain(files))
    with pytest.raises(tarmac.errors.SplitSample, match=r"a\.tar"):
        list(tarmac.read(str(tmp_path / "a.tar")))
    sort([str(tmp_path / "a.tar")], f"{tmp_path}/o-{{i}}.tar")
    assert [{k: v for k, v in s.items() if k != "__url__"} for s in samples(tmp_path)] == [
        {"__key__": "a", "cls": b"2", "txt": b"A"},
        {"__key__": "b", "cls": b"1", "txt": b"B"},
    ]
    report = sort([str(tmp_path / "a.tar")], f"{tmp_path}/w-{{i}}.tar", where="cls = 1")
    assert (keys(tmp_path, "w-*"), report.written) == (["b"], 1)
    (tmp_path / "twice.tar").write_bytes(plain([*files, ("b.txt", b"?")]))
    with pytest.raises(DuplicateField) as caught:
        sort([str(tmp_path / "twice.tar")], f"{tmp_path}/p-{{i}}.tar")
    assert caught.value.key == "b"


def test_the_same_key_in_two_shards(tmp_path):
    urls = [
        write(tmp_path / f"in{i}.tar", [("a", {"cls": b"%d" % i}), (f"b{i}", {"cls": b"5"})]) for i in (0, 1)
    ]
    for target in (f"{tmp_path}/o-{{i}}.tar", "-"):
        with pytest.raises(BadName, match="key") as caught:
            sort(urls, target)
        assert (caught.value.key, caught.value.url) == ("a", urls[1])
        assert urls[0] in str(caught.value)
    assert not list(tmp_path.glob("o-*"))
    sort(urls, f"{tmp_path}/r-{{i}}.tar", rekey="{i:09d}")
    assert [(s["__key__"], s["cls"]) for s in samples(tmp_path, "r-*")] == [
        ("000000000", b"0"),
        ("000000001", b"1"),
        ("000000002", b"5"),
        ("000000003", b"5"),
    ]
    sort(urls, f"{tmp_path}/s-{{i}}.tar", max_samples=1)  # they do not meet
    assert keys(tmp_path, "s-*") == ["a", "a", "b0", "b1"]


def test_selections_and_splits(tmp_path):
    urls = numbered(tmp_path, [7, 3, 5, 1, 9, 2])
    options = {"fields": {"n": "cls"}, "where": "cls > 2", "slice": slice(1, None)}
    sort(urls, f"{tmp_path}/o-{{i}}.tar", by="cls", type="int", **options)
    assert [sample["n"] for sample in samples(tmp_path)] == [b"3", b"5", b"9"]
    split = {"a": 0.5, "b": 0.5}
    sort(urls, f"{tmp_path}/p-{{split}}-{{i}}.tar", by="cls", split=split)
    both = [[sample["cls"] for sample in samples(tmp_path, f"p-{name}-*")] for name in "ab"]
    assert all(part == sorted(part) for part in both)
    assert sorted(both[0] + both[1]) == [b"1", b"2", b"3", b"5", b"7", b"9"]
    with pytest.raises(UsageError, match="split"):
        sort(urls, f"{tmp_path}/x-{{i}}.tar", split=split)
    with pytest.raises(UsageError, match="dir/"):
        sort(urls, f"{tmp_path}/dir/")


def test_streams_and_compressed_shards_are_unpacked_first(tmp_path):
    content = plain([("b.txt", b"2"), ("a.txt", b"1")])
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(content))
    (tmp_path / "hidden.tar").write_bytes(gzip.compress(content))
    urls = [str(tmp_path / "a.tar.gz"), f"pipe:cat {tmp_path}/hidden.tar", str(tmp_path / "hidden.tar")]
    output = f"{tmp_path}/o-{{i}}.tar"
    sort(urls, output, by="txt", rekey="{i}-{key}", tmp=tmp_path)
    assert keys(tmp_path) == ["0-a", "1-a", "2-a", "3-b", "4-b", "5-b"]
    assert sort(urls, output, by="txt", rekey="{i}-{key}", tmp=tmp_path).kept == 1
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(content[:700]))
    with pytest.raises(Truncated) as caught:
        sort([str(tmp_path / "cut.tar.gz")], output, tmp=str(tmp_path))
    assert caught.value.url == str(tmp_path / "cut.tar.gz")


def test_only_its_own_temporary_directory_is_removed(tmp_path):
    location = tmp_path / "tmp"
    location.mkdir()
    (location / "precious").write_text("mine")
    (location / "tarmac-sort-mine").mkdir()
    urls = numbered(tmp_path, [3, 1, 2])
    sort(urls, f"{tmp_path}/o-{{i}}.tar", tmp=str(location))
    with pytest.raises(SampleError):
        sort(urls, f"{tmp_path}/p-{{i}}.tar", by="nothing", tmp=str(location))
    assert sorted(os.listdir(location)) == ["precious", "tarmac-sort-mine"]
    assert (location / "precious").read_text() == "mine"
    with pytest.raises(UsageError, match="tmp"):
        sort(urls, f"{tmp_path}/p-{{i}}.tar", tmp=str(tmp_path / "absent"))


def test_bytes_do_not_depend_on_the_number_of_processes(tmp_path):
    urls = numbered(tmp_path, [i * 7919 % 100 for i in range(100)])
    for jobs in (1, 2):
        output = f"{tmp_path}/{jobs}/o-{{i:03d}}.tar"
        sort(urls, output, max_samples=9, index=True, jobs=jobs, by="cls", type="int")
    names = sorted(path.name for path in (tmp_path / "1").glob("*.tar"))
    assert len(names) == 12
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_other_options_are_another_job(tmp_path):
    urls = numbered(tmp_path, [2, 1, 3])
    output, sort = f"{tmp_path}/o-{{i}}.tar", functools.partial(tarmac.sort, jobs=1, max_samples=1)
    sort(urls, output, by="cls")
    os.unlink(tmp_path / "o-1.tar")
    report = sort(urls, output, by="cls")
    assert (report.done, report.kept) == (1, 2)
    with pytest.raises(JobMismatch):
        sort(urls, output, by="cls", reverse=True)
    assert keys(tmp_path) == ["00001", "00000", "00002"]


def test_dry_runs_write_nothing(tmp_path):
    urls = numbered(tmp_path, [2, 1, 3])
    report = sort(urls, f"{tmp_path}/o-{{i}}.tar", max_samples=2, dry_run=True, by="cls")
    assert report.units == 2
    assert sort(urls, "-", dry_run=True, by="cls").units == 1
    assert not list(tmp_path.glob("o-*"))


def test_standard_input_to_standard_output_through_gnu_tar(tmp_path):
    files = [(f"{i}.txt", b"%03d" % (i * 37 % 50)) for i in range(50)]
    command = f"{sys.executable} -m tarmac sort - --by txt -o - | tar -xf - -C {tmp_path} -v"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], input=plain(files), capture_output=True)
    assert done.returncode == 0, done.stderr
    listed = done.stdout.decode().split()
    assert listed == [name for name, _ in sorted(files, key=lambda file: file[1])]
    assert all((tmp_path / name).read_bytes() == data for name, data in files)
    assert b"50 samples in, 50 out" in done.stderr


def test_members_in_any_order(tmp_path):
    rng = random.Random(3)
    names = [f"{key:03d}.{field}" for key in range(40) for field in ("cls", "txt")]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    rng.shuffle(names)
    subprocess.run(["tar", "cf", "in.tar", *names], cwd=tmp_path, check=True)
    sort([str(tmp_path / "in.tar")], f"{tmp_path}/o-{{i}}.tar")
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "o-0.tar").read_bytes())) as archive:
        assert archive.getnames() == sorted(names)


def test_inputs_are_never_overwritten(tmp_path):
    source = f"{tmp_path}/self-0.tar.gz"
    copy(numbered(tmp_path, [3, 1, 2]), source)
    with pytest.raises(UsageError, match="self-0"):
        sort([source], f"{tmp_path}/self-{{i}}.tar.gz", max_samples=2, overwrite=True)
