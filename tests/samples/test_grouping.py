"""Members are grouped into samples without guessing and without silent loss."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from harness.damage import bit_flips, cuts, expect_no_silence
from harness.native import python_only, read_samples
from harness.shards import PLAIN_KINDS, header_offsets, plain, reseal
from tarmac.errors import DuplicateField, SplitSample, Truncated, TruncatedTail
from tarmac.samples.grouping import Grouping
from tarmac.samples.naming import last_dot


@pytest.fixture(params=["C", "Python"], autouse=True)
def reading(request):
    """Read in C where that is installed, and without it."""
    with contextlib.nullcontext() if request.param == "C" else python_only():
        yield


def samples(data, options=Grouping(), **kwargs):
    return list(read_samples(data, options, **kwargs))


def pack(*names):
    return plain([(name, name.encode()) for name in names])


def test_contiguous_members_form_samples():
    assert samples(pack("a/1.jpg", "a/1.cls", "b/1.jpg")) == [
        {"__key__": "a/1", "__url__": "x.tar", "jpg": b"a/1.jpg", "cls": b"a/1.cls"},
        {"__key__": "b/1", "__url__": "x.tar", "jpg": b"b/1.jpg"},
    ]


def test_keys_with_a_common_prefix():
    result = samples(pack("a.x", "a.b/c.x", "a.b/c.y", "ab.x"))
    assert [sample["__key__"] for sample in result] == ["a", "a.b/c", "ab"]


def test_field_names_are_lower_case_by_default():
    assert samples(pack("a.JPG"))[0]["jpg"] == b"a.JPG"
    assert samples(pack("a.JPG"), Grouping(lower=False))[0]["JPG"] == b"a.JPG"
    with pytest.raises(DuplicateField):
        samples(pack("a.JPG", "a.jpg"))


def test_duplicate_fields():
    with pytest.raises(DuplicateField, match='"jpg"') as caught:
        samples(pack("b.jpg", "a.jpg", "a.jpg"))
    assert caught.value.key == "a"
    assert caught.value.url == "x.tar"


@pytest.mark.parametrize(
    "names", [("a.jpg", "b.jpg", "a.cls"), ("a.x", "b.x", "a.x"), ("a.x", "c/d.x", "b.x", "a.y")]
)
def test_non_contiguous_samples(names):
    with pytest.raises(SplitSample) as caught:
        samples(pack(*names))
    assert caught.value.key == "a"


def test_keys_beyond_the_limit_are_not_compared():
    names = ["a.x", "b.x", "a.y"]
    assert len(samples(pack(*names), Grouping(tracked_keys=0))) == 3


def test_members_outside_samples_are_counted():
    skipped: Counter[str] = Counter()
    data = pack(
        "README", "__index__", "__meta__/x.json", ".hidden.txt", "a.jpg", "a.__key__", "a.__bad__", "a.cls"
    )
    (sample,) = samples(data, skipped=skipped)
    assert set(sample) == {"__key__", "__url__", "jpg", "cls"}
    assert sample["__key__"] == "a"
    assert skipped == {"no field in name": 2, "metadata": 2, "reserved field": 2}


def test_metadata_with_a_known_field_is_skipped():
    result = samples(pack("a.json", "__meta__/b.json", "c.json"))
    assert [sample["__key__"] for sample in result] == ["a", "c"]


def test_keys_with_dots_need_their_rule():
    data = pack("img.001.jpg", "img.001.cls", "img.002.jpg")
    assert [sample["__key__"] for sample in samples(data, Grouping(split_name=last_dot))] == [
        "img.001",
        "img.002",
    ]


def test_names_that_are_not_utf8():
    data = bytearray(pack("a.jpg"))
    data = data.replace(b"a.jpg", b"\xff.jpg", 1)
    reseal(data, 0)
    (sample,) = samples(bytes(data))
    assert sample["__key__"].encode("utf-8", "surrogateescape") == b"\xff"


def test_lenient_reading_stops_at_truncated_data():
    data = pack("a.x", "a.y", "b.x", "b.y")
    starts = header_offsets(data)
    # truncated inside b.y: b is skipped
    with pytest.warns(TruncatedTail, match=r'member "b\.y": .*"b"'):
        assert [s["__key__"] for s in samples(data[: starts[3] + 513], Grouping(lenient=True))] == ["a"]
    # between members: b may lack fields, and the warning says so
    with pytest.warns(TruncatedTail, match=f'{starts[3]:#010x}: .*"b"'):
        assert [s["__key__"] for s in samples(data[: starts[3]], Grouping(lenient=True))] == ["a", "b"]
    with pytest.raises(Truncated):
        samples(data[: starts[3]])


@pytest.mark.long
@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_damage_never_yields_a_partial_sample(kind):
    good = PLAIN_KINDS[kind]()
    assert expect_no_silence(read_samples, good, cuts(good)).silent == 0
    regions = [(start, start + 512) for start in header_offsets(good)]
    assert expect_no_silence(read_samples, good, bit_flips(good, regions, step=7)).silent == 0
