"""With the C part of tarmac-native, the samples, errors, warnings and counts are those of Python alone."""

from __future__ import annotations

import gzip
import mmap
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
import tarmac.webdataset as wds
from harness import rounds
from harness.damage import bit_flips, cuts, mutations, random_flips, structural
from harness.native import (
    all_oddities,
    almost_ordinary,
    member,
    python_only,
    read_samples,
    require_native,
    with_one,
)
from harness.shards import KINDS, PLAIN_KINDS, header_offsets, plain, with_hard_links, zstd
from harness.work import calls
from tarmac.errors import SampleError, SplitSample, TarmacError
from tarmac.indexing.build import IndexOptions, index_shard
from tarmac.limits import Limits
from tarmac.samples import native
from tarmac.samples.grouping import Grouping
from tarmac.samples.naming import last_dot
from tarmac.samples.reader import ReadReport, SampleReader
from tarmac.tar import TarOptions

CORPUS = sorted((Path(__file__).parent.parent / "corpus").glob("*.tar*"))


@pytest.fixture(autouse=True, scope="module")
def _native_module():
    require_native()


class Pieces:
    """A stream of pieces of random sizes."""

    def __init__(self, data: bytes, seed: object) -> None:
        self._data, self._rng = data, random.Random(str(seed))
        self._position = 0

    def read(self, size: int, /) -> bytes:
        size = min(size, self._rng.choice((1, 100, 511, 512, 513, 1024, 5000, 1 << 20)))
        data = self._data[self._position : self._position + size]
        self._position += len(data)
        return data


def mapped(data: bytes) -> mmap.mmap | bytes:
    if not data:
        return data  # which cannot be mapped
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def facts(error: TarmacError) -> dict[str, Any]:
    return {"type": type(error), "text": str(error)} | vars(error)


def outcome(read: Callable[..., Iterable[Any]]) -> list[Any]:
    """Return all that a caller can observe, in order."""
    skipped: Counter[str] = Counter()
    events: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for sample in read(skipped):
                events.append((list(sample.items()), dict(skipped), len(caught)))
        except TarmacError as error:
            events.append(facts(error))
    return [*events, skipped, [(warning.category, str(warning.message)) for warning in caught]]


def dropping(events: list[Any]) -> Callable[[SampleError], None]:
    return lambda error: events.append(facts(error))


def read_dropping(source: Any, skipped: Counter[str], **options: Any) -> Iterator[Any]:
    errors: list[Any] = []
    yield from read_samples(source, skipped=skipped, on_error=dropping(errors), **options)
    yield {"errors": errors}


_scratch = tempfile.TemporaryDirectory()
"""Holds one file, always of the same name, for what reads files."""


def read_file(data: bytes, skipped: Counter[str], **options: Any) -> SampleReader:
    path = Path(_scratch.name, "x.tar")
    path.write_bytes(data)
    return replace(tarmac.read(str(path), **options), report=ReadReport(skipped=skipped))


TIGHT = Limits(member_bytes=600, extension_bytes=25, extensions=1, tracked_keys=3)
LENIENT = TarOptions(end="lenient")
WAYS: dict[str, Callable[[bytes, Counter[str]], Iterable[Any]]] = {
    "whole": lambda data, skipped: read_samples(data, skipped=skipped),
    "mapped": lambda data, skipped: read_samples(mapped(data), skipped=skipped),
    "stream": lambda data, skipped: read_samples(Pieces(data, len(data)), skipped=skipped),
    "headers": lambda data, skipped: read_samples(data, skipped=skipped, payload=False),
    "headers of a stream": lambda data, skipped: read_samples(
        Pieces(data, len(data)), skipped=skipped, payload=False
    ),
    "extents": lambda data, skipped: read_samples(data, skipped=skipped, value=lambda *extent: extent),
    "extents of a stream": lambda data, skipped: read_samples(
        Pieces(data, len(data)), skipped=skipped, value=lambda *extent: extent
    ),
    "lenient": lambda data, skipped: read_samples(data, Grouping(lenient=True), LENIENT, skipped=skipped),
    "concatenated": lambda data, skipped: read_samples(
        data, tar=TarOptions(concatenated=True), skipped=skipped
    ),
    "case kept": lambda data, skipped: read_samples(data, Grouping(lower=False), skipped=skipped),
    "last dot": lambda data, skipped: read_samples(data, Grouping(last_dot), skipped=skipped),
    "tight": lambda data, skipped: read_samples(
        data, Grouping(tracked_keys=3), TarOptions(limits=TIGHT), skipped=skipped
    ),
    "few keys compared": lambda data, skipped: read_samples(data, Grouping(tracked_keys=7), skipped=skipped),
    "fields": lambda data, skipped: read_file(data, skipped, fields=["txt", "JPG"]),
    "fields of a stream": lambda data, skipped: read_file(data, skipped, fields=["cls", "a.b.c"], mmap=False),
    "fields, case kept": lambda data, skipped: read_file(data, skipped, fields=["JPG", "cls"], lower=False),
    "no field": lambda data, skipped: read_file(data, skipped, fields=[]),
    "repeated": lambda data, skipped: read_samples(data, Grouping(repeated="keep"), skipped=skipped),
    "dropping": read_dropping,
    "dropping known keys": lambda data, skipped: read_dropping(
        data, skipped, split={key: SplitSample("x", key=key) for key in ("s1", "a0", "c/d2")}
    ),
}


def expect_the_same(data: bytes, ways: Iterable[str] = WAYS, how: str = "") -> None:
    for name in ways:
        way = WAYS[name]
        with python_only():
            expected = outcome(lambda skipped: way(data, skipped))  # noqa: B023
        assert outcome(lambda skipped: way(data, skipped)) == expected, (name, how)  # noqa: B023


def many(count: int = 40, **options: Any) -> bytes:
    """Samples enough for several in a run."""
    return plain(
        [(f"s{n}.{field}", b"x" * (n * 37 % 700)) for n in range(count) for field in ("cls", "txt")],
        **options,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_archive(kind):
    expect_the_same(KINDS[kind]())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_the_corpus(path):
    expect_the_same(path.read_bytes())


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_every_truncation(kind):
    good = PLAIN_KINDS[kind]()
    for case in cuts(good, 13):
        expect_the_same(case.data, ("whole", "headers", "lenient", "stream"), case.how)
    for size in range(0, len(good), 512):
        expect_the_same(good[:size], how=f"cut at {size}")


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_every_bit_of_every_header(kind):
    good = PLAIN_KINDS[kind]()
    regions = [(start, start + 512) for start in header_offsets(good)]
    for case in bit_flips(good, regions, 3):
        expect_the_same(case.data, ("whole",), case.how)


@pytest.mark.parametrize("seed", range(4))
def test_mutations(seed):
    rng = random.Random(seed)
    seeds = [make() for make in KINDS.values()] + [path.read_bytes() for path in CORPUS]
    seeds += [many(), many(form=2, mtime=1.5), with_hard_links()]
    for data in seeds:
        for case in (*mutations(data, rng, rounds(3)), *random_flips(data, rng, rounds(2))):
            expect_the_same(case.data, rng.sample(list(WAYS), 4), case.how)
        for _ in range(rounds(4)):
            expect_the_same(structural(data, rng), rng.sample(list(WAYS), 4))


@settings(max_examples=rounds(300))
@given(st.integers(0, 2**32), st.integers(0, 30), st.sampled_from([0.0, 0.002, 0.01, 0.05, 0.3]))
def test_archives_that_are_almost_ordinary(seed, samples, odd):
    rng = random.Random(seed)
    data = almost_ordinary(rng, samples, odd)
    expect_the_same(data, rng.sample(list(WAYS), 5))
    if data:
        expect_the_same(data[: rng.randrange(len(data))], rng.sample(list(WAYS), 3))
        expect_the_same(structural(data, rng), rng.sample(list(WAYS), 3))


def test_one_unusual_member_among_ordinary_ones():
    for odd in all_oddities():
        expect_the_same(with_one(odd), ("whole", "headers", "lenient", "fields", "dropping"))


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_compressed_archives(compress):
    rng = random.Random(3)
    for _ in range(rounds(20)):
        data = compress(almost_ordinary(rng, 30, 0.01))
        expect_the_same(data, ("whole", "stream", "headers"))
        expect_the_same(data[: rng.randrange(len(data))], ("whole", "stream"))


def copied(path: str) -> dict[str, Any]:
    """Copy a shard that is not indexed yet; return the report and the bytes of what was written."""
    output = Path(f"{path}-copied")
    shutil.rmtree(output, ignore_errors=True)
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARMAC_HOME", home)
        report = tarmac.copy(path, f"{output}/{{i:03d}}.tar", max_samples=7, progress=False, jobs=1)
    files = {each.name: each.read_bytes() for each in sorted(output.glob("0*.tar"))}
    return {"report": report.to_dict() | {"seconds": 0}, "files": files}


def public_outcomes(path: str) -> dict[str, list[Any]]:
    def once(work: Callable[[], Any]) -> Callable[[Any], Iterator[dict[str, Any]]]:
        return lambda _: iter([{"result": work()}])

    def goes_on(_: Any) -> Iterable[Any]:
        return tarmac.WebDataset(path, handler=wds.warn_and_continue, shardshuffle=False, empty_check=False)

    doors: dict[str, Callable[[Any], Iterable[Any]]] = {
        "read": lambda _: tarmac.read(path),
        "read in chunks": lambda _: tarmac.read(path, mmap=False),
        "read fields": lambda _: tarmac.read(path, fields=["txt"]),
        "stream": lambda _: tarmac.WebDataset(path, shardshuffle=False, empty_check=False),
        "stream that goes on": goes_on,
        "check": once(lambda: tarmac.check(path, progress=False, all_errors=True).shards[0].to_dict()),
        "index": once(lambda: index_shard(path)),
        "index with digests": once(lambda: index_shard(path, IndexOptions(digests=True))),
        "copy": once(lambda: copied(path)),
    }
    return {name: outcome(door) for name, door in doors.items()}


def expect_the_same_of_doors(path: Path) -> None:
    with python_only():
        expected = public_outcomes(str(path))
    assert public_outcomes(str(path)) == expected


def test_public_doors(tmp_path):
    rng = random.Random(11)
    for number in range(rounds(60)):
        data = almost_ordinary(rng, 20, rng.choice((0, 0.002, 0.02)))
        if number % 2:
            data = structural(data, rng)
        path = tmp_path / f"{number}.tar"
        path.write_bytes(data)
        expect_the_same_of_doors(path)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_public_doors_on_the_corpus(path, tmp_path):
    expect_the_same_of_doors(Path(shutil.copy(path, tmp_path)))


@pytest.mark.parametrize("kind", KINDS)
def test_public_doors_on_every_kind_of_damage(kind, tmp_path):
    rng, good = random.Random(kind), KINDS[kind]()
    flips = bit_flips(good, [(0, len(good))], 7919)
    for number, data in enumerate(
        (good, *(case.data for case in (*flips, *cuts(good, 4001), *mutations(good, rng, 2))))
    ):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(data)
        expect_the_same_of_doors(path)


def test_runs_are_read_in_c():
    """The rest would hold if nothing were: count the calls of Python functions."""
    for data in (many(400), many(400, form=2, mtime=1.5)):
        ours = calls(lambda: list(read_samples(data)))  # noqa: B023
        with python_only():
            assert calls(lambda: list(read_samples(data))) > 10 * ours  # noqa: B023


def test_a_sample_is_yielded_before_more_is_read():
    """A stream that stalls must not hold back what has arrived."""
    data, reads = many(6), []

    class Stalling:
        def __init__(self) -> None:
            self.position = 0

        def read(self, size: int, /) -> bytes:
            reads.append(self.position)
            piece = data[self.position : self.position + 4096]
            self.position += len(piece)
            return piece

    def progress() -> list[tuple[str, int]]:
        reads.clear()
        return [(sample["__key__"], len(reads)) for sample in read_samples(Stalling())]

    with python_only():
        expected = progress()
    assert progress() == expected


def test_a_run_is_bounded():
    """What is in memory at once does not grow with the shard."""
    scanner = require_native().Scanner(
        "x.tar", {b"bin": "bin"}, {b"txt"}, {}, 10**6, 32, 1 << 40, 1 << 20, 1 << 18, True, None
    )
    for size in (0, 100, 50_000, 1_000_000):
        data = plain([(f"{n}-{size}.bin", bytes(size)) for n in range(2000 if size < 1000 else 20)])
        position, samples = scanner.run(data, 0, len(data), 0)
        assert 0 < len(samples) <= 256
        assert sum(len(sample["bin"]) for sample in samples) <= (1 << 18) + size
        assert data[position : position + 100].rstrip(b"\0") == b"%d-%d.bin" % (len(samples), size)
    unwanted = plain([(f"{n}.txt", b"") for n in range(1000)])
    assert scanner.run(unwanted, 0, len(unwanted), 0) == (256 * 512, [])


def test_invalid_arguments():
    module = require_native()
    data = plain()
    with pytest.raises(TypeError):
        module.Scanner("x.tar", {}, set(), set(), 1, 1, 1, 1, 1, True, None)
    scanner = module.Scanner("x.tar", {}, set(), {}, 1, 1, 1, 1, 1, True, None)
    for arguments in [(data, -1, 10, 0), (data, 0, len(data) + 1, 0), (data, 0, -1, 0), (data, 0, 10, -1)]:
        with pytest.raises(ValueError, match="inside the buffer"):
            scanner.run(*arguments)
    for arguments in [(), (data,), ("text", 0, 1, 0), (data, "0", 1, 0), (data, 0, 1, 0, 0)]:
        with pytest.raises(TypeError):
            scanner.run(*arguments)
    assert scanner.run(data, len(data) + 5000, len(data), 0) == (len(data) + 5000, [])


def test_an_error_of_the_value_is_raised():
    def value(offset, size, data):
        raise KeyError(offset)

    with pytest.raises(KeyError):
        list(read_samples(many(), value=value))


def test_another_version_of_the_module_is_not_used(monkeypatch):
    monkeypatch.setattr(require_native(), "INTERFACE", native.INTERFACE + 1)
    native._native.cache_clear()
    try:
        assert native._native() is None
        assert len(list(read_samples(many()))) == 40
    finally:
        native._native.cache_clear()


def test_keys_that_occur_again():
    names = [f"s{n}.{field}" for n in (*range(20), 3, *range(20, 40), 12, 25) for field in ("cls", "txt")]
    for count in range(0, len(names), 7):
        expect_the_same(plain([(name, b"1") for name in names[:count]]))


def test_many_fields_and_long_names():
    names = [f"s{n}.field{m}" for n in range(3) for m in range(80)]
    names += [f"t{n}.{'f' * 60}" for n in range(5)] + [f"{'k' * 90}{n}.txt" for n in range(5)]
    expect_the_same(plain([(name, b"1") for name in names]))
    expect_the_same(b"".join(member(b"%d.TXT" % n) for n in range(9)) + bytes(1024))
