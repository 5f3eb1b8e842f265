"""Members to samples: nothing merged by guessing, nothing lost in silence."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.damage import bit_flips, cuts, expect_no_silence
from harness.shards import PLAIN_KINDS, header_offsets, plain
from tarmac.errors import DuplicateField, SplitSample, Truncated, TruncatedTail
from tarmac.samples.grouping import Grouping, group_members
from tarmac.samples.naming import last_dot
from tarmac.tar import read_members


def samples(data, options=Grouping(), **kwargs):
    return list(group_members(read_members(data), "x.tar", options, **kwargs))


def pack(*names):
    return plain([(name, name.encode()) for name in names])


def test_adjacent_files_form_samples():
    assert samples(pack("a/1.jpg", "a/1.cls", "b/1.jpg")) == [
        {"__key__": "a/1", "__url__": "x.tar", "jpg": b"a/1.jpg", "cls": b"a/1.cls"},
        {"__key__": "b/1", "__url__": "x.tar", "jpg": b"b/1.jpg"},
    ]


def test_a_key_that_begins_like_another():
    found = samples(pack("a.x", "a.b/c.x", "a.b/c.y", "ab.x"))
    assert [sample["__key__"] for sample in found] == ["a", "a.b/c", "ab"]


def test_field_names_are_lower_case_unless_told_otherwise():
    assert samples(pack("a.JPG"))[0]["jpg"] == b"a.JPG"
    assert samples(pack("a.JPG"), Grouping(lower=False))[0]["JPG"] == b"a.JPG"
    with pytest.raises(DuplicateField):
        samples(pack("a.JPG", "a.jpg"))


def test_a_field_twice():
    with pytest.raises(DuplicateField, match='"jpg" comes twice') as caught:
        samples(pack("b.jpg", "a.jpg", "a.jpg"))
    assert caught.value.key == "a"
    assert caught.value.url == "x.tar"


@pytest.mark.parametrize(
    "names", [("a.jpg", "b.jpg", "a.cls"), ("a.x", "b.x", "a.x"), ("a.x", "c/d.x", "b.x", "a.y")]
)
def test_samples_torn_apart(names):
    with pytest.raises(SplitSample) as caught:
        samples(pack(*names))
    assert caught.value.key == "a"


def test_torn_samples_beyond_the_bound_are_not_compared():
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


def test_a_metadata_name_does_not_sneak_in_behind_a_known_field():
    found = samples(pack("a.json", "__meta__/b.json", "c.json"))
    assert [sample["__key__"] for sample in found] == ["a", "c"]


def test_keys_with_dots_need_their_rule():
    data = pack("img.001.jpg", "img.001.cls", "img.002.jpg")
    assert [sample["__key__"] for sample in samples(data, Grouping(split=last_dot))] == ["img.001", "img.002"]
    with pytest.raises(Exception, match="comes twice"):
        samples(pack("img.jpg", "img.jpg"))


def test_names_that_are_not_utf8_survive():
    data = bytearray(pack("a.jpg"))
    data = data.replace(b"a.jpg", b"\xff.jpg", 1)
    from harness.shards import reseal

    reseal(data, 0)
    (sample,) = samples(bytes(data))
    assert sample["__key__"].encode("utf-8", "surrogateescape") == b"\xff"


def test_lenient_reading_stops_at_a_tear():
    data = pack("a.x", "a.y", "b.x", "b.y")
    starts = header_offsets(data)
    # torn inside b.y: b is left out
    with pytest.warns(TruncatedTail, match='"b" is left out'):
        assert [s["__key__"] for s in samples(data[: starts[3] + 513], Grouping(lenient=True))] == ["a"]
    # between members: b may lack fields, and the warning says so
    with pytest.warns(TruncatedTail, match='"b", may lack fields'):
        assert [s["__key__"] for s in samples(data[: starts[3]], Grouping(lenient=True))] == ["a", "b"]
    with pytest.raises(Truncated):
        samples(data[: starts[3]])


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_damage_never_yields_a_partial_sample(kind):
    good = PLAIN_KINDS[kind]()
    read = samples_of
    assert expect_no_silence(read, good, cuts(good)).silent == 0
    regions = [(start, start + 512) for start in header_offsets(good)]
    assert expect_no_silence(read, good, bit_flips(good, regions, step=7)).silent == 0


def samples_of(data):
    return group_members(read_members(data), "x.tar")
