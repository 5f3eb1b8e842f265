"""What a fuzzer may try to break: each target takes any bytes and raises only when tarmac is wrong.

A tarmac error is a right answer to damaged input. Anything else that escapes, a disagreement between two ways
of reading, or a disagreement with Python's tarfile on an archive that tarmac accepts, is a finding.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

from harness.native import python_only, read_samples
from harness.oracle import digest, python_tarfile
from tarmac.errors import (
    BadName,
    DuplicateField,
    RepeatedSample,
    SplitSample,
    TarmacError,
    TarmacWarning,
    UnsupportedMember,
)
from tarmac.limits import Limits
from tarmac.samples.grouping import Grouping
from tarmac.samples.naming import check_field, check_key, first_dot
from tarmac.storage.braces import expand_braces
from tarmac.tar import TarOptions, read_members
from tarmac.tar.compression import FORMATS, Decompressing
from tarmac.tar.extended import parse_pax

LIMITS = Limits(member_bytes=1 << 20, expansion_floor=1 << 20, shards=1000)
OPTIONS = TarOptions(limits=LIMITS)
_TYPES = frozenset((0, *b"0LKxgS1257"))


def outcome(read: Callable[[], object]) -> object:
    """The result, or the kind of tarmac error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TarmacWarning)
        try:
            return read()
        except TarmacError as error:
            return type(error)


def reader(data: bytes) -> None:
    """Whole, as a stream, skipping, and in C must agree; what is accepted, tarfile lists the same."""
    whole = outcome(lambda: list(read_members(data, OPTIONS)))
    streamed = outcome(lambda: list(read_members(io.BytesIO(data), OPTIONS)))
    if streamed is not UnsupportedMember:  # of a hard link, what it means has gone by
        assert whole == streamed, (whole, streamed)
    samples = outcome(lambda: list(read_samples(data, tar=OPTIONS)))
    with python_only():
        assert samples == outcome(lambda: list(read_samples(data, tar=OPTIONS)))
    kept = outcome(lambda: list(read_samples(data, Grouping(repeated="keep"), OPTIONS)))
    assert kept == samples or samples in (DuplicateField, RepeatedSample, SplitSample), (samples, kept)
    if isinstance(whole, list):
        skipped = outcome(lambda: list(read_members(io.BytesIO(data), OPTIONS, payload=False)))
        assert skipped == [(name, offset, size, b"") for name, offset, size, _ in whole]
        ours = [
            (name.decode("utf-8", "surrogateescape"), size, digest(content))
            for name, _, size, content in whole
        ]
        if all(name and not name.endswith("/") for name, *_ in ours) and not data.startswith(b"\x28\xb5"):
            assert ours == python_tarfile(data).listing


def sealed_reader(data: bytes) -> None:
    """The same with right checksums in every block that could be a header, to get past the sums.

    Fields that tarmac ignores (mode, owner, time, device) are made valid, as tarfile gives up on them,
    and a prefix is left only where POSIX has one, as tarfile takes it everywhere.
    """
    blocks = bytearray(data[: len(data) & -512])
    for start in range(0, len(blocks), 512):
        if blocks[start + 156] in _TYPES and blocks[start : start + 1].strip(b"\0"):
            blocks[start + 100 : start + 124] = b"0000444\0" * 3
            blocks[start + 136 : start + 148] = bytes(12)
            blocks[start + 329 : start + 345] = bytes(16)
            if blocks[start + 257 : start + 265] != b"ustar\x0000":
                blocks[start + 345 : start + 500] = bytes(155)
            blocks[start + 148 : start + 156] = b" " * 8
            blocks[start + 148 : start + 156] = b"%06o\0 " % sum(blocks[start : start + 512])
    reader(bytes(blocks) + bytes(1024))


def pax(data: bytes) -> None:
    """Records parse or are refused."""
    outcome(lambda: parse_pax(data))


def compression(data: bytes) -> None:
    """Every decompressor ends with bytes or a tarmac error, whatever the pieces."""
    form = sorted(FORMATS)[data[0] % len(FORMATS)] if data else "gz"

    def unpack() -> bytes:
        stream = Decompressing(io.BytesIO(data[1:]), form, LIMITS)
        parts = []
        while part := stream.read(1000):
            parts.append(part)
        return b"".join(parts)

    outcome(unpack)


def braces(data: bytes) -> None:
    """Patterns expand to at most the limit, or are refused."""
    spec = data[:200].decode("utf-8", "replace")
    result = outcome(lambda: sum(1 for _, _ in zip(expand_braces(spec, LIMITS), range(2000), strict=False)))
    assert isinstance(result, type) or result <= 2000  # type: ignore[operator]


def naming(data: bytes) -> None:
    """A key and field that pass the writer's check are split back into themselves."""
    key, _, field = data.decode("utf-8", "surrogateescape").partition("|")
    try:
        check_key(key)
        check_field(field, key)
    except BadName:
        return
    assert first_dot(f"{key}.{field}") == (key, field)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (reader, sealed_reader, pax, compression, braces, naming)
}
