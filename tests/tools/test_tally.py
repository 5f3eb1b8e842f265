"""Every input sample is accounted for, and a selection that cannot be intended is an error."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from tarmac.errors import BadCondition, JobError, TarmacError, UsageError
from tools.shards import keys, make


def twice(sample):
    yield sample
    yield sample | {"__key__": sample["__key__"] + "-2"}


def some(sample):
    if sample["__key__"].endswith("1"):
        return None
    if sample["__key__"].endswith("2"):
        raise ValueError("two")
    return sample


VERBS = {
    "copy": lambda urls, **options: tarmac.copy(urls, "out/", **options),
    "copy to one": lambda urls, **options: tarmac.copy(urls, "out/x.tar", **options),
    "shuffled": lambda urls, **options: tarmac.copy(
        urls, "out/x-{i}.tar", max_samples=3, shuffle=True, **options
    ),
    "sort": lambda urls, **options: tarmac.sort(urls, "out/x-{i}.tar", **options),
    "first of each class": lambda urls, **options: tarmac.sort(
        urls, "out/x-{i}.tar", by="cls", unique="first", **options
    ),
    "map": lambda urls, **options: tarmac.map(urls, "out/", some, on_error="skip", **options),
    "map to more": lambda urls, **options: tarmac.map(urls, "out/x.tar", twice, **options),
    "join": lambda urls, **options: tarmac.join(urls, "t.csv", "out/", **options),
    "inner join": lambda urls, **options: tarmac.join(urls, "t.csv", "out/x.tar", how="inner", **options),
    "jsonl": lambda urls, **options: tarmac.export(urls, "out/x.jsonl", "jsonl", **options),
    "parquet": lambda urls, **options: tarmac.export(
        urls, "out/x-{i}.parquet", "parquet", on_error="skip", **options
    ),
}
SELECT = {
    "all": {},
    "where": {"where": "json.width < 50"},
    "keys": {"keys": "keys.txt"},
    "slice": {"slice": slice(2, 9)},
    "slice of each": {"slice_shard": slice(1, None, 2)},
    "split": {"split": {"a": 0.5, "b": 0.5}, "only": "a"},
    "fields": {"fields": ["cls", "extra"], "missing": "skip"},
    "several": {
        "where": "json.width > 0", "slice_shard": slice(6), "slice": slice(7), "missing": "skip"
    },
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two shards of ten samples, plain and compressed; the first three of each have an extra field."""
    for shard in range(2):
        with tarmac.TarWriter(str(tmp_path / f"in-{shard}.tar")) as writer:
            for number in range(10):
                extra = {"extra": b"x"} if number < 3 else {}
                sample = {"__key__": f"{shard}{number}", "cls": number % 4, "json": {"width": 10 * number}}
                writer.write(sample | extra)
        data = (tmp_path / f"in-{shard}.tar").read_bytes()
        (tmp_path / f"in-{shard}.tar.gz").write_bytes(gzip.compress(data, 1, mtime=0))
    (tmp_path / "t.csv").write_text("key,score\n" + "".join(f"0{i},{i}\n" for i in range(5)))
    (tmp_path / "keys.txt").write_text("00\n03\n11\n17\nnone\n./12\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(verb, urls, **options):
    """Call a verb; None if the inputs are streams and it cannot do this with streams."""
    try:
        return VERBS[verb](urls, jobs=1, **options)
    except UsageError as error:
        if not urls[0].endswith(".gz") or (error.field or "") in ("keys", "where"):
            raise
        return None


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
@pytest.mark.parametrize("select", SELECT)
@pytest.mark.parametrize("verb", VERBS)
def test_inputs_are_written_left_out_dropped_or_failed(folder, verb, select, form):
    urls = [f"in-0.{form}", f"in-1.{form}"]
    report = called(verb, urls, **SELECT[select])
    if report is None:
        return
    total = report.written + report.failed + report.dropped + report.left_out
    assert report.read + report.added == total, report
    assert report.read == 20 or (form == "tar.gz" and "slice" in SELECT[select])
    assert [remark for remark in report.remarks if "'none'" not in remark] == []
    assert len(report.remarks) == (select == "keys")
    again = called(verb, urls, **SELECT[select])
    for name in ("read", "left_out", "added", "written", "failed", "dropped"):
        assert getattr(again, name) == getattr(report, name)
    assert again.done == 0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_the_report_counts_as_python_does(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("law")
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    urls = make(folder, *sizes)
    width = data.draw(st.integers(0, 60))
    first, last = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    expected = [s["__key__"] for s in tarmac.read(urls) if json.loads(s["json"])["width"] < width][first:last]
    options = {"where": f"json.width < {width}", "slice": slice(first, last), "jobs": 1}
    if sum(sizes) and not expected:
        with pytest.raises(JobError, match=f"{sum(sizes)} samples"):
            tarmac.copy(urls, f"{folder}/o.tar", **options)
        return
    report = tarmac.copy(urls, f"{folder}/o.tar", **options)
    assert (report.read, report.left_out) == (sum(sizes), sum(sizes) - len(expected))
    assert keys(f"{folder}/o.tar") == expected


def test_the_line_counts_selected_samples(folder):
    report = tarmac.copy(["in-0.tar", "in-1.tar"], "x.tar", where="cls = 1")
    assert str(report).startswith("copy: 20 samples in, 6 selected, 6 out, ")
    report = tarmac.copy("in-0.tar", "y.tar", keys="keys.txt")
    assert report.remarks == ["keys.txt: 4 of the listed keys do not exist: '11', '12', '17', 'none'"]
    assert str(report).startswith("copy: 10 samples in, 2 selected")
    assert keys("y.tar") == ["00", "03"]


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
@pytest.mark.parametrize("verb", ["copy", "copy to one", "sort", "map", "join", "jsonl", "parquet"])
def test_a_column_that_no_sample_has_is_an_error(folder, verb, form):
    with pytest.raises(TarmacError, match=r"json\.widht.*json\.width"):
        if called(verb, [f"in-0.{form}", f"in-1.{form}"], where="cls = 1 and json.widht > 3") is None:
            raise BadCondition("json.widht, json.width")  # not for streams
    assert keys("out/*.tar") == []


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
@pytest.mark.parametrize(
    "condition", ["json.widht is null", "json.widht > 3 or cls >= 0", "not has(nothing)"]
)
def test_a_column_that_no_sample_has_may_not_matter(folder, condition, form):
    assert tarmac.copy(f"in-0.{form}", "x.tar", where=condition).read == 10
    assert len(keys("x.tar")) == 10


def test_datasets_check_columns_too(folder):
    tarmac.index(["in-0.tar", "in-1.tar"], output="m.json", meta=["json.widht", "json.width", "cls"])
    dataset = tarmac.Dataset("m.json")
    with pytest.raises(BadCondition, match=r"json\.widht.*json\.width"):
        dataset.where("json.widht > 3")
    with pytest.raises(BadCondition, match=r"json\.widht"):
        dataset.where("cls > 100 or json.widht > 3")
    assert len(dataset.where("json.widht is null")) == 20
    assert len(dataset.where("json.widht > 3 or cls = 1")) == 6
    assert len(dataset.where("cls > 100")) == 0
    assert len(dataset[:0].where("json.widht > 3")) == 0


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
@pytest.mark.parametrize("verb", ["copy", "sort", "map", "jsonl"])
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"where": "cls = 99"}, "where"),
        ({"slice": slice(100, None)}, "slice"),
        ({"slice_shard": slice(50, None)}, "slice_shard"),
        ({"keys": "wrong.txt"}, r"wrong\.txt.*'000', '001'.*'00'"),
    ],
    ids=["where", "slice", "slice_shard", "keys"],
)
def test_an_empty_selection_is_an_error(folder, verb, options, match, form):
    (folder / "wrong.txt").write_text("000\n001\n")
    with pytest.raises((JobError, UsageError), match=match):
        if called(verb, [f"in-0.{form}"], **options) is None:
            raise UsageError("where slice slice_shard wrong.txt '000', '001' '00'")  # not for streams
    assert keys("out/*.tar") == []


def test_no_samples(folder):
    with tarmac.TarWriter("empty.tar"):
        pass
    for verb in ("copy", "sort", "map", "jsonl"):
        report = VERBS[verb](["empty.tar"])
        assert (report.read, report.written) == (0, 0)
        assert "there are no samples" in str(report)


def test_a_split_without_samples_is_reported(folder):
    report = tarmac.copy("in-0.tar", "{split}.tar", split={"all": 0.999999, "none": 0.000001})
    assert (report.read, report.written) == (10, 10)
    assert len(report.remarks) == 1
    assert "none" in report.remarks[0]
