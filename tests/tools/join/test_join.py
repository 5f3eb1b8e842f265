"""Joining: every sample comes out, with the fields of its partner."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness import rounds
from harness.crash import Forked, survive
from harness.servers import required, seaweed_s3
from harness.shards import plain
from tarmac.errors import DuplicateField, ErrorBudgetExceeded, JobError, JobMismatch, SampleError, UrlError
from tarmac.storage import StorageOptions, WriteOptions, open_write
from tarmac.tools.join.join import Joined, Joining, join
from tarmac.tools.output import Output
from tarmac.tools.select import Select
from tools.sorting import run, write

ROWS = [{"key": "a1", "caption": "one, two", "cls2": 4}, {"key": "b0", "caption": "", "cls2": 5}]
ROWS += [{"key": "none", "caption": "nobody", "cls2": 6}]


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def urls(tmp_path):
    return [
        write(tmp_path / f"{name}.tar", [(f"{name}{i}", {"cls": b"%d" % i}) for i in range(3)])
        for name in "ab"
    ]


def found(*paths):
    return {
        s.pop("__key__"): {k: v for k, v in s.items() if k != "__url__"}
        for s in tarmac.read(list(map(str, paths)))
    }


def table(tmp_path, kind, rows=ROWS):
    path = tmp_path / f"t.{kind}"
    if kind in ("csv", "tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="," if kind == "csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def test_shards_with_shards_by_name(tmp_path, urls):
    other = write(
        tmp_path / "o.tar",
        [("b2", {"json": b"2"}), ("a0", {"json": b"0", "txt": b"x"}), ("zz", {"json": b""})],
    )
    report = join(urls, [other], Output(f"{tmp_path}/out/"), run())
    assert sorted(os.listdir(tmp_path / "out")) == [".tarmac", "a.tar", "b.tar"]
    assert found(tmp_path / "out/a.tar", tmp_path / "out/b.tar") == {
        "a0": {"cls": b"0", "json": b"0", "txt": b"x"},
        "a1": {"cls": b"1"},
        "a2": {"cls": b"2"},
        "b0": {"cls": b"0"},
        "b1": {"cls": b"1"},
        "b2": {"cls": b"2", "json": b"2"},
    }
    assert (report.read, report.written) == (6, 6)
    assert report.notes == {"without_a_partner": 4, "rows_not_used": 1}
    again = join(urls, [other], Output(f"{tmp_path}/out/"), run())
    assert (again.kept, again.notes) == (2, report.notes)
    write(other, [("a1", {"json": b"2"})])
    with pytest.raises(JobMismatch):
        join(urls, [other], Output(f"{tmp_path}/out/"), run())


@pytest.mark.parametrize("name", ["o.tar", "o.tar.gz"])
def test_other_bytes_of_equal_size_are_joined_anew(tmp_path, urls, name):
    other = write(tmp_path / name, [("a1", {"json": b"1"})])
    join(urls, [other], Output(f"{tmp_path}/out/"), run())
    write(other, [("a1", {"json": b"2"})])
    os.utime(other, ns=(0, 10**9))
    with pytest.raises(JobMismatch):
        join(urls, [other], Output(f"{tmp_path}/out/"), run())
    join(urls, [other], Output(f"{tmp_path}/out/", overwrite=True), run())
    assert found(tmp_path / "out/a.tar")["a1"]["json"] == b"2"


def test_inner_drops_and_counts(tmp_path, urls):
    other = write(tmp_path / "o.tar", [("b2", {"json": b"2"}), ("a0", {"json": b"0"}), ("zz", {"json": b""})])
    report = join(
        urls, [other], Output(f"{tmp_path}/j-{{i}}.tar", max_samples=1), run(), joining=Joining("inner")
    )
    assert [list(found(tmp_path / f"j-{i}.tar")) for i in (0, 1)] == [["a0"], ["b2"]]  # none is empty
    assert (report.read, report.written) == (6, 2)
    assert report.notes == {"without_a_partner_dropped": 4, "rows_not_used": 1}


def test_duplicates(tmp_path, urls):
    others = [write(tmp_path / f"o{i}.tar", [("a0", {"txt": b"%d" % i})]) for i in (0, 1)]
    with pytest.raises(SampleError, match="--duplicates first") as caught:
        join(urls, others, Output(f"{tmp_path}/out/"), run())
    assert caught.value.key == "a0"
    report = join(urls, others, Output(f"{tmp_path}/out/"), run(), joining=Joining(duplicates="first"))
    assert found(tmp_path / "out/a.tar")["a0"]["txt"] == b"0"
    assert report.notes["rows_not_used"] == 1
    (tmp_path / "t.csv").write_text("key,x\na,1\na,2\n")
    with pytest.raises(SampleError, match="comes twice") as caught:
        join(urls, [str(tmp_path / "t.csv")], Output(f"{tmp_path}/p/"), run())
    assert caught.value.key == "a"


def test_the_same_key_in_two_shards_gets_the_same_partner(tmp_path):
    urls = [write(tmp_path / f"{name}.tar", [("k", {"cls": name.encode()})]) for name in "ab"]
    other = write(tmp_path / "o.tar", [("k", {"txt": b"x"})])
    report = join(urls, [other], Output(f"{tmp_path}/out/"), run())
    assert [found(tmp_path / f"out/{n}.tar")["k"]["txt"] for n in "ab"] == [b"x", b"x"]
    assert report.notes == {"without_a_partner": 0, "rows_not_used": 0}


def test_fields_that_are_there_already(tmp_path, urls):
    other = write(tmp_path / "o.tar", [("a1", {"cls": b"new"}), ("b0", {"txt": b"x"})])
    with pytest.raises(DuplicateField, match='both have the field "cls"') as caught:
        join(urls, [other], Output(f"{tmp_path}/out/"), run())
    assert (caught.value.key, caught.value.url) == ("a1", urls[0])
    join(urls, [other], Output(f"{tmp_path}/r/"), run(), joining=Joining(replace=True))
    assert found(tmp_path / "r/a.tar")["a1"] == {"cls": b"new"}
    join(urls, [other], Output(f"{tmp_path}/p/"), run(), joining=Joining(prefix="more."))
    assert found(tmp_path / "p/a.tar")["a1"] == {"cls": b"1", "more.cls": b"new"}
    report = join(urls, [other], Output(f"{tmp_path}/s/"), run(), on_error="skip")
    assert (report.read, report.written, report.failed) == (6, 5, 1)
    assert 'sample "a1"' in report.errors[0]
    assert sorted(found(tmp_path / "s/a.tar")) == ["a0", "a2"]
    with pytest.raises(ErrorBudgetExceeded):
        join(urls, [other], Output(f"{tmp_path}/t/"), run(max_errors=0), on_error="skip")


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_tables(tmp_path, urls, kind):
    path = table(tmp_path, kind)
    report = join(urls, [path], Output(f"{tmp_path}/out/"), run())
    samples = found(tmp_path / "out/a.tar", tmp_path / "out/b.tar")
    assert samples["a1"] == {"cls": b"1", "caption.txt": b"one, two", "cls2": b"4"}
    assert samples["b0"] == {"cls": b"0", "caption.txt": b"", "cls2": b"5"}
    assert samples["b1"] == {"cls": b"1"}
    assert report.notes == {"without_a_partner": 4, "rows_not_used": 1}
    join(urls, [path], Output(f"{tmp_path}/json/"), run(), joining=Joining(as_="json", prefix="row."))
    row = json.loads(found(tmp_path / "json/a.tar")["a1"]["row.json"])
    assert row == {"key": "a1", "caption": "one, two", "cls2": "4" if kind in ("csv", "tsv") else 4}


def test_tables_that_are_packed_or_several(tmp_path, urls):
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"name,txt\na0,hello\n"))
    (tmp_path / "y.csv").write_text("name,txt\nb1,there\n")
    report = join(
        urls,
        [str(tmp_path / "x.csv.gz"), str(tmp_path / "y.csv")],
        Output(f"{tmp_path}/j-{{i}}.tar"),
        run(),
        joining=Joining("inner", key="name"),
    )
    assert found(tmp_path / "j-0.tar") == {
        "a0": {"cls": b"0", "txt": b"hello"},
        "b1": {"cls": b"1", "txt": b"there"},
    }
    assert report.notes["rows_not_used"] == 0


def test_what_can_be_chosen_of_the_result(tmp_path, urls):
    path = table(tmp_path, "csv")
    choice = Select(fields="text=caption.txt,cls", missing="skip", where="cls >= 1")
    report = join(urls, [path], Output(f"{tmp_path}/j-{{i}}.tar"), run(), select=choice)
    assert found(tmp_path / "j-0.tar") == {"a1": {"text": b"one, two", "cls": b"1"}}
    assert report.written == 1


def test_sizes_count_what_is_joined(tmp_path, urls):
    other = write(tmp_path / "o.tar", [(f"a{i}", {"bin": b"x" * 100}) for i in range(3)])
    join(urls, [other], Output(f"{tmp_path}/j-{{i}}.tar", max_bytes=202), run())
    assert [list(found(path)) for path in sorted(tmp_path.glob("j-*"))] == [
        ["a0", "a1"],
        ["a2", "b0", "b1", "b2"],
    ]
    path = table(tmp_path, "csv")
    join(urls, [path], Output(f"{tmp_path}/t-{{i}}.tar", max_bytes=9), run())
    assert [list(found(path)) for path in sorted(tmp_path.glob("t-*"))][:2] == [["a0"], ["a1"]]


def test_whatever_has_no_addresses(tmp_path):
    content = plain([("b.txt", b"2"), ("a.txt", b"1"), ("b.cls", b"3")])
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(content))
    (tmp_path / "y.tar").write_bytes(plain([("b.json", b"{}"), ("a.x", b""), ("b.x", b"9")]))
    join(
        [str(tmp_path / "x.tar.gz")],
        [str(tmp_path / "y.tar")],
        Output(f"{tmp_path}/out/"),
        run(),
        tmp=str(tmp_path),
    )
    assert found(tmp_path / "out/x.tar") == {
        "b": {"txt": b"2", "cls": b"3", "json": b"{}", "x": b"9"},
        "a": {"txt": b"1", "x": b""},
    }
    assert not list(tmp_path.glob("tarmac-join-*"))


KEYS = st.text(st.sampled_from("abé\udc80"), min_size=1, max_size=3)


@settings(max_examples=30, derandomize=True, deadline=None)
@given(
    st.dictionaries(KEYS, st.binary(max_size=3), max_size=10),
    st.dictionaries(KEYS, st.binary(max_size=3), max_size=10),
    st.sampled_from(["left", "inner"]),
)
def test_it_is_a_join_of_dictionaries(tmp_path_factory, left, right, how):
    folder = tmp_path_factory.mktemp("law")
    one = write(folder / "l.tar", [(key, {"x": data}) for key, data in left.items()])
    two = write(folder / "r.tar", [(key, {"y": data}) for key, data in right.items()])
    if left and not left.keys() & right.keys():
        with pytest.raises(JobError, match="no sample has a partner"):
            join([one], [two], Output(f"{folder}/o.tar"), run(), joining=Joining(how))
        return
    report = join([one], [two], Output(f"{folder}/o.tar"), run(), joining=Joining(how))
    expected = {
        key: {"x": data} | ({"y": right[key]} if key in right else {})
        for key, data in left.items()
        if how == "left" or key in right
    }
    assert (found(folder / "o.tar") if expected else {}) == expected
    alone, unused = report.notes.values()
    assert (alone, unused) == (len(left.keys() - right.keys()), len(right.keys() - left.keys()))


def test_processes_make_no_difference(tmp_path, urls):
    path = table(tmp_path, "parquet")
    for jobs in (1, 2):
        join(urls, [path], Output(f"{tmp_path}/{jobs}/j-{{i}}.tar", max_samples=1), run(jobs))
    names = sorted(path.name for path in (tmp_path / "1").glob("*.tar"))
    assert len(names) == 6
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_a_job_can_be_sent_elsewhere(tmp_path, urls):
    joined = Joined(None, Select(), source=None, partners="x.npy")
    assert pickle.loads(pickle.dumps(joined)).partners == "x.npy"


def test_killed_at_any_moment(tmp_path):
    urls = [
        write(tmp_path / f"{i}.tar", [(f"{i}{k:03d}", {"cls": b"1"}) for k in range(20)]) for i in range(8)
    ]
    (tmp_path / "t.csv").write_text(
        "key,txt\n" + "".join(f"{i}{k:03d},t{i}{k}\n" for i in range(8) for k in range(20))
    )
    output = Output(f"{tmp_path}/out/")

    def check():
        for path in (tmp_path / "out").glob("*.tar"):
            assert len(found(path)) == 20
            assert all(set(fields) == {"cls", "txt"} for fields in found(path).values())

    work = Forked(lambda: join(urls, [str(tmp_path / "t.csv")], output, run(), tmp=str(tmp_path)))
    survive(rounds(10), lambda seed: work.crash(seed, 0.08), check)
    join(urls, [str(tmp_path / "t.csv")], output, run(), tmp=str(tmp_path))
    check()
    assert len(list((tmp_path / "out").glob("*.tar"))) == 8


def test_stores(tmp_path, urls):
    with required(seaweed_s3()) as server:
        server.make_bucket("joins")
        storage = StorageOptions(config=server.config())
        for name in ("a.tar", "t.csv"):
            table(tmp_path, "csv")
            sink = open_write(f"s3://joins/{name}", storage, WriteOptions())
            sink.write((tmp_path / name).read_bytes())
            sink.commit()
        for _ in range(2):
            report = join(
                ["s3://joins/a.tar"],
                ["s3://joins/t.csv"],
                Output("s3://joins/out/", storage=storage),
                run(),
                select=Select(storage=storage),
            )
        assert (report.written, report.kept) == (3, 1)
        samples = {s["__key__"]: s for s in tarmac.read("s3://joins/out/a.tar", storage=storage)}
        assert samples["a1"]["caption.txt"] == b"one, two"


def test_mistakes(tmp_path, urls):
    with pytest.raises(UrlError, match="nothing to join"):
        join(urls, [], Output(f"{tmp_path}/out/"), run())
    with pytest.raises(UrlError, match="are for tables"):
        join(urls, urls[:1], Output(f"{tmp_path}/out/"), run(), joining=Joining(key="x"))
    same = tmp_path / "sub"
    same.mkdir()
    twin = write(same / "a.tar", [("k", {"cls": b""})])
    with pytest.raises(UrlError, match="would both be this"):
        join([urls[0], twin], [table(tmp_path, "csv")], Output(f"{tmp_path}/out/"), run())


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("left", ["./", ""])
@pytest.mark.parametrize("right", ["./", "", None])
def test_names_of_gnu_tar_are_the_same_keys(tmp_path, left, right, how):
    """`tar cf x.tar .` puts ./ before every name."""
    (tmp_path / "x.tar").write_bytes(plain((f"{left}s{i}.cls", b"1") for i in range(2)))
    (tmp_path / "o.tar").write_bytes(plain((f"{right}s{i}.txt", b"x") for i in range(2)))
    (tmp_path / "t.csv").write_text("key,txt\ns0,zero\ns1,one\n")
    one, other = str(tmp_path / "x.tar"), str(tmp_path / ("t.csv" if right is None else "o.tar"))
    report = join([one], [other], Output(f"{tmp_path}/out/"), run(), joining=Joining(how))
    assert set(report.notes.values()) == {0}
    assert {key: sorted(fields) for key, fields in found(tmp_path / "out/x.tar").items()} == {
        "s0": ["cls", "txt"],
        "s1": ["cls", "txt"],
    }


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_join_in_which_nothing_matches_shows_both_sides(tmp_path, how, dry):
    one = write(tmp_path / "x.tar", [(f"{i:05d}", {"cls": b"1"}) for i in range(9)])
    (tmp_path / "t.csv").write_text("key,txt\n" + "".join(f"{i},x\n" for i in range(9)))
    with pytest.raises(JobError, match=r"samples have '00000', '00001', .* has '0', '1', .*--key COLUMN"):
        join(
            [one],
            [str(tmp_path / "t.csv")],
            Output(f"{tmp_path}/out/"),
            run(dry=dry),
            joining=Joining(how),
        )
    assert not (tmp_path / "out").exists()
    (tmp_path / "t.csv").write_text("key,txt\n")
    with pytest.raises(JobError, match="this has no keys at all"):
        join([one], [str(tmp_path / "t.csv")], Output(f"{tmp_path}/out/"), run())
