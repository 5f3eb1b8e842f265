"""Reading continues after damage, and marks what is uncertain."""

from __future__ import annotations

import tarfile

import pytest

from harness.shards import PLAIN_KINDS, header_offsets, members, plain
from tarmac.tar import TarOptions
from tarmac.tools.check.salvage import runs_of, scan

FILES = [(f"s{n}.{field}", f"{field} {n} ".encode() * 60) for n in range(6) for field in ("cls", "txt")]
OPTIONS = TarOptions()


def broken(data, position, length=8):
    changed = bytearray(data)
    changed[position : position + length] = b"\xa5" * length
    return bytes(changed)


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_an_archive_without_damage_is_one_stretch(kind):
    stretches, losses = scan(PLAIN_KINDS[kind](), OPTIONS)
    assert (len(stretches), losses) == (1, [])
    assert not any(run.doubt or run.broken for run in runs_of(stretches))


def test_reading_continues_after_a_damaged_header():
    data = plain(FILES)
    headers = header_offsets(data)
    stretches, losses = scan(broken(data, headers[4]), OPTIONS)
    assert [len(stretch.members) for stretch in stretches] == [4, 7]
    assert [(loss.start, loss.stop) for loss in losses] == [(headers[4], headers[5])]
    runs = list(runs_of(stretches))
    assert [(run.key, list(run.fields), run.doubt, run.broken) for run in runs[1:4]] == [
        ("s1", ["cls", "txt"], True, ""),
        ("s2", ["txt"], True, ""),
        ("s3", ["cls", "txt"], False, ""),
    ]


def test_bytes_that_were_put_in_or_taken_out_shift_what_follows():
    data = plain(FILES)
    headers = header_offsets(data)
    for position in (headers[4], headers[4] + 700):
        inserted = data[:position] + b"\xa5" * 77 + data[position:]
        stretches, losses = scan(inserted, OPTIONS)
        assert stretches[-1].members[-1][0] == b"s5.txt"
        assert losses or [run.key for run in runs_of(stretches) if run.broken] == ["s2"]
    # Taken out of the middle of a member: where it ends is not certain any more.
    stretches, _ = scan(data[: headers[4] + 600] + data[headers[4] + 700 :], OPTIONS)
    assert not stretches[0].certain
    assert "uncertain" in next(run.broken for run in runs_of(stretches) if run.key == "s2")


def test_a_header_of_zeros_is_not_the_end():
    data = bytearray(plain(FILES))
    headers = header_offsets(bytes(data))
    data[headers[4] : headers[4] + 512] = bytes(512)
    stretches, losses = scan(bytes(data), OPTIONS)
    assert [len(stretch.members) for stretch in stretches] == [4, 7]
    assert stretches[0].certain  # its last byte is not zero, so that the zeros did not begin inside
    assert losses


def test_zeros_that_may_have_begun_inside_a_member():
    data = bytearray(plain([("a.x", b"1" * 500), ("b.x", b"2" * 500), ("c.x", b"3" * 500)]))
    data[700:1536] = bytes(836)
    stretches, _ = scan(bytes(data), OPTIONS)
    assert not stretches[0].certain


def test_archives_inside_fields_are_not_taken_for_samples():
    inner = plain([("evil.x", b"1"), ("evil2.x", b"2")])
    data = plain([("a.x", b"1"), ("b.tar", inner), ("c.x", b"3"), ("d.x", b"4")])
    header = header_offsets(data)[1]
    stretches, losses = scan(broken(data, header), OPTIONS)
    assert [run.key for run in runs_of(stretches)] == ["a", "c", "d"]
    assert "an archive inside a field" in {loss.reason for loss in losses}


def test_archives_that_were_joined():
    parts = [plain([(f"{part}{n}.x", b"1") for n in range(3)]) for part in "abc"]
    stretches, _ = scan(b"".join(parts), OPTIONS)
    assert [run.key for run in runs_of(stretches)] == [f"{part}{n}" for part in "abc" for n in range(3)]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_name_whose_beginning_is_lost_is_not_believed(form):
    long = "d/" * 80
    data = plain([(f"{long}{n}.x", b"1") for n in range(5)], form=form)
    headers = header_offsets(data)
    stretches, _ = scan(broken(data, headers[4] if form == tarfile.GNU_FORMAT else headers[2]), OPTIONS)
    for run in runs_of(stretches):
        assert run.key.startswith(long) or run.broken


def test_files_of_no_sample_do_not_part_samples():
    kinds = [(tarfile.REGTYPE, "a.x", b""), (tarfile.REGTYPE, "README", b"x"), (tarfile.REGTYPE, "a.y", b"")]
    (run,) = runs_of(scan(members(kinds), OPTIONS)[0])
    assert list(run.fields) == ["x", "y"]
