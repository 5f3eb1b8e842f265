"""Archives inside fields: what is repaired was in the shard, byte for byte, and not in an inner archive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness.shards import header_offsets, plain
from tarmac.cli import main
from tarmac.tools.check.repair import salvaged
from tarmac.tools.check.shard import CheckOptions

SIZES = st.integers(0, 1500)
PLACES = st.integers(0, 10**6)
LENGTHS = st.sampled_from([1, 511, 512, 513, 1024, 1536, 5000])
DAMAGE = st.lists(
    st.tuples(PLACES, st.booleans(), LENGTHS, st.sampled_from([b"\0", b"\xa5", b"a"])), min_size=1, max_size=3
)


class Files(list):
    """Files of a shard, shown by their names and sizes alone."""

    def __repr__(self):
        return repr([(name, len(data)) for name, data in self])


@st.composite
def inner_archives(draw):
    """An archive with an end mark, of one or two levels."""
    files = [
        (f"in{number}.{field}", draw(SIZES) * b"i")
        for number in range(draw(st.integers(1, 3)))
        for field in "xy"
    ]
    if draw(st.booleans()):
        files.append(("deep.tar", plain([("deeper.x", b"d")])))
    return plain(files)


@st.composite
def shards(draw, at_least=1, every=False):
    """Files of samples with a text and an archive, or some of them without one."""
    files = Files()
    for number in range(draw(st.integers(at_least, 5))):
        if every or draw(st.booleans()):
            files.append((f"s{number}.tar", draw(inner_archives())))
        files.append((f"s{number}.txt", draw(SIZES) * b"t"))
        if not every and draw(st.booleans()):
            files.append((f"s{number}.zip", draw(inner_archives())))
    return files


def original(files):
    samples = {}
    for name, data in files:
        key, field = name.split(".")
        samples.setdefault(key, {})[field] = data
    return samples


def saved(data):
    losses = []
    results = list(salvaged(data, "x.tar", CheckOptions(), losses))
    return {s["__key__"]: {f: v for f, v in s.items() if f[:2] != "__"} for s in results}, losses


def check(files, data):
    kept, losses = saved(data)
    whole = original(files)
    assert kept.keys() <= whole.keys()
    for key, fields in kept.items():
        # A truncated sample with exactly the fields of all others counts as complete: nothing shows that it had more.
        usual = all(other.keys() == fields.keys() for other in kept.values())
        assert fields == whole[key] or (usual and fields.items() <= whole[key].items())
    assert losses or kept.keys() == whole.keys() or not data[-1024:].strip(b"\0")
    return kept


@settings(max_examples=150, deadline=None)
@given(shards(), PLACES, st.booleans())
def test_a_cut_shard_gives_no_samples_of_inner_archives(files, location, aligned):
    """Cut anywhere, and with preference where an inner archive may have just come to its end."""
    whole = plain(files)
    cut = location % (len(whole) + 1)
    check(files, whole[: cut & -512 if aligned else cut])


@settings(max_examples=150, deadline=None)
@given(shards(at_least=3, every=True), DAMAGE)
def test_overwritten_places_give_no_samples_of_inner_archives(files, damage):
    """Behind two samples that are whole: an archive alone cannot tell what its destroyed beginning was."""
    whole = bytearray(plain(files))
    first = header_offsets(bytes(whole))[4]
    for location, aligned, length, byte in damage:
        start = first + location % (len(whole) - first)
        start = start & -512 if aligned else start
        whole[start : start + length] = byte * len(whole[start : start + length])
    # Bytes of payload that are overwritten leave no trace in an archive, so that keys alone are compared.
    kept, _ = saved(bytes(whole))
    assert kept.keys() <= original(files).keys()
    assert "s0" in kept


@settings(max_examples=60, deadline=None)
@given(shards(at_least=3, every=True), st.lists(PLACES, min_size=1, max_size=3))
def test_destroyed_headers_give_no_samples_of_inner_archives(files, places):
    whole = bytearray(plain(files))
    headers = header_offsets(bytes(whole))[4:]
    for location in places:
        at = headers[location % len(headers)]
        whole[at : at + 512] = b"\xa5" * 512
    assert "s0" in check(files, bytes(whole))


@pytest.mark.parametrize("only", [True, False])
def test_a_shard_that_was_cut_behind_an_inner_archive(tmp_path, monkeypatch, only):
    """The inner archive is there to its end, and reads as the rest of the shard would."""
    inner = plain([("in1.jpg", b"1"), ("in2.jpg", b"2")])
    files = [("a.txt", b"a"), ("b.txt", b"b"), ("c.tar", inner + bytes(2048))]
    files = files if only else [("a.tar", inner), ("a.txt", b"a"), *files[1:]]
    whole = plain(files)
    cut = whole.rindex(inner) + len(inner)
    (tmp_path / "cut.tar").write_bytes(whole[:cut])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["check", "cut.tar", "--repair", "-o", "clean/"])
    assert [sample["__key__"] for sample in tarmac.read("clean/cut.tar")] == ["a", "b"]


def test_the_last_field_is_an_archive_without_its_header(tmp_path):
    inner = plain([("in1.jpg", b"1"), ("in2.jpg", b"2")])
    data = bytearray(plain([("a.txt", b"a"), ("b.txt", b"b"), ("c.txt", b"c"), ("c.tar", inner)]))
    at = header_offsets(bytes(data))[3]
    data[at : at + 512] = b"\xa5" * 512
    kept, losses = saved(bytes(data))
    assert kept.keys() <= {"a", "b", "c"}
    assert "possibly an archive inside a field" in {loss.reason for loss in losses}
