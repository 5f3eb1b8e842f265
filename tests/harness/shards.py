"""Small shards of every format, built with independent tools."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Iterable

Fields = list[tuple[str, bytes]]

FILES: Fields = [
    ("s0.cls", b"7"),
    ("s0.txt", b"the first caption"),
    ("s1.cls", b""),
    ("s1.txt", b"x" * 512),
    ("s2.cls", b"1"),
    ("s2.txt", b"y" * 513),
]


def plain(
    files: Iterable[tuple[str, bytes]] = FILES, form: int = tarfile.USTAR_FORMAT, mtime: float = 0
) -> bytes:
    """Pack files with Python's tarfile, with two zero blocks at the end."""
    return members(((tarfile.REGTYPE, name, data) for name, data in files), form, mtime)


def members(
    entries: Iterable[tuple[bytes, str, bytes]], form: int = tarfile.USTAR_FORMAT, mtime: float = 0
) -> bytes:
    """Pack members of any type: (type, name, content or link target)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for kind, name, data in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mtime = kind, mtime  # type: ignore[assignment]
            if kind == tarfile.REGTYPE:
                info.size = len(data)
            else:
                info.linkname = data.decode()
            archive.addfile(info, io.BytesIO(data))
        body = stream.getvalue()[: archive.offset]
    return body + bytes(1024)  # tarfile itself would pad to 10 KiB


def with_links() -> bytes:
    """Files with a directory and a symbolic link before them."""
    files = [(tarfile.REGTYPE, name, data) for name, data in FILES[:4]]
    before = [(tarfile.DIRTYPE, "d", b""), (tarfile.SYMTYPE, "d/l.txt", b"s0.txt")]
    return members([*before, *files])


def with_hard_links(form: int = tarfile.USTAR_FORMAT) -> bytes:
    """Samples with hard links: to a file, to a link, and to a file with a long name."""
    files = [(tarfile.REGTYPE, name, data) for name, data in FILES[:4]]
    link = tarfile.LNKTYPE
    long = "directory/" * 4 + "n" * (30 if form == tarfile.USTAR_FORMAT else 150)
    return members(
        [
            *files,
            (link, "s2.cls", b"s0.cls"),
            (link, "s2.txt", b"./s1.txt"),
            (tarfile.REGTYPE, f"{long}.txt", b"far away"),
            (link, "s3.cls", b"s2.cls"),
            (link, "s3.txt", f"{long}.txt".encode()),
        ],
        form,
    )


def base256() -> bytes:
    """The same files with their sizes in base-256, as GNU tar writes them beyond 8 GiB."""
    data = bytearray(plain(form=tarfile.GNU_FORMAT))
    for start in header_offsets(bytes(data)):
        size = int(bytes(data[start + 124 : start + 135]), 8)
        data[start + 124 : start + 136] = b"\x80" + size.to_bytes(11, "big")
        reseal(data, start)
    return bytes(data)


def reseal(data: bytearray, start: int) -> None:
    """Write a valid checksum into the header at `start`."""
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])


def header_offsets(data: bytes) -> list[int]:
    """Return the offsets of the headers of a small plain archive, including extended headers."""
    offsets, position = [], 0
    while data[position : position + 512].strip(b"\0"):
        offsets.append(position)
        field = data[position + 124 : position + 136]
        size = int.from_bytes(field[1:], "big") if field[0] & 0x80 else int(field[:11] or b"0", 8)
        position += 512 + (size + 511 & -512)
    return offsets


LONG = "directory/" * 9 + "a-rather-long-name-that-fits-no-field-of-a-plain-header" + "-and-on" * 12
PLAIN_KINDS: dict[str, Callable[[], bytes]] = {
    "ustar": plain,
    "gnu": lambda: plain(form=tarfile.GNU_FORMAT),
    "pax": lambda: plain(form=tarfile.PAX_FORMAT),
    "pax with float times": lambda: plain(FILES[:4], form=tarfile.PAX_FORMAT, mtime=1.5),
    "gnu long names": lambda: plain(
        [(f"{LONG}{i}.txt", b"%d" % i) for i in range(3)], form=tarfile.GNU_FORMAT
    ),
    "pax long names": lambda: plain(
        [(f"{LONG}{i}.txt", b"%d" % i) for i in range(3)], form=tarfile.PAX_FORMAT
    ),
    "ustar prefix": lambda: plain([("p" * 80 + "/" + "n" * 60 + f"{i}.txt", b"%d" % i) for i in range(3)]),
    "base-256 sizes": base256,
    "links": with_links,
    "blocks exactly": lambda: plain([(f"s{i}.bin", b"z" * 512 * i) for i in range(4)]),
    "one byte each": lambda: plain([(f"s{i}.cls", b"1") for i in range(6)]),
    "empty members": lambda: plain([(f"s{i}.cls", b"") for i in range(6)]),
}


def zstd(data: bytes) -> bytes:
    """One checksummed zstd frame."""
    from backports import zstd as z

    return z.ZstdCompressor(options={z.CompressionParameter.checksum_flag: 1}).compress(
        data, mode=z.ZstdCompressor.FLUSH_FRAME
    )


COMPRESSED_KINDS: dict[str, Callable[[], bytes]] = {
    "gz": lambda: gzip.compress(plain(), mtime=0),
    "bz2": lambda: bz2.compress(plain()),
    "xz": lambda: lzma.compress(plain()),
    "zst": lambda: zstd(plain()),
}
KINDS = PLAIN_KINDS | COMPRESSED_KINDS
