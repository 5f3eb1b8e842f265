"""Join: every sample is written, with the fields of its match."""

from __future__ import annotations

import csv
import functools
import gzip
import json
import os

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
from tarmac.errors import (
    DuplicateField,
    ErrorBudgetExceeded,
    JobError,
    JobMismatch,
    NotFound,
    SampleError,
    UsageError,
)
from tarmac.storage import StorageOptions, WriteOptions, open_write
from tools.shards import write

join = functools.partial(tarmac.join, jobs=1)

ROWS = [{"key": "a1", "caption": "one, two", "cls2": 4}, {"key": "b0", "caption": "", "cls2": 5}]
ROWS += [{"key": "none", "caption": "nothing", "cls2": 6}]


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def urls(tmp_path):
    return [
        write(tmp_path / f"{name}.tar", [(f"{name}{i}", {"cls": b"%d" % i}) for i in range(3)])
        for name in "ab"
    ]


def samples_of(*paths):
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
    report = join(urls, [other], f"{tmp_path}/out/")
    assert sorted(os.listdir(tmp_path / "out")) == [".tarmac", "a.tar", "b.tar"]
    assert samples_of(tmp_path / "out/a.tar", tmp_path / "out/b.tar") == {
        "a0": {"cls": b"0", "json": b"0", "txt": b"x"},
        "a1": {"cls": b"1"},
        "a2": {"cls": b"2"},
        "b0": {"cls": b"0"},
        "b1": {"cls": b"1"},
        "b2": {"cls": b"2", "json": b"2"},
    }
    assert (report.read, report.written) == (6, 6)
    assert report.notes == {"without_a_partner": 4, "rows_not_used": 1}
    again = join(urls, [other], f"{tmp_path}/out/")
    assert (again.kept, again.notes) == (2, report.notes)
    write(other, [("a1", {"json": b"2"})])
    with pytest.raises(JobMismatch):
        join(urls, [other], f"{tmp_path}/out/")


@pytest.mark.parametrize("name", ["o.tar", "o.tar.gz"])
def test_changed_bytes_of_equal_size_are_another_job(tmp_path, urls, name):
    other = write(tmp_path / name, [("a1", {"json": b"1"})])
    join(urls, [other], f"{tmp_path}/out/")
    write(other, [("a1", {"json": b"2"})])
    os.utime(other, ns=(0, 10**9))
    with pytest.raises(JobMismatch):
        join(urls, [other], f"{tmp_path}/out/")
    join(urls, [other], f"{tmp_path}/out/", overwrite=True)
    assert samples_of(tmp_path / "out/a.tar")["a1"]["json"] == b"2"


def test_inner_drops_and_counts(tmp_path, urls):
    other = write(tmp_path / "o.tar", [("b2", {"json": b"2"}), ("a0", {"json": b"0"}), ("zz", {"json": b""})])
    report = join(urls, [other], f"{tmp_path}/j-{{i}}.tar", max_samples=1, how="inner")
    assert [list(samples_of(tmp_path / f"j-{i}.tar")) for i in (0, 1)] == [["a0"], ["b2"]]  # none is empty
    assert (report.read, report.written) == (6, 2)
    assert report.notes == {"without_a_partner_dropped": 4, "rows_not_used": 1}


def test_duplicates(tmp_path, urls):
    others = [write(tmp_path / f"o{i}.tar", [("a0", {"txt": b"%d" % i})]) for i in (0, 1)]
    with pytest.raises(SampleError, match="a0") as caught:
        join(urls, others, f"{tmp_path}/out/")
    assert caught.value.key == "a0"
    report = join(urls, others, f"{tmp_path}/out/", on_duplicate="first")
    assert samples_of(tmp_path / "out/a.tar")["a0"]["txt"] == b"0"
    assert report.notes["rows_not_used"] == 1
    (tmp_path / "t.csv").write_text("key,x\na,1\na,2\n")
    with pytest.raises(SampleError, match="sample") as caught:
        join(urls, [str(tmp_path / "t.csv")], f"{tmp_path}/p/")
    assert caught.value.key == "a"


def test_the_same_key_in_two_shards_has_the_same_match(tmp_path):
    urls = [write(tmp_path / f"{name}.tar", [("k", {"cls": name.encode()})]) for name in "ab"]
    other = write(tmp_path / "o.tar", [("k", {"txt": b"x"})])
    report = join(urls, [other], f"{tmp_path}/out/")
    assert [samples_of(tmp_path / f"out/{n}.tar")["k"]["txt"] for n in "ab"] == [b"x", b"x"]
    assert report.notes == {"without_a_partner": 0, "rows_not_used": 0}


def test_fields_that_exist_already(tmp_path, urls):
    other = write(tmp_path / "o.tar", [("a1", {"cls": b"new"}), ("b0", {"txt": b"x"})])
    with pytest.raises(DuplicateField, match='"cls"') as caught:
        join(urls, [other], f"{tmp_path}/out/")
    assert (caught.value.key, caught.value.url) == ("a1", urls[0])
    join(urls, [other], f"{tmp_path}/r/", replace=True)
    assert samples_of(tmp_path / "r/a.tar")["a1"] == {"cls": b"new"}
    join(urls, [other], f"{tmp_path}/p/", prefix="more.")
    assert samples_of(tmp_path / "p/a.tar")["a1"] == {"cls": b"1", "more.cls": b"new"}
    report = join(urls, [other], f"{tmp_path}/s/", on_error="skip")
    assert (report.read, report.written, report.failed) == (6, 5, 1)
    assert 'sample "a1"' in report.errors[0]
    assert sorted(samples_of(tmp_path / "s/a.tar")) == ["a0", "a2"]
    with pytest.raises(ErrorBudgetExceeded):
        join(urls, [other], f"{tmp_path}/t/", max_errors=0, on_error="skip")


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_tables(tmp_path, urls, kind):
    path = table(tmp_path, kind)
    report = join(urls, [path], f"{tmp_path}/out/")
    samples = samples_of(tmp_path / "out/a.tar", tmp_path / "out/b.tar")
    assert samples["a1"] == {"cls": b"1", "caption": b"one, two", "cls2": b"4"}
    assert samples["b0"] == {"cls": b"0", "caption": b"", "cls2": b"5"}
    assert samples["b1"] == {"cls": b"1"}
    assert report.notes == {"without_a_partner": 4, "rows_not_used": 1}
    join(urls, [path], f"{tmp_path}/json/", rows="json", prefix="row.")
    row = json.loads(samples_of(tmp_path / "json/a.tar")["a1"]["row.json"])
    assert row == {"key": "a1", "caption": "one, two", "cls2": "4" if kind in ("csv", "tsv") else 4}


def test_compressed_and_several_tables(tmp_path, urls):
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"name,txt\na0,hello\n"))
    (tmp_path / "y.csv").write_text("name,txt\nb1,there\n")
    report = join(
        urls,
        [str(tmp_path / "x.csv.gz"), str(tmp_path / "y.csv")],
        f"{tmp_path}/j-{{i}}.tar",
        how="inner",
        key="name",
    )
    assert samples_of(tmp_path / "j-0.tar") == {
        "a0": {"cls": b"0", "txt": b"hello"},
        "b1": {"cls": b"1", "txt": b"there"},
    }
    assert report.notes["rows_not_used"] == 0


def test_selecting_from_the_result(tmp_path, urls):
    path = table(tmp_path, "csv")
    report = join(
        urls,
        [path],
        f"{tmp_path}/j-{{i}}.tar",
        fields={"text": "caption", "cls": "cls"},
        missing="skip",
        where="cls >= 1",
    )
    assert samples_of(tmp_path / "j-0.tar") == {"a1": {"text": b"one, two", "cls": b"1"}}
    assert report.written == 1


def test_sizes_include_joined_fields(tmp_path, urls):
    other = write(tmp_path / "o.tar", [(f"a{i}", {"bin": b"x" * 100}) for i in range(3)])
    join(urls, [other], f"{tmp_path}/j-{{i}}.tar", max_bytes=202)
    assert [list(samples_of(path)) for path in sorted(tmp_path.glob("j-*"))] == [
        ["a0", "a1"],
        ["a2", "b0", "b1", "b2"],
    ]
    path = table(tmp_path, "csv")
    join(urls, [path], f"{tmp_path}/t-{{i}}.tar", max_bytes=9)
    assert [list(samples_of(path)) for path in sorted(tmp_path.glob("t-*"))][:2] == [["a0"], ["a1"]]


def test_compressed_shards_and_scattered_samples(tmp_path):
    content = plain([("b.txt", b"2"), ("a.txt", b"1"), ("b.cls", b"3")])
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(content))
    (tmp_path / "y.tar").write_bytes(plain([("b.json", b"{}"), ("a.x", b""), ("b.x", b"9")]))
    join([str(tmp_path / "x.tar.gz")], [str(tmp_path / "y.tar")], f"{tmp_path}/out/", tmp=str(tmp_path))
    assert samples_of(tmp_path / "out/x.tar") == {
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
        with pytest.raises(JobError, match=r"r\.tar"):
            join([one], [two], f"{folder}/o.tar", how=how)
        return
    report = join([one], [two], f"{folder}/o.tar", how=how)
    expected = {
        key: {"x": data} | ({"y": right[key]} if key in right else {})
        for key, data in left.items()
        if how == "left" or key in right
    }
    assert (samples_of(folder / "o.tar") if expected else {}) == expected
    alone, unused = report.notes.values()
    assert (alone, unused) == (len(left.keys() - right.keys()), len(right.keys() - left.keys()))


def test_bytes_do_not_depend_on_the_number_of_processes(tmp_path, urls):
    path = table(tmp_path, "parquet")
    for jobs in (1, 2):
        join(urls, [path], f"{tmp_path}/{jobs}/j-{{i}}.tar", max_samples=1, jobs=jobs)
    names = sorted(path.name for path in (tmp_path / "1").glob("*.tar"))
    assert len(names) == 6
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_killed_at_any_moment(tmp_path):
    urls = [
        write(tmp_path / f"{i}.tar", [(f"{i}{k:03d}", {"cls": b"1"}) for k in range(20)]) for i in range(8)
    ]
    (tmp_path / "t.csv").write_text(
        "key,txt\n" + "".join(f"{i}{k:03d},t{i}{k}\n" for i in range(8) for k in range(20))
    )
    output = f"{tmp_path}/out/"

    def check():
        for path in (tmp_path / "out").glob("*.tar"):
            assert len(samples_of(path)) == 20
            assert all(set(fields) == {"cls", "txt"} for fields in samples_of(path).values())

    work = Forked(lambda: join(urls, [str(tmp_path / "t.csv")], output, tmp=str(tmp_path)))
    survive(rounds(10), lambda seed: work.crash(seed, 0.08), check)
    join(urls, [str(tmp_path / "t.csv")], output, tmp=str(tmp_path))
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
                "s3://joins/out/",
                storage=storage,
            )
        assert (report.written, report.kept) == (3, 1)
        samples = {s["__key__"]: s for s in tarmac.read("s3://joins/out/a.tar", storage=storage)}
        assert samples["a1"]["caption"] == b"one, two"


def test_invalid_sources(tmp_path, urls):
    with pytest.raises(NotFound):
        join(urls, [], f"{tmp_path}/out/")
    with pytest.raises(UsageError, match="key"):
        join(urls, urls[:1], f"{tmp_path}/out/", key="x")
    same = tmp_path / "sub"
    same.mkdir()
    twin = write(same / "a.tar", [("k", {"cls": b""})])
    with pytest.raises(UsageError, match=r"a\.tar"):
        join([urls[0], twin], [table(tmp_path, "csv")], f"{tmp_path}/out/")


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("left", ["./", ""])
@pytest.mark.parametrize("right", ["./", "", None])
def test_keys_with_a_leading_dot_slash(tmp_path, left, right, how):
    """`tar cf x.tar .` puts ./ before every name."""
    (tmp_path / "x.tar").write_bytes(plain((f"{left}s{i}.cls", b"1") for i in range(2)))
    (tmp_path / "o.tar").write_bytes(plain((f"{right}s{i}.txt", b"x") for i in range(2)))
    (tmp_path / "t.csv").write_text("key,txt\ns0,zero\ns1,one\n")
    one, other = str(tmp_path / "x.tar"), str(tmp_path / ("t.csv" if right is None else "o.tar"))
    report = join([one], [other], f"{tmp_path}/out/", how=how)
    assert set(report.notes.values()) == {0}
    assert {key: sorted(fields) for key, fields in samples_of(tmp_path / "out/x.tar").items()} == {
        "s0": ["cls", "txt"],
        "s1": ["cls", "txt"],
    }


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_an_error_shows_keys_of_both_sides_if_none_match(tmp_path, how, dry_run):
    one = write(tmp_path / "x.tar", [(f"{i:05d}", {"cls": b"1"}) for i in range(9)])
    (tmp_path / "t.csv").write_text("key,txt\n" + "".join(f"{i},x\n" for i in range(9)))
    with pytest.raises(JobError, match=r"t\.csv: .*'00000', '00001', .*'0', '1', .*key"):
        join([one], [str(tmp_path / "t.csv")], f"{tmp_path}/out/", dry_run=dry_run, how=how)
    assert not (tmp_path / "out").exists()
    (tmp_path / "t.csv").write_text("key,txt\n")
    with pytest.raises(JobError, match=r"t\.csv: .*'00000', '00001', .*`key`"):
        join([one], [str(tmp_path / "t.csv")], f"{tmp_path}/out/")


def test_columns_and_whole_rows(tmp_path, urls):
    """Columns can be selected and renamed; whole rows keep all columns, whatever their names."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": "a0", "a b": 1, "score": 0.5, "n": null}\n')
    with pytest.raises(UsageError, match="a b"):
        join(urls, str(path), f"{tmp_path}/a/", key="id")
    join(urls, str(path), f"{tmp_path}/b/", key="id", columns={"a b": "ab.cls", "score": "score", "n": "n"})
    assert samples_of(tmp_path / "b/a.tar")["a0"] == {"cls": b"0", "ab.cls": b"1", "score": b"0.5"}
    join(urls, str(path), f"{tmp_path}/c/", key="id", columns=["score"], prefix="x.")
    assert samples_of(tmp_path / "c/a.tar")["a0"] == {"cls": b"0", "x.score": b"0.5"}
    join(urls, str(path), f"{tmp_path}/d/", key="id", rows="json")
    row = json.loads(samples_of(tmp_path / "d/a.tar")["a0"]["json"])
    assert row == {"id": "a0", "a b": 1, "score": 0.5, "n": None}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"how": "outer"}, "how"),
        ({"rows": "row"}, "rows"),
        ({"on_duplicate": "last"}, "on_duplicate"),
        ({"key": "nope"}, "nope"),
        ({"columns": ["nope"]}, "nope"),
        ({"prefix": "a b."}, "prefix"),
    ],
)
def test_invalid_arguments(tmp_path, urls, options, match):
    with pytest.raises(UsageError, match=match):
        join(urls, table(tmp_path, "csv"), f"{tmp_path}/out/", **options)
    assert not (tmp_path / "out").exists()


def test_tables_of_several_formats(tmp_path, urls):
    with pytest.raises(UsageError, match="csv, jsonl"):
        join(urls, [table(tmp_path, "csv"), table(tmp_path, "jsonl")], f"{tmp_path}/out/")
    with pytest.raises(UsageError, match="csv, shards"):
        join(urls, [table(tmp_path, "csv"), urls[0]], f"{tmp_path}/out/")


def test_prefixes_end_at_a_dot(urls, tmp_path):
    path = tmp_path / "t.jsonl"
    key = next(iter(tarmac.read(urls[0])))["__key__"]
    path.write_text(json.dumps({"key": key, "image": {"bytes": None, "path": None}, "n": 1}) + "\n")
    for prefix, name in (("meta", "meta.n"), ("meta.", "meta.n"), ("m_", "m_n")):
        join(urls, str(path), f"{tmp_path}/{prefix}/", prefix=prefix)
        first = next(iter(tarmac.read(f"{tmp_path}/{prefix}/*.tar")))
        assert first[name] == b"1"


def test_files_in_rows(urls, tmp_path):
    path = tmp_path / "t.parquet"
    key = next(iter(tarmac.read(urls[0])))["__key__"]
    rows = [{"__key__": key, "image": {"bytes": b"1", "path": "x.PNG"}}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    join(urls, str(path), f"{tmp_path}/o/", prefix="right")
    assert next(iter(tarmac.read(f"{tmp_path}/o/*.tar")))["right.image.png"] == b"1"
