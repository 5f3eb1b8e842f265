"""Bytes to members, strictly: a shard read to its end is complete, or an error names the place.

Python's `tarfile` in stream mode takes a damaged header for the end of the archive, so this is a
header loop of its own. It is written for speed in four ways: whole files are mapped and sliced, a
header's bytes are summed by zlib's Adler-32, number fields are remembered instead of parsed again, and
the part of the header that rarely changes is interpreted and summed only when it does.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal, Protocol

from tarmac.display import display_url, visible
from tarmac.errors import (
    ArchiveError,
    BadHeader,
    LimitExceeded,
    NotATar,
    SingleZeroBlock,
    TrailingData,
    Truncated,
    UnsupportedMember,
)
from tarmac.limits import DEFAULT_LIMITS, MIB, Limits
from tarmac.tar.compression import HEAD, Decompressing, detect
from tarmac.tar.extended import EXTENSIONS, Overrides
from tarmac.tar.header import (
    BLOCK,
    UNKNOWN_FORMAT,
    ZERO_BLOCK,
    Kind,
    checksum_key,
    classify,
    octal,
    padded,
    verify,
)
from tarmac.tar.links import Files, no_way_back

__all__ = ["Member", "Readable", "TarOptions", "check_beginning", "read_members"]

Member = tuple[bytes, int, int, bytes]
"""Name, offset of the payload in the archive, its size, and its bytes (empty when not asked for)."""

CHUNK = 1 * MIB
WINDOW = 16 * MIB
REMEMBERED = 4096
REMEMBERED_TAILS = 64
# A header in two halves: name to checksum, which every member changes, and the rest, which few do.
_HALVES = struct.Struct("156s356s").unpack_from
_FIELDS = struct.Struct("100s24x12s12x8s").unpack  # name, size, checksum
_ZERO_HEAD = ZERO_BLOCK[:156]
OLD_FILE = b"\0"
HARD_LINK = b"1"
_TORN = "the archive ends in the middle of a member."
_SKIPPED = {b"2": "symbolic link", b"3": "device", b"4": "device", b"5": "directory", b"6": "fifo"}
_UNSUPPORTED = {b"S": "a sparse file", b"M": "a continued file of a multi-volume archive"}


class Readable(Protocol):
    """Anything with `read(n)`: up to n bytes, b"" only at the end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class TarOptions:
    """How strictly an archive is read."""

    end: Literal["strict", "lenient"] = "strict"
    """Lenient reading accepts an archive without its end mark, as a killed writer leaves it."""
    concatenated: bool = False
    """Read on behind the end mark, for archives joined with `cat`."""
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.end not in ("strict", "lenient"):
            raise ValueError(f'end must be "strict" or "lenient", got {self.end!r}')


DEFAULT_OPTIONS = TarOptions()


def read_members(
    source: bytes | mmap.mmap | Readable,
    options: TarOptions = DEFAULT_OPTIONS,
    *,
    url: str | None = None,
    wanted: Callable[[bytes], bool] | None = None,
    payload: bool = True,
    skipped: Counter[str] | None = None,
    _before: tuple[int, Files] | None = None,
) -> Generator[Member, None, None]:
    """Yield the regular members of an archive in order; symbolic links, directories and the like are counted.

    A hard link is yielded with the place and the bytes of the file that it means. In a stream of which the
    bytes are asked for, it is an error. `wanted(name)` false skips a member without keeping its bytes;
    `payload=False` skips the bytes of all of them. Compression is recognised from the first bytes.
    """
    limits = options.limits
    counts: Counter[str] = Counter() if skipped is None else skipped
    overrides: Overrides | None = None
    sums: dict[bytes, int] = {}
    sizes: dict[bytes, int] = {}
    tails: dict[bytes, Kind] = {}
    last_tail = ZERO_BLOCK[156:]
    kind, prefix, regular, tail_sum = classify(last_tail)
    adler32, halves, fields = zlib.adler32, _HALVES, _FIELDS
    base = position = 0  # where `buffer` lies in the archive, and the next header in `buffer`
    reach = 0  # where the last bytes end that were passed over
    mark: int | None = None  # where the end mark began, once it was seen
    files = None if _before is None else _before[1]  # what hard links may mean, once there are links
    name = b""
    try:
        buffer, read = _begin(source, limits)
        end = len(buffer) if _before is None else _before[0]
        mapped = buffer if isinstance(buffer, mmap.mmap) else None
        if read is not None and not payload:
            files = Files()  # there is no going back to look for them
        release = WINDOW
        while True:
            name = b""
            if mapped is not None and position >= release:
                release = _let_go(mapped, position, release)
            if position + BLOCK > end:
                if read is not None:
                    buffer = _read_on(buffer, position, BLOCK, read, base)
                    base, position, end = base + position, 0, len(buffer)
                if position + BLOCK > end:
                    rest = buffer[position:]
                    if mark is None:
                        raise _early_end(base + end, torn=position < end, pending=overrides)
                    if rest.strip(b"\0"):
                        raise TrailingData(f"data follows the end mark at {mark:#x}.")
                    if base + end - mark < 2 * BLOCK:
                        place = "" if url is None else f"{visible(display_url(url))}: "
                        warnings.warn(f"{place}the end mark is one zero block, not two.", SingleZeroBlock, 2)
                    return
            head, tail = halves(buffer, position)
            padded_name, field, checksum = fields(head)
            if tail != last_tail:
                last_tail = tail
                facts = tails.get(tail)
                if facts is None:
                    if len(tails) > REMEMBERED_TAILS:
                        tails.clear()
                    facts = tails[tail] = classify(tail)
                kind, prefix, regular, tail_sum = facts

            expected = sums.get(checksum)
            if expected is None:
                if not tail_sum and head == _ZERO_HEAD:
                    if overrides is not None:
                        raise BadHeader("an extended header is followed by no member.")
                    # Go on to the very end: that is where transfers, commands and compressed streams
                    # report that they were cut. Forgetting the sums brings any later header here.
                    mark = base + position if mark is None else mark
                    sums.clear()
                    position += BLOCK
                    continue
                if mark is not None and not options.concatenated:
                    raise TrailingData(f"data follows the end mark at {mark:#x}.")
                mark = None
                if base + position == 0:
                    _must_be_tar(head + tail)
                if len(sums) > REMEMBERED:
                    sums.clear()
                expected = sums[checksum] = checksum_key(checksum)
            if (adler32(head) & 0xFFFF) + tail_sum != expected:
                if base + position == 0:
                    _must_be_tar(head + tail)
                verify(head + tail)

            size = sizes.get(field, -1)
            if size < 0:
                if len(sizes) > REMEMBERED:
                    sizes.clear()
                size = sizes[field] = octal(field, "size")

            name = padded_name.partition(b"\0")[0]
            if prefix:
                name = prefix + b"/" + name

            if regular:
                if overrides is not None:
                    name, size = overrides.apply(name, size)
                    overrides = None
                if kind == OLD_FILE and name.endswith(b"/"):
                    counts["directory"] += 1  # how archives older than POSIX mark one
                    position += BLOCK
                    continue
                if files is not None:
                    files.add(name, base + position + BLOCK, size)
                if wanted is not None and not wanted(name):
                    reach = base + position + BLOCK + size
                    position += BLOCK + padded(size)
                    continue
            elif kind == HARD_LINK and not size:
                target = tail[1:101].partition(b"\0")[0]
                if overrides is not None:
                    name, _ = overrides.apply(name, 0)
                    target = target if overrides.link is None else overrides.link
                    overrides = None
                if files is None and (wanted is None or wanted(name)):
                    if read is not None:
                        raise no_way_back(target)
                    files = _files_before(buffer, position, options)
                if files is not None:
                    offset, length = files.find(target)
                    files.add(name, offset, length)
                    if wanted is None or wanted(name):
                        if payload and length > limits.member_bytes:
                            raise _too_large(length, limits)
                        yield name, offset, length, buffer[offset : offset + length] if payload else b""
                position += BLOCK
                continue
            elif kind not in EXTENSIONS:
                _pass_over(kind, size, counts)
                overrides = None
                position += BLOCK
                continue
            elif size > limits.extension_bytes:
                raise LimitExceeded(
                    f"an extended header of {size} bytes, the limit is {limits.extension_bytes}."
                )

            start = position + BLOCK
            data = b""
            if payload or not regular:
                if size > limits.member_bytes:
                    raise _too_large(size, limits)
                stop = start + size
                if stop > end:
                    if read is not None:
                        buffer = _read_on(buffer, start, size, read, base)
                        base, position, end = base + start, -BLOCK, len(buffer)
                        start, stop = 0, size
                    if stop > end:
                        raise _early_end(base + end, torn=True, pending=None)
                data = buffer[start:stop]
            else:
                reach = base + start + size
            if regular:
                yield name, base + start, size, data
            else:
                overrides = overrides or Overrides()
                overrides.add(kind, data, limits)
            position = start + ((size + 511) & -512)
    except ArchiveError as error:
        if isinstance(error, Truncated) and (error.offset or 0) < reach:
            error.what, error.torn = _TORN, True
        if error.offset is None:
            error.offset = base + position
        if error.member is None and name:
            error.member = name.decode("utf-8", "replace")
        error.at(url=url)
        raise


def check_beginning(source: bytes | mmap.mmap | Readable, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise an ArchiveError unless the bytes begin as an archive does, compressed or not.

    One block is looked at: enough to tell a shard from a web page, at no cost.
    """
    buffer, read = _begin(source, limits)
    head = buffer[:BLOCK] if read is None else _read_on(buffer, 0, BLOCK, read, 0)[:BLOCK]
    if len(head) < BLOCK:
        raise NotATar(f"{len(head)} bytes are shorter than a tar header. {_guess(head)}")
    if head != ZERO_BLOCK:
        _must_be_tar(head)
        verify(head)


def _begin(
    source: bytes | mmap.mmap | Readable, limits: Limits
) -> tuple[bytes | mmap.mmap, Callable[[int], bytes] | None]:
    """Give the first buffer, and how to get more; a whole plain archive in memory needs no more."""
    if isinstance(source, bytes | mmap.mmap):
        form = detect(source[:HEAD])
        if form is None:
            if not len(source):
                raise NotATar("the file is empty.")
            return source, None
        source = _Slices(source)
        head = b""
    else:
        head = _read_on(b"", 0, HEAD, source.read, 0)
        form = detect(head)
        if form is None:
            if not head:
                raise NotATar("the stream is empty.")
            return head, source.read
    unpacked = Decompressing(source, form, limits, head)
    first = unpacked.read(CHUNK)
    if not first:
        raise NotATar(f"the {form} stream is empty.")
    return first, unpacked.read


def _let_go(mapped: mmap.mmap, position: int, release: int) -> int:
    """Hand back the pages of a map that were read, so that memory in use stays at a window or two.

    They remain in the system's cache. Returns the position at which to do so again.
    """
    passed = min(position, len(mapped)) // WINDOW * WINDOW  # a size may lead anywhere
    if passed > release - WINDOW:
        mapped.madvise(mmap.MADV_DONTNEED, release - WINDOW, passed - release + WINDOW)
    return passed + WINDOW


class _Slices:
    """A buffer as a stream, without copying it whole."""

    def __init__(self, buffer: bytes | mmap.mmap) -> None:
        self._buffer = buffer
        self._position = 0

    def read(self, size: int, /) -> bytes:
        piece = self._buffer[self._position : self._position + size]
        self._position += len(piece)
        return piece


def _read_on(
    buffer: bytes | mmap.mmap, position: int, need: int, read: Callable[[int], bytes], base: int
) -> bytes:
    """Return the bytes from `position` on, at least `need` of them unless the stream ends first.

    A position beyond the buffer skips what lies between. Memory follows what arrives, not what a
    header claims.
    """
    gap = position - len(buffer)
    parts = [buffer[position:]]
    have = len(parts[0])
    while gap > 0:
        chunk = read(CHUNK)
        if not chunk:
            raise _early_end(base + position - gap, torn=False, pending=None)
        if len(chunk) > gap:
            parts, have = [chunk[gap:]], len(chunk) - gap
        gap -= len(chunk)
    while have < need:
        chunk = read(max(CHUNK, min(need - have, 16 * CHUNK)))
        if not chunk:
            break
        parts.append(chunk)
        have += len(chunk)
    return b"".join(parts)


def _early_end(offset: int, *, torn: bool, pending: Overrides | None) -> Truncated:
    """The error for an archive that stops at `offset`; `torn` when a member or header is cut in two."""
    if torn:
        what = _TORN
    elif pending is not None:
        what, torn = "the archive ends behind an extended header.", True
    else:
        what = "the archive ends without an end mark; members may be missing."
    error = Truncated(what, offset=offset)
    error.torn = torn
    return error


def _files_before(buffer: bytes | mmap.mmap, position: int, options: TarOptions) -> Files:
    """Find the files of an archive that lie before a position, from their headers."""
    files = Files()
    with contextlib.suppress(Truncated):  # that is how it ends there
        deque(read_members(buffer, options, payload=False, _before=(position, files)), 0)
    return files


def _too_large(size: int, limits: Limits) -> LimitExceeded:
    return LimitExceeded(
        f"the member is {size} bytes, the limit {limits.member_bytes}.",
        hint="raise Limits.member_bytes, or do not select this field.",
    )


def _pass_over(kind: bytes, size: int, counts: Counter[str]) -> None:
    """Count a member that is not a file, or refuse it when passing over it would be a guess."""
    if kind in _UNSUPPORTED:
        raise UnsupportedMember(f"the member is {_UNSUPPORTED[kind]}.")
    if kind == UNKNOWN_FORMAT:
        raise BadHeader("the magic bytes belong to no known format; readers disagree on the name.")
    what = "hard link" if kind == HARD_LINK else _SKIPPED.get(kind)
    if what is None:
        raise UnsupportedMember(f"the member has the unknown type {kind!r}.")
    if size:
        raise BadHeader(f"a {what} with a size of {size}: readers disagree on where the next header is.")
    counts[what] += 1


def _must_be_tar(header: bytes) -> None:
    """At the very beginning, tell a file of another kind from a damaged archive."""
    if header[257:262] == b"ustar":
        return
    try:
        verify(header)
    except ArchiveError:
        raise NotATar(f"the file does not begin with a tar header. {_guess(header)}") from None


def _guess(head: bytes) -> str:
    """Say what the first bytes of something that is not an archive look like."""
    if head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "It looks like a web page, perhaps an error from the server."
    if head.startswith(b"PK\x03\x04"):
        return "It looks like a zip file."
    return f"It begins with {head[:16]!r}."
