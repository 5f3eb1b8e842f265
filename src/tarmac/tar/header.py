"""The 512-byte tar header: parse it and verify its checksum.

Only name, size and type are parsed. Owner, mode and times are ignored, so a header with an invalid time is
readable; one with a wrong checksum, size or name is not.
"""

from __future__ import annotations

from typing import NamedTuple

from tarmac.errors import BadChecksum, BadHeader

BLOCK = 512
ZERO_BLOCK = bytes(BLOCK)
UNKNOWN_FORMAT = b""  # the type for unknown magic bytes, which leave even the name ambiguous
# GNU headers have times and sparse maps in place of the POSIX name prefix; older headers have nothing there.
_NO_PREFIX = frozenset((b"ustar  \0", bytes(8)))


class Kind(NamedTuple):
    """The parsed fields after the checksum of a header."""

    type: bytes
    prefix: bytes
    regular: bool
    sum: int


def padded(size: int) -> int:
    """Return a size rounded up to whole blocks."""
    return (size + BLOCK - 1) & -BLOCK


def octal(field: bytes, what: str) -> int:
    """Parse a number field: octal digits, or base-256 if the first bit is set.

    Stricter than `int`: signs, underscores and digits after a blank are errors.
    """
    if field[0] & 0x80:
        if field[0] != 0x80:
            raise BadHeader(f"the {what} is negative or too large ({field.hex()}).")
        value = int.from_bytes(field[1:], "big")
        if value >= 1 << 63:
            raise BadHeader(f"the {what} {value} exceeds 63 bits.")
        return value
    digits = field[:-1]
    if field[-1] not in b"\0 " or not digits.isdigit():  # not the common form of digits and one blank
        digits = field.partition(b"\0")[0].strip(b" ") or b"0"
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise BadHeader(f"the {what} {field!r} is not an octal number.")
    return int(digits, 8)


def checksum_key(field: bytes) -> int:
    """Return one plus the sum of all header bytes that a checksum field implies.

    The low half of zlib's Adler-32 is one plus the sum of the bytes, exact for the 156 that differ
    between members. The stored checksum counts its own field as eight spaces, hence the correction.
    """
    stored = octal(field, "checksum")
    return stored - 8 * 0x20 + sum(field) + 1


def verify(header: bytes) -> None:
    """Raise unless the checksum is correct. This is the slow, exact version of the reader's comparison."""
    field = header[148:156]
    stored = octal(field, "checksum")
    blank = header[:148] + b" " * 8 + header[156:]
    computed = sum(blank)
    if stored == computed:
        return
    # Some old writers summed signed bytes; GNU tar and Python accept that, too.
    if stored == computed - 256 * sum(byte > 127 for byte in blank):
        return
    raise BadChecksum(
        f"expected the header checksum {computed:#o}, got {stored:#o}: the block is damaged or not a tar header."
    )


def classify(tail: bytes) -> Kind:
    """Parse bytes 156 to 512 of a header, which are the same for most members of a shard."""
    kind = tail[:1]
    magic = tail[101:109]
    prefix = b""
    if magic[:6] == b"ustar\0":
        prefix = tail[189:344].partition(b"\0")[0]
    elif magic not in _NO_PREFIX:
        kind = UNKNOWN_FORMAT
    return Kind(kind, prefix, kind in (b"0", b"\0", b"7"), sum(tail))
