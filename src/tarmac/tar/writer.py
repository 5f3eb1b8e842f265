"""Members to bytes: the same input produces the same bytes, on every machine and at any time.

Headers are plain ustar, which every tool reads. A name or size that does not fit adds one extended
header before the member: PAX by default, GNU on request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from zlib import adler32

from tarmac.errors import BadName, UsageError, WriteError
from tarmac.tar.header import BLOCK, padded

TarFormat = Literal["auto", "ustar", "gnu", "pax"]
END_MARKER = bytes(2 * BLOCK)
OCTAL_SIZE_LIMIT = 8**11
NAME_BYTES, PREFIX_BYTES = 100, 155
SIZES = 4096
"""The number of sizes whose part of a header is cached: those of labels and short texts recur."""
PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]


@dataclass(frozen=True, slots=True)
class Owner:
    """The fields that all headers of an archive share."""

    user: str = "bigdata"
    group: str = "bigdata"
    mode: int = 0o444
    mtime: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.mode <= 0o7777777:
            raise UsageError(f"expected permissions such as 0o444, got {self.mode!r}.", field="mode")
        if not 0 <= self.mtime < OCTAL_SIZE_LIMIT:
            raise UsageError(f"expected seconds since 1970, got {self.mtime!r}.", field="mtime")
        for field, name in (("user", self.user), ("group", self.group)):
            if len(name.encode()) > 31 or "\0" in name:
                raise UsageError(f"expected a name of at most 31 bytes, got {name!r}.", field=field)


class HeaderBuilder:
    """Build member headers that share an owner; constant parts are prepared once."""

    def __init__(self, owner: Owner, format: TarFormat = "auto") -> None:
        if format not in ("auto", "ustar", "gnu", "pax"):
            raise UsageError(f"expected auto, ustar, gnu or pax, got {format!r}.", field="format")
        self._format = format
        self._ids = b"%07o\0" % owner.mode + b"0000000\0" * 2
        self._mtime = b"%011o\0" % owner.mtime + b" " * 8
        self._time = self._mtime[:12]
        self._magic = b"ustar  \0" if format == "gnu" else b"ustar\x0000"
        devices = bytes(16) if format == "gnu" else b"0000000\0" * 2
        self._owner = owner.user.encode().ljust(32, b"\0") + owner.group.encode().ljust(32, b"\0") + devices
        self._plain_tail = self._tail(b"0", b"")
        # The sum of the constant parts of plain headers, with a blank for each digit of the checksum.
        self._sized: dict[int, tuple[bytes, int]] = {}
        self._plain_sum = sum(self._ids) + sum(self._mtime) + sum(self._plain_tail)

    def _tail(self, kind: bytes, prefix: bytes) -> bytes:
        return kind + bytes(100) + self._magic + self._owner + prefix.ljust(167, b"\0")

    def header(self, name: bytes, size: int) -> bytes:
        """Return the block or blocks before the bytes of a member."""
        if size >= OCTAL_SIZE_LIMIT or len(name) > NAME_BYTES:
            return self._large(name, size)
        if not name.isascii():
            return self._block(name, b"%011o\0" % size, self._plain_tail)
        # The fast path for most members. zlib's Adler-32 starts with 1 and is the sum of the bytes modulo
        # 65521, which an ASCII name cannot reach.
        middle, total = self._sized.get(size) or self._for_size(size)
        total += (adler32(name) & 0xFFFF) - 1
        return b"%b%b%06o\0 %b" % (name.ljust(100, b"\0"), middle, total, self._plain_tail)

    def _for_size(self, size: int) -> tuple[bytes, int]:
        """Return the bytes between name and checksum of a plain header, and the checksum without the name."""
        result = self._ids + b"%011o\0" % size + self._time, self._plain_sum + sum(b"%011o" % size)
        if len(self._sized) < SIZES:
            self._sized[size] = result
        return result

    def _block(self, name: bytes, size: bytes, tail: bytes) -> bytes:
        front = name.ljust(100, b"\0") + self._ids + size + self._mtime
        if name.isascii():
            # zlib's Adler-32 is the sum of the bytes modulo 65521, which ASCII cannot reach.
            total = (adler32(front + tail) & 0xFFFF) - 1
        else:
            total = sum(front) + sum(tail)
        return b"%b%06o\0 %b" % (front[:148], total, tail)

    def _large(self, name: bytes, size: int) -> bytes:
        """Return the headers for a name beyond 100 bytes or a size beyond 8 GiB."""
        tail, short, before = self._plain_tail, name, b""
        octal_size = b"%011o\0" % size if size < OCTAL_SIZE_LIMIT else b""
        if len(name) > NAME_BYTES:
            split = _prefix_split(name) if self._format != "gnu" else None
            if split:
                prefix, short = split
                tail = self._tail(b"0", prefix)
            else:
                short = name[:NAME_BYTES]
                before = self._name_extension(name)
        if not octal_size:
            if self._format == "ustar":
                raise WriteError(f"ustar cannot hold a member of {size} bytes.", member=name)
            if self._format == "gnu":
                octal_size = b"\x80" + size.to_bytes(11, "big")
            else:
                before += self._extension(b"x", b"./PaxHeaders/size", _pax_record(b"size", b"%d" % size))
                octal_size = b"%011o\0" % 0
        return before + self._block(short, octal_size, tail)

    def _name_extension(self, name: bytes) -> bytes:
        if self._format == "ustar":
            raise BadName(
                f"the name has {len(name)} bytes and cannot be split to fit into a ustar header.",
                member=name,
                hint='`format` "auto", or a shorter key.',
            )
        if self._format == "gnu":
            return self._extension(b"L", b"././@LongLink", name + b"\0")
        return self._extension(b"x", b"./PaxHeaders/name", _pax_record(b"path", name))

    def _extension(self, kind: bytes, name: bytes, payload: bytes) -> bytes:
        header = self._block(name, b"%011o\0" % len(payload), self._tail(kind, b""))
        return header + payload.ljust(padded(len(payload)), b"\0")


def member_block(headers: HeaderBuilder, name: bytes, data: bytes) -> bytes:
    """Return a complete member: header, bytes and padding."""
    size = len(data)
    return b"%b%b%b" % (headers.header(name, size), data, PADDING[size % BLOCK])


def _prefix_split(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a long name at a slash so that both parts fit into the ustar fields."""
    slash = name.rfind(b"/", 0, PREFIX_BYTES + 1)
    if slash <= 0 or not 0 < len(name) - slash - 1 <= NAME_BYTES:
        return None
    return name[:slash], name[slash + 1 :]


def _pax_record(key: bytes, value: bytes) -> bytes:
    """Return `LENGTH KEY=VALUE\\n`, where the length includes its own digits."""
    body = b" %b=%b\n" % (key, value)
    length = len(body) + len(str(len(body)))
    length = len(body) + len(str(length))
    return b"%d%b" % (length, body)
