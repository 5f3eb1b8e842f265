"""Steps that process one sample at a time."""

from __future__ import annotations

import pickle

import pytest

from tarmac.errors import DuplicateField, MissingField, NoCodec, TarmacError, UsageError
from tarmac.steps import fields
from tarmac.steps.handlers import (
    ignore_and_continue,
    ignore_and_stop,
    reraise_exception,
    warn_and_continue,
    warn_and_stop,
)

SAMPLE = {"__key__": "k", "__url__": "u.tar", "jpg": 1, "cls": 2}


def run(stage, *samples):
    return list(stage(iter(samples)))


def with_b(sample):
    return {**sample, "b": 1}


def test_getfirst():
    assert fields.getfirst(SAMPLE, "png;jpg") == 1
    assert fields.getfirst(SAMPLE, ["png", "cls"]) == 2
    assert fields.getfirst(SAMPLE, "png", default=9, missing_is_error=False) == 9
    with pytest.raises(MissingField, match=r'u.tar, sample "k": .*"png;gif".* jpg, cls'):
        fields.getfirst(SAMPLE, "png;gif")


def test_transform_with():
    assert fields.transform_with((1, 2, 3), None) == (1, 2, 3)
    assert fields.transform_with((1, 2, 3), [str, None]) == ["1", 2, 3]
    with pytest.raises(UsageError, match="`transformers`"):
        fields.transform_with((1,), [str, str])


def test_map_keeps_the_key_unless_it_is_set():
    assert run(fields.Map(lambda s: {"x": 1}), SAMPLE) == [{"x": 1, "__key__": "k"}]
    assert run(fields.Map(lambda s: {"__key__": "new"}), SAMPLE) == [{"__key__": "new"}]
    assert run(fields.Map(lambda s: None), SAMPLE) == []
    assert run(fields.Map(lambda s: {"x": 1}), {"no": "key"}) == [{"x": 1}]


def test_select():
    assert run(fields.Select(lambda s: s["cls"] > 1), SAMPLE, {**SAMPLE, "cls": 0}) == [SAMPLE]
    with pytest.raises(KeyError):
        run(fields.Select(lambda s: s["nope"]), SAMPLE)
    assert run(fields.Select(lambda s: s["nope"], handler=ignore_and_continue), SAMPLE) == []


def test_rename():
    assert run(fields.Rename(image="png;jpg"), SAMPLE) == [
        {"__key__": "k", "__url__": "u.tar", "cls": 2, "image": 1}
    ]
    assert run(fields.Rename(image="png;jpg", keep=False), SAMPLE) == [{"image": 1}]
    with pytest.raises(MissingField):
        run(fields.Rename(image="png"), SAMPLE)


def test_rename_keys():
    assert run(fields.RenameKeys(("image", "*.jpg"), must_match=False), SAMPLE) == [{}]
    assert run(fields.RenameKeys(("image", "jp*")), SAMPLE) == [{"image": 1}]
    kept = run(fields.RenameKeys(image="jpg", keep_unselected=True), SAMPLE)
    assert kept == [{"__key__": "k", "__url__": "u.tar", "image": 1, "cls": 2}]
    with pytest.raises(MissingField):
        run(fields.RenameKeys(image="png"), SAMPLE)
    with pytest.raises(DuplicateField):
        run(fields.RenameKeys(x="*"), SAMPLE)


def test_extract_keys():
    assert run(fields.ExtractKeys("*.jpg", "cls"), SAMPLE) == [(1, 2)]
    assert run(fields.ExtractKeys("png;jpg"), SAMPLE) == [(1,)]
    assert run(fields.ExtractKeys("png", "cls", ignore_missing=True), SAMPLE) == [(2,)]
    with pytest.raises(MissingField):
        run(fields.ExtractKeys("png"), SAMPLE)
    with pytest.raises(DuplicateField):
        run(fields.ExtractKeys("*"), SAMPLE)


def test_associate_changes_a_copy():
    original = dict(SAMPLE)
    assert run(fields.Associate({"k": {"extra": 3}}), original) == [{**SAMPLE, "extra": 3}]
    assert original == SAMPLE
    assert run(fields.Associate(lambda key: {"len": len(key)}), original)[0]["len"] == 1
    assert run(fields.Associate({}), original) == [SAMPLE]


def test_map_dict_changes_a_copy():
    original = dict(SAMPLE)
    assert run(fields.MapDict(cls=str), original) == [{**SAMPLE, "cls": "2"}]
    assert original == SAMPLE
    with pytest.raises(MissingField):
        run(fields.MapDict(png=str), original)
    with pytest.raises(UsageError, match="map_dict"):
        fields.MapDict()
    with pytest.raises(UsageError, match="`cls`"):
        fields.MapDict(cls=3)


def test_tuples():
    assert run(fields.ToTuple("jpg cls"), SAMPLE) == [(1, 2)]
    assert run(fields.ToTuple("png;jpg", "cls"), SAMPLE) == [(1, 2)]
    assert run(fields.ToTuple("png", "cls", missing_is_error=False), SAMPLE) == [(None, 2)]
    with pytest.raises(MissingField):
        run(fields.ToTuple("png"), SAMPLE)
    with pytest.raises(MissingField, match="jpg"):
        run(fields.ToTuple("jpg"), {**SAMPLE, "jpg": None})
    assert run(fields.ToTuple("jpg", none_is_error=False), {**SAMPLE, "jpg": None}) == [(None,)]
    assert run(fields.MapTuple(str, None), (1, 2, 3)) == [("1", 2, 3)]
    assert run(fields.MapTuple(str, str, str), (1,)) == [("1",)]
    with pytest.raises(UsageError, match="to_tuple"):
        run(fields.MapTuple(str), SAMPLE)


def test_xdecode():
    sample = {"__key__": "k", "a.txt": b"hello", "b.bin": b"raw", "c.foo": b"7"}
    assert run(fields.XDecode(foo=lambda stream: int(stream.read())), sample) == [
        {"__key__": "k", "a.txt": "hello", "b.bin": b"raw", "c.foo": 7}
    ]
    assert run(fields.XDecode(("*.foo", False)), sample)[0]["c.foo"] == b"7"
    assert run(fields.XDecode(must_decode=False), sample)[0]["c.foo"] == b"7"
    with pytest.raises(NoCodec):
        run(fields.XDecode(), sample)


def test_xdecode_reads_no_pickles_by_default():
    sample = {"__key__": "k", "a.pyd": pickle.dumps([1])}
    with pytest.raises(NoCodec):
        run(fields.XDecode(), sample)
    assert run(fields.XDecode(pyd=pickle.load), sample)[0]["a.pyd"] == [1]


def test_decode_errors_have_a_location():
    sample = {"__key__": "k", "__url__": "u.tar", "json": b"{", "cls": b"3"}
    assert run(fields.Decode(only="cls"), sample)[0]["cls"] == 3
    with pytest.raises(TarmacError, match=r'u.tar.*sample "k".*json'):
        run(fields.Decode(), sample)


def fail(sample):
    raise ValueError(sample)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (ignore_and_continue, [1, 3]),
        (warn_and_continue, [1, 3]),
        (ignore_and_stop, [1]),
        (warn_and_stop, [1]),
    ],
)
def test_handlers(handler, expected):
    stage = fields.Map(lambda x: fail(x) if x == 2 else x, handler=handler)
    assert list(stage(iter([1, 2, 3]))) == expected
    assert stage.drops.count == 1
    assert stage.drops.examples == ["2"]


def test_reraise():
    stage = fields.Map(fail, handler=reraise_exception)
    with pytest.raises(ValueError, match="1"):
        list(stage(iter([1])))
    with pytest.warns(UserWarning, match="ValueError"):
        warn_and_continue(ValueError("x"))


def test_stages_are_picklable():
    sample = {"__key__": "k", "a": "text", "cls": b"3"}
    for stage, expected in (
        (fields.Map(with_b), {**sample, "b": 1}),
        (fields.Select(with_b), sample),
        (fields.Decode("rgb8", partial=True), {**sample, "cls": 3}),
        (fields.Rename(b="a"), {"__key__": "k", "cls": b"3", "b": "text"}),
        (fields.RenameKeys(b="a"), {"b": "text"}),
        (fields.ExtractKeys("a"), ("text",)),
        (fields.Associate({"k": {"b": 1}}), {**sample, "b": 1}),
        (fields.MapDict(a=str.upper), {**sample, "a": "TEXT"}),
        (fields.ToTuple("a"), ("text",)),
        (fields.XDecode(must_decode=False), sample),
    ):
        assert run(pickle.loads(pickle.dumps(stage)), sample) == [expected]
    assert run(pickle.loads(pickle.dumps(fields.MapTuple(str.upper))), ("a", 1)) == [("A", 1)]
