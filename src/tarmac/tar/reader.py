"""Read the members of a tar archive strictly: a shard is either complete, or an error gives the offset.

Python's `tarfile` in stream mode mistakes a damaged header for the end of the archive, so this module has its
own header loop. It is fast for four reasons: whole files are memory-mapped and sliced, header bytes are
summed by zlib's Adler-32, number fields are cached instead of parsed again, and the part of the header
that rarely changes is parsed and summed only when it does.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

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
    UsageError,
)
from tarmac.limits import DEFAULT_LIMITS, MIB, Limits, Options
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
from tarmac.tar.links import Files, unreadable_link

Member = tuple[bytes, int, int, bytes]
"""Name, offset of the payload in the archive, its size, and its bytes (empty if they were not requested)."""

RUN = b"\0run"
"""The name of a member that stands for a run, which is in the place of its bytes; no other name contains a NUL."""
_MAX_PAUSE = 64
Repeated = Literal["error", "keep"]
"""What to do with whole samples whose key occurs again in a shard."""
CHUNK = 1 * MIB
WINDOW = 16 * MIB
CACHED_FIELDS = 4096
CACHED_TAILS = 64
# A header in two halves: name to checksum, which differ between members, and the rest, which rarely does.
_HALVES = struct.Struct("156s356s").unpack_from
_FIELDS = struct.Struct("100s24x12s12x8s").unpack  # name, size, checksum
_ZERO_HEAD = ZERO_BLOCK[:156]
OLD_FILE = b"\0"
HARD_LINK = b"1"
_TORN = "the archive ends in the middle of a member."
_SKIPPED = {b"2": "symbolic link", b"3": "device", b"4": "device", b"5": "directory", b"6": "fifo"}
_UNSUPPORTED = {b"S": "a sparse file", b"M": "a continued file of a multi-volume archive"}


class Readable(Protocol):
    """An object with `read(n)`, which returns up to n bytes, and b"" only at the end."""

    def read(self, size: int, /) -> bytes: ...


class Runs(Protocol):
    """Reads runs of members at once, for a caller that knows what becomes of them."""

    scan: Callable[[bytes | mmap.mmap, int, int, int], tuple[int, Any]] | None
    """Takes a buffer, the position of a header in it, the end, and the offset of the buffer in the archive.
    Returns the position of the first header that it did not read, and what it read; that is false if it read none."""


@dataclass(frozen=True, slots=True, repr=False)
class TarOptions(Options):
    """How strictly an archive is read."""

    end: Literal["strict", "lenient"] = "strict"
    """"lenient" accepts an archive without its end-of-archive marker, as a killed writer leaves it."""
    concatenated: bool = False
    """Continue after an end-of-archive marker, for archives that were joined with `cat`."""
    limits: Limits = DEFAULT_LIMITS
    """Limits on sizes and ratios."""
    repeated: Repeated = "error"
    """"keep" accepts whole samples whose key occurs again in the archive, as oversampling leaves them."""

    def __post_init__(self) -> None:
        if self.end not in ("strict", "lenient"):
            raise UsageError(f'expected "strict" or "lenient", got {self.end!r}.', field="end")
        if self.repeated not in get_args(Repeated):
            raise UsageError(f'expected "error" or "keep", got {self.repeated!r}.', field="repeated")

    def override(self, limits: Limits | None, repeated: Repeated | None) -> TarOptions:
        """Return these options with other limits and another treatment of repeated samples, unless None."""
        return replace(self, limits=limits or self.limits, repeated=repeated or self.repeated)


DEFAULT_OPTIONS = TarOptions()


def read_members(
    source: bytes | mmap.mmap | Readable,
    options: TarOptions = DEFAULT_OPTIONS,
    *,
    url: str | None = None,
    wanted: Callable[[bytes], bool] | None = None,
    payload: bool = True,
    skipped: Counter[str] | None = None,
    runs: Runs | None = None,
    _before: tuple[int, Files] | None = None,
) -> Generator[Member, None, None]:
    """Yield the regular members of an archive in order; count skipped ones, such as directories, in `skipped`.

    A hard link is yielded with the offset and bytes of its target; in a stream it raises an error, unless
    `payload` is false. Members for which `wanted(name)` is false are skipped. Without `payload`, the bytes of
    members are skipped. Compression is detected from the first bytes. Between two members, `runs` may read
    the following ones; its result is yielded in a member with the name RUN. It must skip what is not `wanted`.
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
    base = position = 0  # the offset of `buffer` in the archive, and of the next header in `buffer`
    reach = 0  # the end of the last skipped payload
    marker: int | None = None  # the offset of the end-of-archive marker, once it was seen
    files = None if _before is None else _before[1]  # the targets of hard links, once there are links
    name = b""
    scan = None if runs is None else runs.scan
    idle, pause = 0, 1  # headers until the next attempt to scan, and how many that are after a failure
    try:
        buffer, read = _begin(source, limits)
        end = len(buffer) if _before is None else _before[0]
        mapped = buffer if isinstance(buffer, mmap.mmap) else None
        if read is not None and not payload:
            files = Files()  # a stream cannot go back to find them
        release = WINDOW
        while True:
            name = b""
            if mapped is not None and position >= release:
                release = _release_pages(mapped, position, release)
            if scan is not None:
                if idle:
                    idle -= 1
                elif position < end and overrides is None and marker is None and files is None:
                    position, run = scan(buffer, position, end, base)
                    if run:
                        pause = 1
                        yield RUN, base + position, 0, run
                        continue
                    idle, pause = pause, min(2 * pause, _MAX_PAUSE)
            if position + BLOCK > end:
                if read is not None:
                    buffer = _refill(buffer, position, BLOCK, read, base)
                    base, position, end = base + position, 0, len(buffer)
                if position + BLOCK > end:
                    rest = buffer[position:]
                    if marker is None:
                        raise _early_end(base + end, torn=position < end, pending=overrides)
                    if rest.strip(b"\0"):
                        raise TrailingData(f"data follows the end-of-archive marker at {marker:#x}.")
                    if base + end - marker < 2 * BLOCK:
                        location = "" if url is None else f"{visible(display_url(url))}: "
                        what = "the end-of-archive marker is one zero block, not two."
                        warnings.warn(f"{location}{what}", SingleZeroBlock, 2)
                    return
            head, tail = halves(buffer, position)
            padded_name, field, checksum = fields(head)
            if tail != last_tail:
                last_tail = tail
                facts = tails.get(tail)
                if facts is None:
                    if len(tails) > CACHED_TAILS:
                        tails.clear()
                    facts = tails[tail] = classify(tail)
                kind, prefix, regular, tail_sum = facts

            expected = sums.get(checksum)
            if expected is None:
                if not tail_sum and head == _ZERO_HEAD:
                    if overrides is not None:
                        raise BadHeader("no member follows an extended header.")
                    # Read to the very end, where transfers, commands and compressed streams report that
                    # they are incomplete. Clearing the sums brings any later header here.
                    marker = base + position if marker is None else marker
                    sums.clear()
                    position += BLOCK
                    continue
                if marker is not None and not options.concatenated:
                    raise TrailingData(f"data follows the end-of-archive marker at {marker:#x}.")
                marker = None
                if base + position == 0:
                    _must_be_tar(head + tail)
                if len(sums) > CACHED_FIELDS:
                    sums.clear()
                expected = sums[checksum] = checksum_key(checksum)
            if (adler32(head) & 0xFFFF) + tail_sum != expected:
                if base + position == 0:
                    _must_be_tar(head + tail)
                verify(head + tail)

            size = sizes.get(field, -1)
            if size < 0:
                if len(sizes) > CACHED_FIELDS:
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
                    counts["directory"] += 1  # the form of a directory before POSIX
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
                        raise unreadable_link(target)
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
                _count_skipped(kind, size, counts)
                overrides = None
                position += BLOCK
                continue
            elif size > limits.extension_bytes:
                raise LimitExceeded(
                    f"the extended header has {size} bytes, more than {limits.extension_bytes}.",
                    hint="raise Limits.extension_bytes if you trust the shard.",
                )

            start = position + BLOCK
            data = b""
            if payload or not regular:
                if size > limits.member_bytes:
                    raise _too_large(size, limits)
                stop = start + size
                if stop > end:
                    if read is not None:
                        buffer = _refill(buffer, start, size, read, base)
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
    """Raise an ArchiveError unless the bytes begin like an archive, compressed or not.

    One block is checked, which is enough to distinguish a shard from a web page.
    """
    buffer, read = _begin(source, limits)
    head = buffer[:BLOCK] if read is None else _refill(buffer, 0, BLOCK, read, 0)[:BLOCK]
    if len(head) < BLOCK:
        raise NotATar(f"expected a tar header of {BLOCK} bytes, got {len(head)} bytes. {_guess(head)}")
    if head != ZERO_BLOCK:
        _must_be_tar(head)
        verify(head)


def _begin(
    source: bytes | mmap.mmap | Readable, limits: Limits
) -> tuple[bytes | mmap.mmap, Callable[[int], bytes] | None]:
    """Return the first buffer and a function that reads more, or None for a plain archive in memory."""
    if isinstance(source, bytes | mmap.mmap):
        compression = detect(source[:HEAD])
        if compression is None:
            if not len(source):
                raise NotATar("the file is empty.")
            return source, None
        source = _Slices(source)
        head = b""
    else:
        head = _refill(b"", 0, HEAD, source.read, 0)
        compression = detect(head)
        if compression is None:
            if not head:
                raise NotATar("the stream is empty.")
            return head, source.read
    decompressed = Decompressing(source, compression, limits, head)
    first = decompressed.read(CHUNK)
    if not first:
        raise NotATar(f"the {compression} stream is empty.")
    return first, decompressed.read


def _release_pages(mapped: mmap.mmap, position: int, release: int) -> int:
    """Release the pages of a map that were read, to limit memory to a window or two.

    They remain in the page cache. Return the position for the next release.
    """
    passed = min(position, len(mapped)) // WINDOW * WINDOW  # an invalid size may lead beyond the end
    if passed > release - WINDOW:
        mapped.madvise(mmap.MADV_DONTNEED, release - WINDOW, passed - release + WINDOW)
    return passed + WINDOW


class _Slices:
    """A buffer as a stream, without copying all of it."""

    def __init__(self, buffer: bytes | mmap.mmap) -> None:
        self._buffer = buffer
        self._position = 0

    def read(self, size: int, /) -> bytes:
        data = self._buffer[self._position : self._position + size]
        self._position += len(data)
        return data


def _refill(
    buffer: bytes | mmap.mmap, position: int, need: int, read: Callable[[int], bytes], base: int
) -> bytes:
    """Return the bytes from `position` on, at least `need` of them unless the stream ends first.

    A position beyond the buffer skips the bytes in between. Memory use follows the bytes that arrive, not the
    size in a header.
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
    """Return the error for an archive that ends at `offset`; `torn` if a member or header is incomplete."""
    if torn:
        what = _TORN
    elif pending is not None:
        what, torn = "the archive ends after an extended header.", True
    else:
        what = "the archive has no end-of-archive marker; members may be missing."
    error = Truncated(what, offset=offset)
    error.torn = torn
    return error


def _files_before(buffer: bytes | mmap.mmap, position: int, options: TarOptions) -> Files:
    """Return the files of an archive before a position, from their headers."""
    files = Files()
    with contextlib.suppress(Truncated):  # the archive is cut at the position
        deque(read_members(buffer, options, payload=False, _before=(position, files)), 0)
    return files


def _too_large(size: int, limits: Limits) -> LimitExceeded:
    return LimitExceeded(
        f"the member has {size} bytes, more than {limits.member_bytes}.",
        hint="raise Limits.member_bytes, or do not select this field.",
    )


def _count_skipped(kind: bytes, size: int, counts: Counter[str]) -> None:
    """Count a member that is not a file; raise if readers disagree on how to skip it."""
    if kind in _UNSUPPORTED:
        raise UnsupportedMember(f"the member is {_UNSUPPORTED[kind]}.")
    if kind == UNKNOWN_FORMAT:
        raise BadHeader("the magic bytes are unknown; tar readers interpret the name differently.")
    what = "hard link" if kind == HARD_LINK else _SKIPPED.get(kind)
    if what is None:
        raise UnsupportedMember(f"the member has the unknown type {kind!r}.")
    if size:
        raise BadHeader(f"a {what} has the size {size}; readers disagree on where the next header is.")
    counts[what] += 1


def _must_be_tar(header: bytes) -> None:
    """Raise NotATar if the first header shows that the file is not an archive, damaged or not."""
    if header[257:262] == b"ustar":
        return
    try:
        verify(header)
    except ArchiveError:
        raise NotATar(f"the file does not begin with a tar header. {_guess(header)}") from None


def _guess(head: bytes) -> str:
    """Describe the first bytes of a file that is not an archive."""
    if head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "It looks like a web page, perhaps an error from the server."
    if head.startswith(b"PK\x03\x04"):
        return "It looks like a zip file."
    return f"It begins with {head[:16]!r}."
