"""Read samples with and without the C part of tarmac-native, and build archives that are almost ordinary."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tarmac.samples import native
from tarmac.samples.grouping import DEFAULT_GROUPING, Grouping, Sample, group_members
from tarmac.samples.native import NativeRuns
from tarmac.tar import TarOptions, read_members
from tarmac.tar.reader import DEFAULT_OPTIONS


def require_native() -> Any:
    """Return the C module; skip the test without it."""
    import pytest  # fuzzers import this module without pytest

    module = native._native()
    if module is None:
        pytest.skip("tarmac_native.tar is not installed")
    return module


@contextmanager
def python_only() -> Iterator[None]:
    """Read as if tarmac-native were not installed."""
    before = native._native
    native._native = lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        native._native = before


def read_samples(
    source: Any,
    grouping: Grouping = DEFAULT_GROUPING,
    tar: TarOptions = DEFAULT_OPTIONS,
    *,
    payload: bool = True,
    value: Any = None,
    skipped: Counter[str] | None = None,
    **options: Any,
) -> Iterator[Sample]:
    """Group the members of an archive as tarmac's readers do: in C where that is installed."""
    runs = NativeRuns(tar.limits, payload=payload, value=value)
    members = read_members(source, tar, url="x.tar", payload=payload, skipped=skipped, runs=runs)
    return group_members(members, "x.tar", grouping, skipped=skipped, value=value, runs=runs, **options)


KEYS = (b"a", b"b", b"c/d", b"./e", b"f.g/h", b"long" * 22, b"\xff", "é".encode(), b"_i", b"../j", b" k")
ODD_KEYS = (b"", b"__l", b"__m__", b"__n__/o", b"p/", b"/", b".", b"..", b"q.r")
FIELDS = (b"txt", b"cls", b"jpg", b"JPG", b"seg.png", b"a.b.c")
ODD_FIELDS = (b"", b"__key__", b"x/y", b" ", b"\xfe", b"field" * 12, b".txt", b"x.")
SIZES = (0, 1, 10, 511, 512, 513, 1500)


def record(key: bytes, value: bytes = b"1") -> bytes:
    """Return a record of an extended header."""
    return next(text for n in range(99) if len(text := b"%d %s=%s\n" % (n, key, value)) == n)


TIMES = (
    record(b"mtime", b"1700000000.5"),
    record(b"mtime") + record(b"atime", b"") + record(b"ctime", b"-1"),
    record(b"mtime", b"a=b\n"),
)
ODD_TIMES = (
    b"",
    record(b"mtime") * 2,
    record(b"mtime") + record(b"mtime", b"2"),
    record(b"mtime") + record(b"comment"),
    record(b"size", b"0"),
    record(b"path", b"x.txt"),
    record(b"GNU.sparse.a"),
    record(b"mtimes"),
    record(b"mtime") + b"\0\0",
    record(b"mtime") + b"x",
    b"013 mtime=12\n",
    b"11 mtime=1x",
    b"12 mtime=1\n",
    b"10 mtime=1\n",
    b"8 mtime\n",
    b"7 =1x\n\n",
    b"999999999999999999999 mtime=1\n",
    b"0 mtime=1\n",
    b"-11 mtime=1\n",
)
MAGICS = (b"ustar\x0000", b"ustar  \0", bytes(8), b"ustar\x00\x00\x00")
SIZE_FORMS = (
    b"%011o\0",
    b"%011o ",
    b"%010o \0",
    b"%10o \0",
    b"%o\0",
    b"%o \0x",
    b"%12o",
    b"%012o",
    b"%o8",
    b"%o x",
    b"%o-",
    b"+%o",
)
SUM_FORMS = (
    b"%06o\0 ",
    b"%07o\0",
    b"%06o  ",
    b" %05o\0 ",
    b"%07o ",
    b"%6o\0 ",
    b"%08o",
    b"%06o\0x",
    b"%o8",
    b"%o x",
)


def block(
    name: bytes,
    size: int,
    kind: bytes = b"0",
    *,
    magic: bytes = MAGICS[0],
    prefix: bytes = b"",
    size_form: bytes = SIZE_FORMS[0],
    sum_form: bytes = SUM_FORMS[0],
    signed: bool = False,
) -> bytes:
    """Return a header with a correct checksum, its numbers written in this form."""
    header = bytearray(512)
    header[:100] = name[:100].ljust(100, b"\0")
    header[124:136] = (size_form % size)[:12].ljust(12, b"\0")
    header[148:156] = b" " * 8
    header[156:157] = kind
    header[257:265] = magic
    header[345:500] = prefix[:155].ljust(155, b"\0")
    total = sum(header) - (256 * sum(byte > 127 for byte in header) if signed else 0)
    header[148:156] = (sum_form % total)[:8].ljust(8, b"\0")
    return bytes(header)


def padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // 512) * 512, b"\0")


def member(name: bytes, data: bytes = b"1", extension: bytes | None = None, **details: Any) -> bytes:
    """Return a file, with an extended header before it if there is one."""
    before = b""
    if extension is not None:
        before = block(b"pax/" + name, len(extension), b"x") + padded(extension)
    return before + block(name, len(data), **details) + padded(data)


def with_one(odd: bytes) -> bytes:
    """Return an archive of ordinary samples with something else in the middle of it."""
    first, second = (
        [member(b"%d.txt" % n) + member(b"%d.cls" % n) for n in numbers]
        for numbers in (range(9), range(9, 20))
    )
    return b"".join([*first, odd, *second, bytes(1024)])


def all_oddities() -> Iterator[bytes]:
    """Yield one member for each detail that an archive can have, usual or not."""
    for key in KEYS + ODD_KEYS:
        for field in FIELDS + ODD_FIELDS:
            yield member(key + b"." + field)
    yield from (member(b"a.txt", extension=text) for text in TIMES + ODD_TIMES)
    twice = block(b"pax/a.txt", len(TIMES[0]), b"x") + padded(TIMES[0])
    yield twice + member(b"a.txt", extension=TIMES[0])
    yield from (member(b"a.txt", size_form=form) for form in SIZE_FORMS)
    yield from (member(b"a.txt", sum_form=form) for form in SUM_FORMS)
    yield from (member(b"a\xff.txt", signed=signed) for signed in (False, True))
    yield from (
        member(b"a.txt", magic=magic, prefix=b"p") for magic in (*MAGICS, b"ustar 00", b"\0" * 7 + b"x")
    )
    yield from (member(name, kind=bytes((kind,))) for kind in range(256) for name in (b"a.txt", b"a.b/"))


def almost_ordinary(rng: random.Random, samples: int, odd: float = 0.05) -> bytes:
    """Return an archive of samples in which each detail is unusual with the probability `odd`."""

    def pick(usual: Any, unusual: Any) -> Any:
        return rng.choice(unusual) if rng.random() < odd else rng.choice(usual)

    parts = []
    times, magic = rng.random() < 0.3, rng.choice(MAGICS)
    fields = rng.sample(FIELDS, rng.randint(1, 3))
    for number in range(samples):
        key = rng.choice(KEYS) + pick((b"%d" % number,), (b"", b"0"))
        prefix = pick((b"",), (b"dir", b"d.ir/x", b"__y__", b"p" * 155))
        for field in fields if rng.random() > odd else rng.sample(FIELDS, 2):
            name = pick((key,), ODD_KEYS) + pick((b".",), (b"", b"..", b"/.")) + pick((field,), ODD_FIELDS)
            details: dict[str, Any] = {
                "magic": pick((magic,), (*MAGICS, b"ustar 00", b"\0" * 7 + b"x")),
                "prefix": prefix,
                "size_form": pick(SIZE_FORMS[:1], SIZE_FORMS),
                "sum_form": pick(SUM_FORMS[:2], SUM_FORMS),
                "signed": rng.random() < odd,
            }
            for _ in range(pick((int(times),), (0, 1, 2))):
                text = pick(TIMES, ODD_TIMES)
                kind = pick((b"x",), (b"g", b"X", b"L", b"K"))
                parts.append(block(b"pax/" + name, len(text), kind, **details) + padded(text))
            data = rng.randbytes(rng.choice(SIZES))
            kind = pick((b"0",), (b"0", b"\0", b"7", b"1", b"2", b"5", b"S", b"Z"))
            parts.append(block(name, len(data), kind, **details) + padded(data))
        if rng.random() < odd / 2:
            parts.append(bytes(512) * rng.randint(1, 2))
    end = pick((bytes(1024),), (b"", bytes(512), bytes(1536), bytes(1024) + b"x" * 512, b"x" * 100))
    return b"".join(parts) + end
