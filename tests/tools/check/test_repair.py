"""Clean copies of damaged shards: nothing wrong, nothing doubled, nothing lost that could be kept."""

from __future__ import annotations

import bz2
import gzip
import os
import random

import pytest

import tarmac
from harness import rounds
from harness.damage import mutations
from harness.shards import PLAIN_KINDS, header_offsets, plain
from tarmac import read
from tarmac.errors import JobMismatch, UsageError
from tarmac.indexing.sidecar import open_sidecar
from tarmac.tools.check.repair import repair, salvaged
from tarmac.tools.check.shard import CheckOptions
from tarmac.tools.options import Run
from tarmac.tools.output import Output

FILES = [
    (f"s{n}.{field}", f"{field} {n} ".encode() * random.Random(n).randint(1, 300))
    for n in range(12)
    for field in ("cls", "json", "txt")
]


def as_samples(files):
    results = {}
    for name, data in files:
        key, _, field = name.partition(".")
        results.setdefault(key, {})[field] = data
    return results


ORIGINAL = as_samples(FILES)


def saved(data, sidecar=None, **more):
    """What is kept of some bytes, and what is lost."""
    losses = []
    samples = list(salvaged(data, "x.tar", CheckOptions(), losses, sidecar, **more))
    keys = [sample["__key__"] for sample in samples]
    assert len(set(keys)) == len(keys), "doubled"
    return {one["__key__"]: {f: v for f, v in one.items() if f[:2] != "__"} for one in samples}, losses


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    path = tmp_path_factory.mktemp("indexed") / "x.tar"
    path.write_bytes(plain(FILES))
    tarmac.index([str(path)], digests=True)
    return open_sidecar(f"{path}.arrow")


@pytest.mark.parametrize("how", ["copy", "link"])
def test_a_repair_with_intact_shards_is_a_whole_dataset(tmp_path, how):
    for number in range(3):
        files = [(f"{number}{name}", data) for name, data in FILES]
        (tmp_path / f"x-{number}.tar").write_bytes(plain(files)[: -5000 if number == 1 else None])
    (tmp_path / "x-3.tar.gz").write_bytes(gzip.compress(plain([("z.txt", b"z")])))
    shards = [f"{tmp_path}/x-{number}.tar{'.gz' if number == 3 else ''}" for number in range(4)]

    def run(**more):
        return tarmac.check(shards, repair=f"{tmp_path}/clean/", intact=how, jobs=1, progress=False, **more)

    report = run()
    names = ["x-0.tar", "x-1.tar", "x-2.tar", "x-3.tar"]
    assert sorted(path.name for path in (tmp_path / "clean").glob("*.tar")) == names
    for name in ("x-0.tar", "x-2.tar"):
        original, copy = tmp_path / name, tmp_path / "clean" / name
        assert original.read_bytes() == copy.read_bytes()
        assert original.samefile(copy) == (how == "link")
    samples = sum(1 for _ in read(f"{tmp_path}/clean/*.tar"))
    assert (report.written, len(report.outputs)) == (samples, 4)
    assert tarmac.check(f"{tmp_path}/clean/*.tar", jobs=1, progress=False).ok
    assert run().outputs == report.outputs
    assert run(overwrite=True).written == samples
    assert not list((tmp_path / "clean").glob(".x-*"))


def test_intact_shards_need_a_repair(tmp_path):
    with pytest.raises(UsageError, match="`intact`"):
        tarmac.check(str(tmp_path), intact="copy")
    with pytest.raises(UsageError, match="`intact`"):
        tarmac.check(str(tmp_path), repair=f"{tmp_path}/x/", intact="move")


def spans():
    """Where each sample is in the archive."""
    data = plain(FILES)
    starts = [*header_offsets(data)[::3], len(data) - 1024]
    return {f"s{n}": (starts[n], starts[n + 1]) for n in range(12)}


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_without_damage_nothing_is_lost(kind):
    kept, losses = saved(PLAIN_KINDS[kind]())
    assert kept
    assert losses == []


def test_damaged_headers(sidecar):
    """Bits of headers flip: an archive shows that, so what is kept is right even without an index."""
    data, rng, where = plain(FILES), random.Random(1), spans()
    headers = header_offsets(data)
    for _ in range(rounds(300)):
        changed = bytearray(data)
        hit = rng.sample(headers, rng.randint(1, 3))
        for header in hit:
            # One bit: the sum of a header would not notice two that make up for each other.
            changed[header + rng.randrange(512)] ^= 1 << rng.randrange(8)
        kept, losses = saved(bytes(changed))
        hurt = {key for key, (start, stop) in where.items() if any(start <= header < stop for header in hit)}
        for key, fields in kept.items():
            assert fields == ORIGINAL[key]
        for key in ORIGINAL.keys() - kept.keys():
            # Next to damage a sample may be lost only if it is uncertain, and the report lists it.
            near = {f"s{int(other[1:]) + step}" for other in hurt for step in (-1, 0, 1)}
            assert key in near
            assert losses
        kept, losses = saved(bytes(changed), sidecar)
        assert kept == ORIGINAL  # the digests prove that all payload is there
        assert losses == []


def test_overwritten_places(sidecar):
    """Bytes anywhere are overwritten; with an index, exactly what they were not written on is kept."""
    data, rng, where = plain(FILES), random.Random(2), spans()
    places = {key: [] for key in where}
    for row in range(len(sidecar)):
        for member in range(int(sidecar.starts[row]), int(sidecar.starts[row + 1])):
            begin = int(sidecar.offsets[member])
            places[sidecar.key(row)].append((begin, begin + int(sidecar.sizes[member])))
    for _ in range(rounds(300)):
        changed = bytearray(data)
        start = rng.randrange(len(data))
        length = rng.choice((1, 100, 512, 513, 4096, 20000))
        changed[start : start + length] = rng.choice((rng.randbytes(length), bytes(length)))
        stop, changed = start + length, changed[: len(data)]
        kept, losses = saved(bytes(changed), sidecar)
        untouched = {
            key for key, parts in places.items() if all(stop <= begin or end <= start for begin, end in parts)
        }
        assert untouched <= kept.keys()
        assert all(fields == ORIGINAL[key] for key, fields in kept.items())
        assert {loss.key for loss in losses} == ORIGINAL.keys() - kept.keys()
        # Without one, a member is lost only next to the damage, and what is kept away from it is right.
        kept, losses = saved(bytes(changed))
        for key, (begin, end) in where.items():
            away = stop <= begin - 3000 or end + 3000 <= start
            if away:
                assert kept.get(key) == ORIGINAL[key], (key, start, stop)
        if len(kept) < 12 and changed[start:].strip(b"\0"):  # zeros up to the end are an end to any reader
            assert losses


def test_any_damage_at_all(sidecar):
    """Overwritten, put in, taken out, repeated: with an index nothing wrong is ever kept."""
    data = plain(FILES)
    for case in mutations(data, random.Random(3), rounds(400)):
        kept, losses = saved(case.data, sidecar)
        assert all(fields == ORIGINAL[key] for key, fields in kept.items()), case.how
        assert {loss.key for loss in losses} == ORIGINAL.keys() - kept.keys(), case.how
        assert len(kept) >= 12 - 4 * 3, case.how
        kept, losses = saved(case.data)  # and without one it ends, and says what is lost
        if ORIGINAL.keys() - kept.keys():
            assert losses, case.how


def test_shifted_samples_are_found_by_what_they_are(sidecar):
    data, where = plain(FILES), spans()
    start, stop = where["s5"]
    kept, losses = saved(data[: start + 600] + data[start + 777 :], sidecar)
    assert kept == {key: fields for key, fields in ORIGINAL.items() if key != "s5"}
    assert [loss.key for loss in losses] == ["s5"]
    assert stop > start


def test_every_cut():
    data, where = plain(FILES), spans()
    for size in range(0, len(data), 509):
        kept, losses = saved(data[:size])
        padding = {key: -len(fields["txt"]) % 512 for key, fields in ORIGINAL.items()}
        expected = [key for key, (_, stop) in where.items() if stop - padding[key] <= size]
        assert set(expected) - {"s0", "s1"} <= kept.keys() <= set(expected)
        assert all(fields == ORIGINAL[key] for key, fields in kept.items())
        assert losses or size > len(data) - 1024


def test_samples_that_lie_apart():
    files = [("a.x", b"1"), ("b.x", b"2"), ("b.y", b"2"), ("a.y", b"3"), ("c.x", b"4"), ("c.y", b"")]
    kept, losses = saved(plain(files))
    assert kept.keys() == {"b", "c"}
    assert [(loss.key, loss.reason) for loss in losses] == [("a", "its members are not contiguous")]
    kept, losses = saved(plain(files), regroup=True)
    assert kept == as_samples(files)
    assert losses == []
    kept, losses = saved(plain([*files, ("a.x", b"other")]), regroup=True)
    assert (kept.keys(), [loss.key for loss in losses]) == ({"b", "c"}, ["a"])


def test_what_came_again_the_same_is_kept_once():
    files = [("a.x", b"1"), ("b.x", b"2"), ("a.x", b"1")]
    assert saved(plain(files)) == ({"a": {"x": b"1"}, "b": {"x": b"2"}}, [])
    kept, losses = saved(plain([*files, ("b.x", b"other")]))
    assert (kept.keys(), [loss.key for loss in losses]) == ({"a"}, ["b"])


# The job


def run(urls, output, jobs=1, checks=None, **more):
    urls = [str(url) for url in urls]
    return repair(urls, output, Run(jobs), checks or CheckOptions(), [None] * len(urls), **more)


def test_clean_copies(tmp_path):
    data = plain(FILES)
    headers = header_offsets(data)
    urls = []
    for number in range(3):
        changed = bytearray(data)
        changed[headers[9 + number * 9]] ^= 1
        urls.append(tmp_path / f"{number}.tar")
        urls[-1].write_bytes(changed)
    report = run(urls, Output(f"{tmp_path}/clean/"), 2)
    assert (report.done, report.written) == (3, 33)
    assert not report.ok
    for outcome, key in zip(report.outcomes, ("s3", "s6", "s9"), strict=True):
        losses = outcome.details["losses"]
        assert [loss.get("key") for loss in losses] == [None, key]
        assert losses[0]["what"] == "bytes"
        assert losses[0]["start"] < losses[0]["stop"]
    assert tarmac.check(f"{tmp_path}/clean/*.tar").ok
    assert len(list(read(f"{tmp_path}/clean/*.tar"))) == 33
    before = {path.name: path.read_bytes() for path in (tmp_path / "clean").glob("*.tar")}
    again = run(urls, Output(f"{tmp_path}/clean/"), 1)
    assert (again.kept, again.done) == (3, 0)
    assert [outcome.details for outcome in again.outcomes] == [outcome.details for outcome in report.outcomes]
    (tmp_path / "clean" / "1.tar").unlink()
    assert run(urls, Output(f"{tmp_path}/clean/"), 1).done == 1
    assert {path.name: path.read_bytes() for path in (tmp_path / "clean").glob("*.tar")} == before
    urls[0].write_bytes(data[:5000])
    with pytest.raises(JobMismatch):
        run(urls, Output(f"{tmp_path}/clean/"))
    assert run(urls, Output(f"{tmp_path}/clean/", overwrite=True)).done == 3


def test_existing_files_are_not_replaced(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain(FILES)[:9000])
    (tmp_path / "clean").mkdir()
    (tmp_path / "clean" / "a.tar").write_bytes(b"mine")
    with pytest.raises(UsageError):
        run([tmp_path / "a.tar"], Output(f"{tmp_path}/clean/"))
    assert (tmp_path / "clean" / "a.tar").read_bytes() == b"mine"
    with pytest.raises(UsageError):
        run([tmp_path / "a.tar"], Output("-"))
    (tmp_path / "b").mkdir()
    os.link(tmp_path / "a.tar", tmp_path / "b" / "a.tar")
    with pytest.raises(UsageError, match=r"other/: .*\{i:06d\}"):
        run([tmp_path / "a.tar", tmp_path / "b" / "a.tar"], Output(f"{tmp_path}/other/"))


def test_compressed_shards(tmp_path):
    data = plain([(name, random.Random(name).randbytes(5000)) for name, _ in FILES])
    packed = gzip.compress(data, mtime=0)
    cut, wrong, other = tmp_path / "cut.tar.gz", tmp_path / "wrong.tar.gz", tmp_path / "other.tar.bz2"
    cut.write_bytes(packed[: len(packed) // 2])
    changed = bytearray(packed)
    changed[-6] ^= 1  # its checksum
    wrong.write_bytes(changed)
    other.write_bytes(bz2.compress(data[: len(data) // 2]))
    report = run([cut, wrong, other], Output(f"{tmp_path}/clean/"))
    reasons = [[loss["reason"] for loss in outcome.details["losses"]] for outcome in report.outcomes]
    assert "truncated" in reasons[0][0]
    assert "nothing can be recovered" in reasons[1][0]
    assert [outcome.written for outcome in report.outcomes] == [5, 0, 6]
    assert {path.name for path in (tmp_path / "clean").glob("*.tar")} == {"cut.tar", "other.tar"}


def test_samples_that_are_whole_and_yet_not_right(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(
        plain([("a.cls", b"1"), ("b.cls", b"x"), ("c.cls", b"3"), ("c.txt", b""), ("d.txt", b"")])
    )
    report = run([path], Output(f"{tmp_path}/clean/"), checks=CheckOptions(frozenset(["cls"]), decode="rgb8"))
    assert [sample["__key__"] for sample in read(f"{tmp_path}/clean/a.tar")] == ["a", "c"]
    losses = report.outcomes[0].details["losses"]
    assert [(loss["key"], loss["reason"][:12]) for loss in losses] == [
        ("b", 'field "cls":'),
        ("d", "the sample h"),
    ]


def test_the_index_beside_a_shard_is_used(tmp_path):
    path = tmp_path / "a.tar"
    data = bytearray(plain(FILES))
    path.write_bytes(data)
    tarmac.index([str(path)], digests=True)
    data[data.index(b"txt 4")] ^= 1
    data[header_offsets(bytes(plain(FILES)))[20]] ^= 1
    path.write_bytes(data)
    report = run([path], Output(f"{tmp_path}/clean/"), checks=CheckOptions(digests=True))
    assert [loss["key"] for loss in report.outcomes[0].details["losses"]] == ["s4"]
    assert report.written == 11
    report = run([path], Output(f"{tmp_path}/guess/"))
    assert report.written == 11  # the header is seen, the byte is not
    (tmp_path / "a.tar.arrow").write_bytes(b"damaged, too")
    assert run([path], Output(f"{tmp_path}/again/"), checks=CheckOptions(digests=True)).written == 11


def test_a_damaged_shard_is_not_replaced_by_what_could_be_saved_of_it(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(plain(FILES)[:-3000])
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"x\.tar"):
        run([path], Output(f"{tmp_path}/", overwrite=True))
    assert path.read_bytes() == before


def test_a_size_that_reaches_beyond_the_end_hides_nothing(tmp_path):
    """One header is wrong about its member, with a checksum that is right: all others are there."""
    data = bytearray(plain(FILES))
    at = header_offsets(bytes(data))[10]
    data[at + 124 : at + 136] = b"77777777777\0"
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    report = run([path], Output(f"{tmp_path}/clean/"))
    results = {sample["__key__"] for sample in read(f"{tmp_path}/clean/x.tar")}
    assert results == ORIGINAL.keys() - {"s3"}
    assert [loss["key"] for loss in report.outcomes[0].details["losses"]] == ["s3"]
    assert all(loss["stop"] <= len(data) for loss in report.outcomes[0].details["losses"])


def test_names_of_gnu_tar(tmp_path):
    """`tar cf x.tar .` puts ./ before every name; clean copies are without it, as all copies are."""
    (tmp_path / "x.tar").write_bytes(plain((f"./{name}", data) for name, data in FILES)[:-3000])
    report = run([tmp_path / "x.tar"], Output(f"{tmp_path}/clean/"))
    results = list(read(f"{tmp_path}/clean/x.tar"))
    assert len(results) == report.written > 5
    assert all(sample["txt"] == ORIGINAL[sample["__key__"]]["txt"] for sample in results)
