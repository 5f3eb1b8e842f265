"""Select: an index and a stream yield the same samples, as plain Python does."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tarmac
from tarmac.errors import IndexingError, MissingField, UsageError
from tarmac.exact.selection import by_numbers
from tarmac.indexing.manifest import Inputs
from tarmac.storage.urls import read_keys
from tarmac.tools.options import Access
from tarmac.tools.plan import OnePass, open_indexed
from tarmac.tools.select import FieldRule, Select
from tarmac.tools.tally import Tally
from tools.shards import make


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    return make(tmp_path_factory.mktemp("select"), 20, 0, 13)


def selected(urls, **options):
    """Return the selected keys, on which an index and a stream must agree."""
    select = Select(**options)
    samples = open_indexed(Inputs(urls), select, Access())
    indexed = [each["__key__"] for each in samples.samples(samples.everything)]
    samples.dataset.close()
    streamed = OnePass(urls, select).samples(OnePass.everything)
    assert indexed == [each["__key__"] for each in streamed]
    return indexed


def everything(urls):
    return [each["__key__"] for each in tarmac.read(urls)]


@pytest.mark.parametrize(
    "bounds",
    [(None, None), (5, None), (None, 7), (3, 30, 4), (1, None, 10), (None, None, 3), (40, None), (12, 13)],
)
def test_slices_are_those_of_python(urls, bounds):
    wanted = slice(*bounds)
    assert selected(urls, slice=wanted) == everything(urls)[wanted]
    per_shard = [list(tarmac.read(url))[wanted] for url in urls]
    assert selected(urls, slice_shard=wanted) == [each["__key__"] for shard in per_shard for each in shard]


def test_slicing_shards_visits_each_shard_once(urls, monkeypatch):
    visits = []

    def count(part, *bounds):
        visits.append(part.numbers.tolist())
        return by_numbers(part, *bounds)

    monkeypatch.setattr("tarmac.tools.select.by_numbers", count)
    assert selected(urls, slice_shard=slice(1)) == ["s0/000", "s2/000"]
    assert visits == [[0], [1], [2]]


def test_negative_slices_need_an_index(urls):
    samples = open_indexed(Inputs(urls), Select(slice=slice(-3, None)), Access())
    assert list(samples.dataset.keys()) == everything(urls)[-3:]
    for field in ("slice", "slice_shard"):
        with pytest.raises(UsageError, match=field):
            list(OnePass(urls, Select(**{field: slice(-3, None)})).samples(OnePass.everything))


@pytest.mark.parametrize("value", ["1:2", slice(1, 2, 0), slice(1, 2, -1)])
def test_invalid_slices(value):
    for field in ("slice", "slice_shard"):
        with pytest.raises(UsageError, match=field):
            Select(**{field: value})


def test_keys_from_a_list(urls, tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text("s2/003\ns0/007\nnowhere\n\ns0/001\n")
    assert selected(urls, keys=str(path)) == ["s0/001", "s0/007", "s2/003"]
    assert selected(urls, keys=["./s0/007", "s2/003"]) == ["s0/007", "s2/003"]
    options = {"keys": path, "slice": slice(1, None)}
    assert selected(urls, **options) == ["s0/007", "s2/003"]
    before = Select(**options).options()
    path.write_text("s2/003\n")
    assert Select(**options).options() != before


def test_only_line_feeds_separate_keys(tmp_path):
    odd = ["a\u2028b", "a\x85b", "a\x0bb", "a\x0cb", "a\x1cb", "a\rb", "plain"]
    (tmp_path / "keys.txt").write_bytes("\r\n".join(odd).encode() + b"\n\r\n")
    assert read_keys(str(tmp_path / "keys.txt")) == frozenset(odd)


@pytest.mark.parametrize(
    ("condition", "true"),
    [
        ("json.width >= 100", lambda shard, n: n >= 10),
        ("cls = 3 and json.shard = 2", lambda shard, n: n % 5 == 3 and shard == 2),
        ("key like 's0/%'", lambda shard, n: shard == 0),
        ("has(txt) and txt.size > 50", lambda shard, n: len(f"text {n} of {shard} " * (n % 7 + 1)) > 50),
        ("has(jpg)", lambda shard, n: False),
    ],
)
def test_conditions(urls, condition, true):
    expected = [f"s{s}/{n:03d}" for s, count in ((0, 20), (2, 13)) for n in range(count) if true(s, n)]
    assert selected(urls, where=condition) == expected


def test_keys_that_are_not_utf8(tmp_path):
    urls = [str(tmp_path / "a.tar")]
    names = ["\udcff", "é", "plain"]
    with tarmac.TarWriter(urls[0], encoder=False) as writer:
        for name in names:
            writer.write({"__key__": name, "cls": b"1"})
    assert selected(urls, where="cls = 1") == names
    assert selected(urls, where=r"key = '\xff' or key = 'é'") == names[:2]


def test_a_condition_on_a_stream_holds_few_large_samples():
    taken = []

    def stream(size):
        for number in range(1500):
            taken.append(number)
            yield {"__key__": f"{number}", "__url__": "x.tar", "cls": b"1", "bin": size}

    for data, limit in ((bytes(1 << 20), 5), (b"", 1000)):
        taken.clear()
        samples = Select(where="cls = 1").of_all(stream(data), Tally())
        assert next(samples)["__key__"] == "0"
        assert len(taken) <= limit
        assert [each["__key__"] for each in samples] == [str(number) for number in range(1, 1500)]


def test_invalid_conditions_are_reported_before_any_work():
    with pytest.raises(IndexingError):
        Select(where="width >>> 3")


def test_splits_are_disjoint_and_complete(urls):
    split = {"train": 0.7, "val": 0.2, "test": 0.1}
    parts = [selected(urls, split=split, only=name) for name in split]
    assert sorted(key for part in parts for key in part) == sorted(everything(urls))
    assert len(parts[0]) > len(parts[1]) > 0
    datasets = tarmac.Dataset(urls).split(**split)
    assert list(datasets.val.keys()) == parts[1]
    datasets.train.close()


@pytest.mark.parametrize(
    "split",
    [{}, {"train": 0.9, "val": 0.2}, {"train": 0.8, "val": 0.1}, {"train": 0}, {"a": 2, "b": -1}, {"a b": 1}],
)
def test_invalid_splits(split):
    with pytest.raises(UsageError, match="split"):
        _ = Select(split=split).shares
    with pytest.raises(UsageError, match="only"):
        Select(split={"train": 0.5, "val": 0.5}, only="other")


def test_shares_may_be_rounded():
    assert len(Select(split={f"p{i}": 1 / 3 for i in range(3)}).shares) == 3
    assert len(Select(split={f"p{i}": 0.1 for i in range(10)}).shares) == 10


SAMPLE = {"__key__": "k", "__url__": "u", "jpg": b"1", "cls": b"2", "json": b"3"}


def cut(sample, **options):
    return list(Select(**options).cut([sample]))


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"fields": ["cls"]}, {"cls": b"2"}),
        ({"fields": {"img": ["png", "jpg"], "cls": "cls"}}, {"img": b"1", "cls": b"2"}),
        ({"fields": ["JSON"]}, {"JSON": b"3"}),
        ({"drop_fields": ["json"]}, {"jpg": b"1", "cls": b"2"}),
        ({"drop_fields": {"json", "CLS"}}, {"jpg": b"1"}),
        ({"fields": {"a": "cls", "b": "cls"}}, {"a": b"2", "b": b"2"}),
        ({}, {"jpg": b"1", "cls": b"2", "json": b"3"}),
    ],
)
def test_fields(options, fields):
    assert cut(SAMPLE, **options) == [{"__key__": "k", "__url__": "u"} | fields]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"fields": {"": "jpg"}}, "fields"),
        ({"fields": {"a": []}}, "fields"),
        ({"fields": "jpg"}, "fields"),
        ({"drop_fields": "jpg"}, "drop_fields"),
        ({"fields": ["a"], "drop_fields": ["b"]}, "drop_fields"),
        ({"fields": ["a", "a"]}, "fields"),
        ({"fields": ["a"], "missing": "drop"}, "missing"),
    ],
)
def test_invalid_fields(options, field):
    with pytest.raises(UsageError, match=field):
        Select(**options)


def test_missing_fields_are_an_error_or_skip_the_sample():
    with pytest.raises(MissingField, match=r"k.*png.*gif"):
        cut(SAMPLE, fields={"img": ["png", "gif"]})
    assert cut(SAMPLE, fields=["png"], missing="skip") == []
    assert cut(SAMPLE | {"png": b"4"}, fields=["png"], missing="skip") == [
        {"__key__": "k", "__url__": "u", "png": b"4"}
    ]


@given(st.lists(st.sampled_from(["jpg", "cls", "json", "x"]), unique=True, max_size=4))
def test_dropping_is_the_rest_of_keeping(names):
    dropped = FieldRule(dropped=frozenset(names))(SAMPLE)
    assert dropped == {name: value for name, value in SAMPLE.items() if name not in names}


def test_a_selection_pickles_and_names_what_it_depends_on():
    select = Select(fields=["cls"], where="cls > 2", slice=slice(1, None))
    assert pickle.loads(pickle.dumps(select)).options() == select.options()
    assert select.options() == {"fields": "cls", "where": "cls > 2", "slice": "1:"}
    assert Select(drop_fields=["b", "a"], split={"a": 0.5, "b": 0.5}, only="a").options() == {
        "fields": "-b,-a",
        "part": "a=0.5,b=0.5",
        "only": "a",
    }
    assert Select().options() == {}
