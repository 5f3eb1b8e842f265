"""Sorting: a stable permutation of what came in, whatever it is sorted by and however it ends."""

from __future__ import annotations

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
from tarmac.errors import (
    BadName,
    DuplicateField,
    ErrorBudgetExceeded,
    JobMismatch,
    MissingField,
    SampleError,
    Truncated,
    UrlError,
)
from tarmac.tools.output import Output
from tarmac.tools.select import Select
from tarmac.tools.sort.sort import By, sort
from tools.sorting import found, keys, numbered, run, write


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path_factory.mktemp("home")))


def test_equal_values_are_all_kept_in_the_order_in_which_they_came(tmp_path):
    urls = numbered(tmp_path, [2, 1, 2, 1, 2, 1, 10, 10, 9])
    report = sort(urls, Output(f"{tmp_path}/o-{{i:03d}}.tar"), run(), by=By("cls", "int"))
    assert keys(tmp_path) == ["00001", "00003", "00005", "00000", "00002", "00004", "00008", "00006", "00007"]
    assert (report.read, report.written, report.failed) == (9, 9, 0)


def test_reverse_turns_the_order_around_but_not_that_of_equals(tmp_path):
    urls = numbered(tmp_path, [2, 1, 2, 1, 10])
    sort(urls, Output(f"{tmp_path}/o-{{i}}.tar"), run(), by=By("cls", "int", reverse=True))
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
    sort([url], Output(f"{tmp_path}/o-{{i}}.tar"), run(), by=By("txt", kind))
    assert [sample["txt"] for sample in found(tmp_path)] == expected


def test_columns(tmp_path):
    scores = [0.5, 10, -3, 2**70, 2**70 + 1, 1e300]
    samples = [(f"k{i}", {"json": b'{"a": {"score": %s}}' % str(n).encode()}) for i, n in enumerate(scores)]
    url = write(tmp_path / "a.tar", samples[::-1])
    sort([url], Output(f"{tmp_path}/o-{{i}}.tar"), run(), by=By("json.a.score"))
    assert keys(tmp_path) == ["k2", "k0", "k1", "k3", "k4", "k5"]
    sort(
        [url],
        Output(f"{tmp_path}/s-{{i}}.tar"),
        run(),
        by=By("json.size", "int"),
        select=Select(missing="skip"),
    )
    assert keys(tmp_path, "s-*") == []


def test_values_that_are_no_numbers(tmp_path):
    samples = [("a", {"cls": b"2"}), ("b", {"cls": b"x"}), ("c", {"cls": b"1"}), ("d", {"cls": b"1_0"})]
    url = write(tmp_path / "a.tar", samples)
    output = Output(f"{tmp_path}/o-{{i}}.tar")
    with pytest.raises(SampleError, match="is to be a whole number, it is 'x'") as caught:
        sort([url], output, run(), by=By("cls", "int"))
    assert (caught.value.key, caught.value.url) == ("b", url)
    assert not list(tmp_path.glob("o-*"))
    with pytest.raises(ErrorBudgetExceeded, match="2 samples cannot be sorted, 1 may"):
        sort([url], output, run(max_errors=1), by=By("cls", "int"), on_error="skip")
    report = sort([url], output, run(), by=By("cls", "int"), on_error="skip")
    assert keys(tmp_path) == ["c", "a"]
    assert (report.read, report.written, report.failed, report.ok) == (4, 2, 2, False)
    assert 'sample "b"' in report.errors[0]
    report = sort([url], output, run(), by=By("cls", "int"), on_error="skip")
    assert (report.kept, report.failed) == (1, 2)  # what was lost is said again


def test_samples_without_the_field(tmp_path):
    url = write(tmp_path / "a.tar", [("a", {"cls": b"2"}), ("b", {"txt": b"x"})])
    output = Output(f"{tmp_path}/o-{{i}}.tar")
    with pytest.raises(MissingField, match='no "cls" to sort by') as caught:
        sort([url], output, run(), by=By("cls"))
    assert caught.value.key == "b"
    report = sort([url], output, run(), by=By("cls"), select=Select(missing="skip"))
    assert (report.read, report.written, report.failed) == (2, 1, 0)
    assert report.dropped == 1


def test_unique(tmp_path):
    urls = numbered(tmp_path, [2, 1, 2, 1], shards=2)
    with pytest.raises(SampleError, match=r'same cls as "00001" of .*in0\.tar') as caught:
        sort(urls, Output(f"{tmp_path}/o-{{i}}.tar"), run(), by=By("cls", unique="error"))
    assert (caught.value.key, caught.value.url) == ("00003", urls[1])
    report = sort(urls, Output(f"{tmp_path}/o-{{i}}.tar"), run(), by=By("cls", unique="first"))
    assert keys(tmp_path) == ["00001", "00000"]
    assert report.notes["doubles_left_out"] == 2
    assert "2 doubles left out" in str(report)


def test_random_is_a_permutation_that_the_seed_decides(tmp_path):
    urls = numbered(tmp_path, list(range(200)))
    orders = []
    for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
        sort(urls, Output(f"{tmp_path}/{name}-{{i}}.tar"), run(), by=By("random", seed=seed))
        orders.append(keys(tmp_path, f"{name}-*"))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == [f"{i:05d}" for i in range(200)] != orders[0]
    with pytest.raises(UrlError, match="random"):
        By("random", reverse=True)


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
        samples = [(f"{number}{key}" if by == "bin" else key, {"bin": data}) for key, data in shard.items()]
        urls.append(write(folder / f"in{number}.tar", samples))
        given += samples
    rekey = "{i:05d}" if by == "key" else ""
    if by == "key":  # keys may come again, so they are known by their content
        given = [(key, {"bin": b"%d|" % i + fields["bin"]}) for i, (key, fields) in enumerate(given)]
        start = 0
        for url, shard in zip(urls, shards, strict=True):
            write(url, given[start : start + len(shard)])
            start += len(shard)
    output = Output(f"{folder}/o-{{i:03d}}.tar", max_samples=size, rekey=rekey)
    report = sort(urls, output, run(), by=By(by, reverse=reverse), memory=1)
    value = (lambda s: s[0].encode("utf-8", "surrogateescape")) if by == "key" else (lambda s: s[1]["bin"])
    expected = sorted(given, key=value, reverse=reverse)
    assert [sample["bin"] for sample in found(folder)] == [fields["bin"] for _, fields in expected]
    if by == "bin":
        assert keys(folder) == [key for key, _ in expected]
    assert report.written == len(given)


def test_files_of_a_sample_that_lie_apart_are_put_together(tmp_path):
    files = [
        ("b.cls", b"1"),
        ("a.cls", b"2"),
        ("b.txt", b"B"),
        ("__meta__/x", b""),
        ("a.TXT", b"A"),
        ("n", b""),
    ]
    (tmp_path / "a.tar").write_bytes(plain(files))
    with pytest.raises(tarmac.errors.SplitSample, match="tarmac sort --by key"):
        list(tarmac.read(str(tmp_path / "a.tar")))
    sort([str(tmp_path / "a.tar")], Output(f"{tmp_path}/o-{{i}}.tar"), run())
    assert [{k: v for k, v in s.items() if k != "__url__"} for s in found(tmp_path)] == [
        {"__key__": "a", "cls": b"2", "txt": b"A"},
        {"__key__": "b", "cls": b"1", "txt": b"B"},
    ]
    report = sort(
        [str(tmp_path / "a.tar")], Output(f"{tmp_path}/w-{{i}}.tar"), run(), select=Select(where="cls = 1")
    )
    assert (keys(tmp_path, "w-*"), report.written) == (["b"], 1)
    (tmp_path / "twice.tar").write_bytes(plain([*files, ("b.txt", b"?")]))
    with pytest.raises(DuplicateField) as caught:
        sort([str(tmp_path / "twice.tar")], Output(f"{tmp_path}/p-{{i}}.tar"), run())
    assert caught.value.key == "b"


def test_the_same_key_in_two_shards(tmp_path):
    urls = [
        write(tmp_path / f"in{i}.tar", [("a", {"cls": b"%d" % i}), (f"b{i}", {"cls": b"5"})]) for i in (0, 1)
    ]
    for target in (Output(f"{tmp_path}/o-{{i}}.tar"), Output("-")):
        with pytest.raises(BadName, match="has the same key") as caught:
            sort(urls, target, run())
        assert (caught.value.key, caught.value.url) == ("a", urls[1])
        assert urls[0] in str(caught.value)
        assert "--rekey '{i:09d}'" in str(caught.value)
    assert not list(tmp_path.glob("o-*"))
    sort(urls, Output(f"{tmp_path}/r-{{i}}.tar", rekey="{i:09d}"), run())
    assert [(s["__key__"], s["cls"]) for s in found(tmp_path, "r-*")] == [
        ("000000000", b"0"),
        ("000000001", b"1"),
        ("000000002", b"5"),
        ("000000003", b"5"),
    ]
    sort(urls, Output(f"{tmp_path}/s-{{i}}.tar", max_samples=1), run())  # they do not meet
    assert keys(tmp_path, "s-*") == ["a", "a", "b0", "b1"]


def test_selections_and_parts(tmp_path):
    urls = numbered(tmp_path, [7, 3, 5, 1, 9, 2])
    choice = Select(fields="n=cls", where="cls > 2", slice="1:")
    sort(urls, Output(f"{tmp_path}/o-{{i}}.tar"), run(), by=By("cls", "int"), select=choice)
    assert [sample["n"] for sample in found(tmp_path)] == [b"3", b"5", b"9"]
    parts = Select(part="a=0.5,b=0.5")
    sort(urls, Output(f"{tmp_path}/p-{{part}}-{{i}}.tar"), run(), by=By("cls"), select=parts)
    both = [[sample["cls"] for sample in found(tmp_path, f"p-{name}-*")] for name in "ab"]
    assert all(part == sorted(part) for part in both)
    assert sorted(both[0] + both[1]) == [b"1", b"2", b"3", b"5", b"7", b"9"]
    with pytest.raises(UrlError, match=r"needs \{part\}"):
        sort(urls, Output(f"{tmp_path}/x-{{i}}.tar"), run(), select=parts)
    with pytest.raises(UrlError, match="another order"):
        sort(urls, Output(f"{tmp_path}/dir/"), run())


def test_whatever_has_no_addresses_is_unpacked_first(tmp_path):
    import gzip

    content = plain([("b.txt", b"2"), ("a.txt", b"1")])
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(content))
    (tmp_path / "hidden.tar").write_bytes(gzip.compress(content))
    urls = [str(tmp_path / "a.tar.gz"), f"pipe:cat {tmp_path}/hidden.tar", str(tmp_path / "hidden.tar")]
    output = Output(f"{tmp_path}/o-{{i}}.tar", rekey="{i}-{key}")
    sort(urls, output, run(), by=By("txt"), tmp=str(tmp_path))
    assert keys(tmp_path) == ["0-a", "1-a", "2-a", "3-b", "4-b", "5-b"]
    assert sort(urls, output, run(), by=By("txt"), tmp=str(tmp_path)).kept == 1
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(content[:700]))
    with pytest.raises(Truncated) as caught:
        sort([str(tmp_path / "cut.tar.gz")], output, run(), tmp=str(tmp_path))
    assert caught.value.url == str(tmp_path / "cut.tar.gz")


def test_the_users_directory_survives(tmp_path):
    place = tmp_path / "tmp"
    place.mkdir()
    (place / "precious").write_text("mine")
    (place / "tarmac-sort-mine").mkdir()
    urls = numbered(tmp_path, [3, 1, 2])
    sort(urls, Output(f"{tmp_path}/o-{{i}}.tar"), run(), tmp=str(place))
    with pytest.raises(SampleError):
        sort(urls, Output(f"{tmp_path}/p-{{i}}.tar"), run(), by=By("nothing"), tmp=str(place))
    assert sorted(os.listdir(place)) == ["precious", "tarmac-sort-mine"]
    assert (place / "precious").read_text() == "mine"
    with pytest.raises(UrlError, match="no working directory"):
        sort(urls, Output(f"{tmp_path}/p-{{i}}.tar"), run(), tmp=str(tmp_path / "absent"))


def test_processes_make_no_difference(tmp_path):
    urls = numbered(tmp_path, [i * 7919 % 100 for i in range(100)])
    for jobs in (1, 2):
        output = Output(f"{tmp_path}/{jobs}/o-{{i:03d}}.tar", max_samples=9, index=True)
        sort(urls, output, run(jobs), by=By("cls", "int"))
    names = sorted(path.name for path in (tmp_path / "1").glob("*.tar"))
    assert len(names) == 12
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_other_options_are_not_mixed_up(tmp_path):
    urls = numbered(tmp_path, [2, 1, 3])
    output = Output(f"{tmp_path}/o-{{i}}.tar", max_samples=1)
    sort(urls, output, run(), by=By("cls"))
    os.unlink(tmp_path / "o-1.tar")
    report = sort(urls, output, run(), by=By("cls"))
    assert (report.done, report.kept) == (1, 2)
    with pytest.raises(JobMismatch):
        sort(urls, output, run(), by=By("cls", reverse=True))
    assert keys(tmp_path) == ["00001", "00000", "00002"]


def test_dry_runs_write_nothing(tmp_path):
    urls = numbered(tmp_path, [2, 1, 3])
    report = sort(urls, Output(f"{tmp_path}/o-{{i}}.tar", max_samples=2), run(dry=True), by=By("cls"))
    assert report.units == 2
    assert sort(urls, Output("-"), run(dry=True), by=By("cls")).units == 1
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


def test_what_gnu_tar_wrote_in_any_order(tmp_path):
    rng = random.Random(3)
    names = [f"{key:03d}.{field}" for key in range(40) for field in ("cls", "txt")]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    rng.shuffle(names)
    subprocess.run(["tar", "cf", "in.tar", *names], cwd=tmp_path, check=True)
    sort([str(tmp_path / "in.tar")], Output(f"{tmp_path}/o-{{i}}.tar"), run())
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "o-0.tar").read_bytes())) as archive:
        assert archive.getnames() == sorted(names)


def test_compressed_shards_are_not_replaced_while_they_are_read(tmp_path):
    from tarmac.tools.copy import copy

    source = f"{tmp_path}/self-0.tar.gz"
    copy(numbered(tmp_path, [3, 1, 2]), Output(source), run())
    with pytest.raises(UrlError, match="would replace a shard that is being read"):
        sort([source], Output(f"{tmp_path}/self-{{i}}.tar.gz", max_samples=2, overwrite=True), run())
