"""The Select flags: the same samples from an index and from a stream, as plain Python says."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tarmac
from tarmac.errors import IndexingError, MissingField, UrlError
from tarmac.tools.plan import OutputShard, StreamedShards, open_indexed
from tarmac.tools.select import FieldRule, Select, parse_fields, parse_part, parse_slice, read_keys
from tools.shards import make


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    return make(tmp_path_factory.mktemp("select"), 20, 0, 13)


def both(urls, **flags):
    """The keys that are chosen, which an index and a stream must agree on."""
    select = Select(**flags)
    rows = open_indexed(urls, select)
    indexed = [each["__key__"] for each in rows.samples(OutputShard("x", 0, rows.size))]
    rows.dataset.close()
    streams = StreamedShards(urls, select)
    streamed = [each["__key__"] for each in select.cut(select.of_stream(streams.shards()))]
    assert indexed == streamed
    return indexed


def everything(urls):
    return [each["__key__"] for each in tarmac.read(urls)]


@pytest.mark.parametrize("text", [":", "5:", ":7", "3:30:4", "1::10", "::3", "40:", "12", "0"])
def test_slices_are_those_of_python(urls, text):
    assert both(urls, slice=text) == everything(urls)[parse_slice(text)]
    per_shard = [list(tarmac.read(url)) for url in urls]
    chosen = [each["__key__"] for shard in per_shard for each in shard[parse_slice(text)]]
    assert both(urls, slice_shard=text) == chosen


def test_splitting_by_offset_gives_every_sample_once(urls):
    parts = [both(urls, slice=f"{offset}::10") for offset in range(10)]
    assert sorted(key for part in parts for key in part) == sorted(everything(urls))


def test_negative_slices_need_an_end(urls):
    rows = open_indexed(urls, Select(slice="-3:"))
    assert [rows.dataset.key_of(i) for i in range(3)] == everything(urls)[-3:]
    with pytest.raises(UrlError, match="no end to count from"):
        list(Select(slice="-3:").of_stream([]))
    assert parse_slice("-1") == slice(-1, None)


@pytest.mark.parametrize("text", ["a:b", "1:2:0", "1:2:-1", "1:2:3:4", ""])
def test_what_is_no_slice(text):
    with pytest.raises(UrlError):
        parse_slice(text)


def test_keys_from_a_list(urls, tmp_path):
    (tmp_path / "keys.txt").write_text("s2/003\ns0/007\nnowhere\n\ns0/001\n")
    assert both(urls, keys=str(tmp_path / "keys.txt")) == ["s0/001", "s0/007", "s2/003"]
    flags = {"keys": str(tmp_path / "keys.txt"), "slice": "1:"}
    assert both(urls, **flags) == ["s0/007", "s2/003"]
    before = Select(**flags).options()
    (tmp_path / "keys.txt").write_text("s2/003\n")
    assert Select(**flags).options() != before


def test_only_the_end_of_a_line_ends_a_key(tmp_path):
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
    wanted = [f"s{s}/{n:03d}" for s, count in ((0, 20), (2, 13)) for n in range(count) if true(s, n)]
    assert both(urls, where=condition) == wanted


def test_keys_that_are_not_utf8(tmp_path):
    urls = [str(tmp_path / "a.tar")]
    names = ["\udcff", "é", "plain"]
    with tarmac.TarWriter(urls[0], encoder=False) as writer:
        for name in names:
            writer.write({"__key__": name, "cls": b"1"})
    assert both(urls, where="cls = 1") == names
    assert both(urls, where=r"key = '\xff' or key = 'é'") == names[:2]


def test_a_condition_on_a_stream_holds_few_large_samples():
    taken = []

    def stream(size):
        for number in range(1500):
            taken.append(number)
            yield {"__key__": f"{number}", "__url__": "x.tar", "cls": b"1", "bin": size}

    for data, most in ((bytes(1 << 20), 5), (b"", 1000)):
        taken.clear()
        chosen = Select(where="cls = 1").of_stream([stream(data)])
        assert next(chosen)["__key__"] == "0"
        assert len(taken) <= most
        assert [each["__key__"] for each in chosen] == [str(number) for number in range(1, 1500)]


def test_a_condition_that_cannot_be_understood_is_told_at_once():
    with pytest.raises(IndexingError):
        Select(where="width >>> 3")


def test_parts_are_disjoint_and_whole(urls):
    parts = [both(urls, part="train=0.7,val=0.2,test=0.1", only=name) for name in ("train", "val", "test")]
    assert sorted(key for part in parts for key in part) == sorted(everything(urls))
    assert len(parts[0]) > len(parts[1]) > 0
    split = tarmac.Dataset(urls).split(train=0.7, val=0.2, test=0.1)
    assert list(split.val.keys()) == parts[1]
    split.train.close()


@pytest.mark.parametrize(
    "text",
    ["train=x", "train=0.9,val=0.2", "train=0.8,val=0.1", "train=0", "train=2,val=-1", "a b=1", "", "train"],
)
def test_what_are_no_parts(text):
    with pytest.raises(UrlError, match="--part"):
        parse_part(text)
    with pytest.raises(UrlError, match="--only nobody"):
        Select(part="train=0.5,val=0.5", only="nobody")


@pytest.mark.parametrize("text", ["train=0.8,val=0.1", "rest=0.3", "a=0.333333,b=0.333333", "a=0.1,b=0.2,"])
def test_shares_that_leave_samples_in_no_part_are_refused_with_the_rest(text):
    with pytest.raises(UrlError, match="must be positive and add up to 1") as refused:
        Select(part=text, only="a")
    parsed = parse_part(refused.value.hint.removeprefix("--part "))
    assert sum(parsed.values()) == pytest.approx(1)
    assert list(parsed.items())[:-1] == [
        (name, float(share)) for name, share in (item.split("=") for item in text.strip(",").split(","))
    ]


def test_shares_may_be_rounded():
    assert len(parse_part(",".join(f"p{i}={1 / 3!r}" for i in range(3)))) == 3
    assert len(parse_part(",".join(f"p{i}=0.1" for i in range(10)))) == 10


SAMPLE = {"__key__": "k", "__url__": "u", "jpg": b"1", "cls": b"2", "json": b"3"}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("cls", {"cls": b"2"}),
        ("img=png|jpg,cls", {"img": b"1", "cls": b"2"}),
        ("JSON", {"JSON": b"3"}),
        ("-json", {"jpg": b"1", "cls": b"2"}),
        ("-json,-cls", {"jpg": b"1"}),
        ("a=cls, b=cls", {"a": b"2", "b": b"2"}),
    ],
)
def test_fields(text, fields):
    assert parse_fields(text)(SAMPLE) == {"__key__": "k", "__url__": "u"} | fields


@pytest.mark.parametrize("text", ["=jpg", "a=", "jpg|png", "a,-b", "a=x,a=y", "a=x|"])
def test_what_are_no_fields(text):
    with pytest.raises(UrlError, match="--fields"):
        parse_fields(text)


def test_missing_fields_are_an_error_or_skip_the_sample():
    with pytest.raises(MissingField, match=r"no png or gif.*--missing skip"):
        parse_fields("img=png|gif")(SAMPLE)
    assert parse_fields("img=png", "skip")(SAMPLE) is None
    assert list(Select(fields="png", missing="skip").cut([SAMPLE, SAMPLE | {"png": b"4"}])) == [
        {"__key__": "k", "__url__": "u", "png": b"4"}
    ]
    assert parse_fields("") is None


@given(st.lists(st.sampled_from(["jpg", "cls", "json", "x"]), unique=True, max_size=4))
def test_dropping_is_the_rest_of_keeping(names):
    dropped = FieldRule(dropped=frozenset(names))(SAMPLE)
    assert dropped == {name: value for name, value in SAMPLE.items() if name not in names}


def test_a_selection_pickles_and_says_what_it_depends_on(tmp_path):
    select = Select(fields="cls", where="cls > 2", slice="1:")
    assert pickle.loads(pickle.dumps(select)) == select
    assert select.options() == {"fields": "cls", "where": "cls > 2", "slice": "1:"}
    assert Select().options() == {}
